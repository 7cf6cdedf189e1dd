"""What a user of real GPUs relies on: the right ones are seen, use is told by pod, and turns keep programs apart."""

import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.controlplane.pool import GPU, VISIBLE, Pool, pod, refers
from tests.controlplane.test_agent import events, hardware
from tests.gpu.conftest import Enter, MachineAgent
from tests.gpu.containers import Container, cuda_program
from tests.gpu.cuda_program import OUT_OF_MEMORY

Json = dict[str, Any]
SLACK_MIB = 1024
"""More than a context of CUDA takes beside what a program allocates."""


def variables(pool: Pool, name: str) -> Json:
    """The environment of the pod's one container."""
    [environment] = pool.environments(pool.running(name))
    return dict(environment)


def used(agent: MachineAgent, name: str) -> list[int]:
    """The memory in MiB that each process of a pod uses, of each GPU."""
    rows = (process for device in agent.usage()["devices"] for process in device.get("processes", []))
    return [process["memoryMib"] for process in rows if process.get("pod", "").endswith(f"/{name}")]


def about(mib: int) -> Callable[[list[int]], bool]:
    """For `eventually`: whether one process uses this and its context."""
    return lambda found: len(found) == 1 and mib <= found[0] < mib + SLACK_MIB


def answer(container: Container) -> str:
    """What the agent answers the container about its devices."""
    return container.run("sh", "-c", "curl -fsS $DEVICESHARE_AGENT/smi").output()


def test_a_pod_sees_the_devices_that_its_group_holds(
    pool: Pool, agent: MachineAgent, uuids: list[str], enter: Enter
) -> None:
    """From the driver by report, claim and variable to CUDA; and the agent knows whose process it is."""
    report = hardware(pool, agent.node)
    assert [part["uuid"] for part in report["devices"]] == uuids
    assert all(part["model"] and part["memoryMib"] > 0 and "unhealthy" not in part for part in report["devices"])

    group = pool.group(count=1)
    pool.apply(pod("member", group), pod("another", group))
    told = variables(pool, "member")
    assert variables(pool, "another")[VISIBLE] == told[VISIBLE] == uuids[0]
    [member, another] = pool.running("another", "member")[::-1]
    first = enter(member, told).use(2048)
    second = enter(another, told).use(512)
    assert first.seen() == second.seen() == [uuids[0]]

    pool.eventually(lambda: used(agent, "member"), about(2048))
    pool.eventually(lambda: used(agent, "another"), about(512))
    assert not hardware(pool, agent.node).get("trespasses")
    assert f'deviceshare_device_memory_used_bytes{{group="{group}",index="0",' in agent.read("metrics")
    assert first.end() == second.end() == (0, "")
    pool.eventually(lambda: used(agent, "member") + used(agent, "another"), lambda found: not found)


def test_a_stranger_on_a_groups_device_is_evicted(
    pool: Pool, agent: MachineAgent, uuids: list[str], enter: Enter
) -> None:
    """One whose image names the device itself; a program of the node is only reported."""
    stranger = pod("stranger", scheduler="default-scheduler", nodeName=agent.node)
    group = pool.group(count=1)
    pool.apply(pod("member", group), stranger)
    pool.running("member", "stranger")
    enter(pool.get("pod", "stranger"), {VISIBLE: uuids[0]}).use(256).seen()
    own = subprocess.Popen(cuda_program(128, 60), stdout=subprocess.PIPE)
    try:
        rows = pool.eventually(lambda: hardware(pool, agent.node).get("trespasses", []), lambda rows: len(rows) == 2)
        assert {row.get("pod") for row in rows} == {f"{pool.name}/stranger", None}
        pool.eventually(lambda: events(pool, "Trespass", "stranger", pool.name), refers(group))
        pool.eventually(
            lambda: pool.get("pods"), lambda pods: [each["metadata"]["name"] for each in pods] == ["member"]
        )
    finally:
        own.kill()
        own.communicate()


def test_shares_are_metered_and_the_greedy_one_is_evicted(pool: Pool, agent: MachineAgent, enter: Enter) -> None:
    """Its neighbour, which allocates all of its share and has a context beside it, is not."""
    share = {"resources": {"limits": {"deviceshare.io/gpu-mem": 4}}}
    for name in ("greedy", "modest"):
        container = {"name": "main", "image": "busybox", **share}
        pool.apply(pod(name, containers=[container], nodeSelector={"pool": pool.name}))
    told = {name: variables(pool, name) for name in ("greedy", "modest")}
    pods = {each["metadata"]["name"]: each for each in pool.running("greedy", "modest")}
    greedy = enter(pods["greedy"], told["greedy"]).use(6144)
    modest = enter(pods["modest"], told["modest"]).use(4096)
    assert greedy.seen() == modest.seen()

    pool.eventually(lambda: used(agent, "modest"), about(4096))
    said = pool.eventually(lambda: events(pool, "MemoryShareExceeded", "greedy", pool.name), bool)
    assert f"{GPU} 0 on node {agent.node}, its share is 4096 MiB" in said
    [row] = pool.eventually(lambda: hardware(pool, agent.node).get("overuses", []), bool)
    assert row["pod"] == f"{pool.name}/greedy" and 6144 <= row["usedMib"] < 6144 + SLACK_MIB
    pool.eventually(
        lambda: [each["metadata"]["name"] for each in pool.get("pods")], lambda names: names == ["modest"], 60
    )
    assert not events(pool, "MemoryShareExceeded", "modest", pool.name)


def test_programs_that_do_not_fit_together_take_turns(pool: Pool, agent: MachineAgent, enter: Enter) -> None:
    """Each needs 60 % of the device. Side by side one fails; by turns both have their memory, one after the other."""
    group = pool.group(count=1)
    pool.apply(pod("first", group), pod("second", group))
    told = variables(pool, "first") | {"DEVICESHARE_AGENT": agent.pods_url}
    containers = []
    for number, each in enumerate(pool.running("first", "second"), 2):
        pool.give_address(each["metadata"]["name"], f"127.0.0.{number}")
        containers.append(enter(each, told, f"127.0.0.{number}"))
    most = agent.usage()["devices"][0]["memoryTotalMib"] * 6 // 10

    alone = containers[0].use(most)
    alone.seen()
    assert containers[1].use(most).end()[0] == OUT_OF_MEMORY
    assert alone.end() == (0, "")

    # Until the agent has seen the pods' addresses it doesn't know who asks, and says so.
    program = ("sh", "-c", 'eval "$(curl -fsS $DEVICESHARE_AGENT/turn.sh)"', "turn", "--", *cuda_program(most, 3))
    for container in containers:
        pool.eventually(partial(answer, container), refers("MiB"))
    clients = [container.run(*program) for container in containers]
    for client in clients:
        status, errors = client.end()
        assert status == 0, errors
