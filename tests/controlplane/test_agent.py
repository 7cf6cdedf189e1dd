"""A node's agent in a real control plane: what it reports, what follows from it, and what it may write."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deviceshare.domain.contract import AGENT
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Forbidden
from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.network import free_ports
from deviceshare_sandbox.nvml.library import build
from tests.controlplane.agents import NodeAgent, Player
from tests.controlplane.pool import GPU, VISIBLE, Pool, pod, refers
from tests.controlplane.test_cli import deviceshare

Json = dict[str, Any]
Start = Callable[..., NodeAgent]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NVML, as scripted."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def start(sandbox: Sandbox, library: Path, tmp_path: Path) -> Iterator[Start]:
    """`start(node, gpus, *flags)`: an agent that has reported so many GPUs."""
    agents: list[NodeAgent] = []

    def go(node: str, gpus: int, *flags: str) -> NodeAgent:
        directory = tmp_path / f"agent-{len(agents)}"
        directory.mkdir()
        agent = NodeAgent(sandbox, node, library, directory, *flags)
        agents.append(agent)
        agent.script.gpus(gpus, nvlink_pairs=True)
        agent.start()
        return agent

    yield go
    for agent in agents:
        agent.stop()


def hardware(pool: Pool, node: str) -> Json:
    found: Json = pool.get("ndev", node)["status"].get("hardware", {})
    return found


def unhealthy(pool: Pool, node: str) -> dict[str, str]:
    """Why, by UUID."""
    return {part["uuid"]: part["unhealthy"] for part in hardware(pool, node)["devices"] if "unhealthy" in part}


def events(pool: Pool, reason: str, about: str, namespace: str = "default") -> str:
    """What the events of this reason say about an object."""
    return pool.events(reason, about, namespace)


@contextmanager
def protected(pool: Pool, name: str) -> Iterator[None]:
    """Nobody may evict the pod within the block: else what an agent says of it would be gone after its next look."""
    pool.kubectl("label", "pod", name, "-n", pool.name, f"app={name}")
    budget = ("poddisruptionbudget", name, "-n", pool.name)
    pool.kubectl("create", *budget, f"--selector=app={name}", "--min-available=1")
    yield
    pool.kubectl("delete", *budget)


def names(pool: Pool) -> list[str]:
    """Of the pods."""
    return [each["metadata"]["name"] for each in pool.get("pods")]


def test_an_agent_reports_its_nodes_devices_and_pods_are_told_uuids(pool: Pool, start: Start) -> None:
    """What is reported once is not written again while nothing changes, not even by the next agent."""
    node = pool.node(devices=4)
    agent = start(node, 4)
    report = hardware(pool, node)
    uuids = [part["uuid"] for part in report["devices"]]

    assert [part["index"] for part in report["devices"]] == [0, 1, 2, 3]
    assert report["driver"] == "550.54.15"
    assert report["bootId"] == pool.get("node", node)["status"]["nodeInfo"]["bootID"]
    assert {"resource": GPU, "a": 2, "b": 3, "kind": "nvlink", "lanes": 4} in report["links"]

    group = pool.group(count=2)
    pool.apply(pod("user", group))
    [environment] = pool.environments(pool.running("user"))
    assert environment[VISIBLE] == ",".join(uuids[:2])

    # The leader's one-line summaries come up to two seconds after the claim.
    pool.eventually(lambda: pool.get("ndev", node)["spec"]["summary"]["held"], lambda held: group in held)
    version = pool.get("ndev", node)["metadata"]["resourceVersion"]
    agent.stop()
    agent.start()
    pool.eventually(lambda: agent.said("Agent read the devices"), lambda said: len(said) == 2)
    assert len(agent.said("Reported hardware")) == 1
    assert pool.get("ndev", node)["metadata"]["resourceVersion"] == version


def test_a_broken_device_goes_to_nobody_until_it_is_said_to_be_well(pool: Pool, start: Start) -> None:
    """Not by an error of a program, over a restart of the agent, and with every word of it told to people."""
    node = pool.node(devices=2)
    agent = start(node, 2)
    first, second = (part["uuid"] for part in hardware(pool, node)["devices"])

    agent.script.xid(first, 31)
    agent.script.xid(second, 79)
    pool.eventually(lambda: unhealthy(pool, node), refers_only(second, "Xid 79: GPU has fallen off the bus"))
    pool.eventually(lambda: events(pool, "DeviceUnhealthy", node), refers(f"deviceshare recover {node} 1"))
    assert f'deviceshare_xid_errors_total{{kind="application",uuid="{first}",xid="31"}} 1.0' in agent.read("metrics")

    agent.stop()
    agent.start()
    assert list(unhealthy(pool, node)) == [second]
    pair = pool.group("pair", count=2)
    pool.apply(pod("waits", pair))
    pool.eventually(lambda: pool.reason("waits"), bool)
    assert pool.placed("waits") == ""

    broken = next(part for part in hardware(pool, node)["devices"] if part["uuid"] == second)
    for finding in (f"{second}@2000-01-01T00:00:00Z", f"{second}@{broken['since']}"):
        assert unhealthy(pool, node)
        pool.kubectl("annotate", "ndev", node, "--overwrite", f"deviceshare.io/recovered={finding}")
    pool.eventually(lambda: unhealthy(pool, node), lambda marks: not marks)
    pool.eventually(lambda: events(pool, "DeviceRecovered", node), refers("deviceshare recover"))
    pool.running("waits")


def refers_only(uuid: str, why: str) -> Callable[[dict[str, str]], bool]:
    """For `eventually`: whether this device alone is unhealthy, for this reason."""
    return lambda marks: marks == {uuid: why}


def test_a_lost_device_is_kept_in_the_books_and_a_reboot_heals_it(pool: Pool, start: Start) -> None:
    """The driver shows it no more; what it was must be known to who looks for it."""
    node = pool.node(devices=2)
    agent = start(node, 2)
    lost = hardware(pool, node)["devices"][1]

    agent.script.lose(lost["uuid"])
    pool.eventually(lambda: unhealthy(pool, node), lambda marks: "does not show" in marks.get(lost["uuid"], ""))
    part = hardware(pool, node)["devices"][1]
    assert part["lost"] and part["model"] == lost["model"]

    agent.stop()
    agent.script.find(lost["uuid"])
    agent.boot("boot-2")
    agent.start()
    pool.eventually(lambda: hardware(pool, node)["devices"][1], lambda part: part == lost)
    assert hardware(pool, node)["bootId"] == "boot-2"


def test_who_uses_a_groups_device_without_being_of_it_is_told_and_evicted(pool: Pool, start: Start) -> None:
    """Members aren't; and a program on the node is told only."""
    node = pool.node(devices=2)
    agent = start(node, 2, "--enforce=evict")
    first = hardware(pool, node)["devices"][0]["uuid"]
    group = pool.group(count=1)
    stranger = pod("stranger", scheduler="default-scheduler")
    stranger["spec"]["nodeName"] = node
    pool.apply(pod("member", group), stranger)
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in pool.running("member", "stranger")}

    for number, (name, uid) in enumerate(uids.items()):
        agent.process(100 + number, name, f"/kubepods/burstable/pod{uid}/{'0a' * 32}")
    agent.process(200, "miner", "/user.slice")
    with protected(pool, "stranger"):
        agent.script.processes(first, {100: 1024, 101: 2048, 200: 16})
        trespasses = pool.eventually(lambda: hardware(pool, node).get("trespasses", []), lambda rows: len(rows) == 2)
        assert trespasses == [
            {"resource": GPU, "index": 0, "process": "miner"},
            {"resource": GPU, "index": 0, "process": "stranger", "pod": f"{pool.name}/stranger"},
        ]
        shown = {process["name"]: process for process in agent.usage()["devices"][0]["processes"]}
        assert shown["member"] == {"pid": 100, "name": "member", "memoryMib": 1024, "pod": f"{pool.name}/member"}
        assert shown["stranger"]["trespass"] is shown["miner"]["trespass"] is True
        used = json.loads(agent.read("use"))["devices"][0]
        assert (used["uuid"], "processes" in used) == (first, False)
        assert f'deviceshare_device_memory_used_bytes{{group="{group}",index="0",' in agent.read("metrics")
        pool.eventually(lambda: events(pool, "Trespass", "stranger", pool.name), refers(group))
        pool.eventually(lambda: events(pool, "Trespass", node), refers("process 'miner'"))
    pool.eventually(lambda: names(pool), lambda left: left == ["member"])


def test_who_exceeds_its_share_is_told_and_evicted_and_its_neighbour_is_not(pool: Pool, start: Start) -> None:
    """By the ledger's claims; nearly as much as the share and a context is tolerated."""
    node = pool.node(devices=1)
    agent = start(node, 1, "--enforce=evict", "--overuse-grace=20")
    [device] = [part["uuid"] for part in hardware(pool, node)["devices"]]
    share = {"deviceshare.io/gpu-mem": 8}
    for name in ("greedy", "modest"):
        container = {"name": "main", "image": "busybox", "resources": {"limits": share}}
        pool.apply(pod(name, containers=[container], nodeSelector={"pool": pool.name}))
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in pool.running("greedy", "modest")}
    assert {claim["pod"] for claim in pool.get("ndev", node)["spec"]["claims"].values()} == {
        f"{pool.name}/greedy",
        f"{pool.name}/modest",
    }

    for number, (name, uid) in enumerate(uids.items()):
        agent.process(100 + number, name, f"/kubepods/burstable/pod{uid}/{'0a' * 32}")
    used = {"greedy": 20000, "modest": 8192 + 800}
    with protected(pool, "greedy"):
        agent.script.processes(device, {100 + number: used[name] for number, name in enumerate(uids)})
        said = f"uses 20000 MiB of {GPU} 0 on node {node}, its share is 8192 MiB"
        pool.eventually(lambda: events(pool, "MemoryShareExceeded", "greedy", pool.name), refers(said))
        [row] = pool.eventually(lambda: hardware(pool, node).get("overuses", []), bool)
        assert row.pop("since")
        assert row == {"resource": GPU, "index": 0, "pod": f"{pool.name}/greedy", "usedMib": 20000, "limitMib": 8192}
        assert f"pod {pool.name}/greedy: as a whole it uses 20000 MiB" in deviceshare(pool, "inspect", node)

    pool.eventually(lambda: names(pool), lambda left: left == ["modest"], 90)
    pool.eventually(lambda: agent.read("metrics"), refers('deviceshare_evictions_total{cause="overuse"} 1.0'))
    assert not events(pool, "MemoryShareExceeded", "modest", pool.name)
    assert not events(pool, "Trespass", "modest", pool.name)
    of_modest = [each for each in agent.usage()["devices"][0]["shares"] if each["pod"] == f"{pool.name}/modest"]
    assert {"usedMib": 8992, "limitMib": 8192} in [
        {key: each.get(key) for key in ("usedMib", "limitMib")} for each in of_modest
    ]
    assert not any(each.get("exceeded") for each in of_modest)
    pool.eventually(lambda: hardware(pool, node).get("overuses", []), lambda rows: not rows)


def test_turns_are_shown_to_who_may_not_reach_the_agent(
    pool: Pool, sandbox: Sandbox, start: Start, tmp_path: Path
) -> None:
    """Which pod has the turn and which waits, from NodeDevices: in `inspect` and on the page, and over a crash."""
    node, [port], record = pool.node(devices=1), free_ports(1), tmp_path / "turns"
    record.mkdir()
    agent = start(node, 1, f"--serve-pods=127.0.0.1:{port}", f"--turns-directory={record}")
    group = pool.group(count=1)
    pool.apply(pod("first", group), pod("second", group))
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in pool.running("first", "second")}
    for number, (name, uid) in enumerate(uids.items(), 2):
        agent.process(100 + number, name, f"/kubepods/burstable/pod{uid}/{'0a' * 32}")
        pool.give_address(name, f"127.0.0.{number}")

    with Player(port, "127.0.0.2") as first, Player(port, "127.0.0.3", "&priority=3") as second:
        first.hears("turn")
        second.hears("wait")
        # A report may have been written between the two, and the leader's summaries come after the claim.
        [queue] = pool.eventually(lambda: queues(pool, node), lambda found: found and found[0].get("waitingCount"))
        pool.eventually(lambda: pool.get("ndev", node)["spec"]["summary"]["held"], refers(group))
        assert (queue["group"], queue["holder"]["pod"], queue["waitingCount"]) == (group, f"{pool.name}/first", 1)
        assert [(each["pod"], each["priority"]) for each in queue["waiting"]] == [(f"{pool.name}/second", 3)]
        version = pool.get("ndev", node)["metadata"]["resourceVersion"]

        shown = pool.eventually(lambda: turn_on_the_page(sandbox, group), lambda turn: turn.get("waitingCount"))
        assert (shown["holder"]["pod"], shown["waitingCount"]) == (f"{pool.name}/first", 1)
        lines = deviceshare(pool, "inspect", node).splitlines()
        [has_it] = [line.split() for line in lines if " has it " in line]
        assert has_it[:5] == [group, node, f"{pool.name}/first", "has", "it"]
        assert [line for line in lines if line.split()[:2] == [f"{pool.name}/second", "waits"]]
        assert pool.get("ndev", node)["metadata"]["resourceVersion"] == version, "heartbeats write nothing"
        agent.stop()
    agent.start()
    # The holder's connection is lost with the agent, and its processes can't be seen here.
    lost = pool.eventually(lambda: hardware(pool, node)["turns"]["queues"][0], lambda queue: "waiting" not in queue)
    assert lost["holder"]["pod"] == f"{pool.name}/first" and lost["holder"]["lostSince"]


def queues(pool: Pool, node: str) -> list[Json]:
    """Of turns, as the agent has reported them."""
    found: list[Json] = hardware(pool, node).get("turns", {}).get("queues", [])
    return found


def turn_on_the_page(sandbox: Sandbox, group: str) -> Json:
    """What the page is told of the group's turn; its mirror comes after the API server."""
    with urllib.request.urlopen(f"{sandbox.ui_url}/state", timeout=20) as answer:
        [shown] = [each for each in json.load(answer)["cluster"]["groups"] if each["name"] == group]
    turn: Json = shown.get("turn", {})
    return turn


async def test_an_agent_may_write_its_report_and_nothing_else(pool: Pool, sandbox: Sandbox) -> None:
    """Neither by its rights nor past the webhook."""
    node = pool.node(devices=2)
    async with connect(str(sandbox.agent_kubeconfig(node))) as connection:
        api = Api(connection)
        good: Json = {"status": {"hardware": {"driver": "1"}}}
        written = await api.apply(NODE_DEVICES, node, good, manager=AGENT, subresource="status")
        more: Json = {"status": {"hardware": {"driver": "1"}, "total": "nvidia.com/gpu=9"}}
        with pytest.raises(Forbidden, match=r"status\.hardware only, not status\.total"):
            await api.apply(NODE_DEVICES, node, more, manager=AGENT, subresource="status")
        with pytest.raises(Forbidden):
            await api.apply(NODE_DEVICES, node, {"spec": {"claims": {}}}, manager=AGENT)
        with pytest.raises(Forbidden):
            await api.delete(NODE_DEVICES, node)

    assert written.hardware.driver == "1"
    assert len(pool.get("ndev", node)["status"]["devices"]) == 2, "the leader's fields are as they were"
