"""A device breaks: the group is degraded, `deviceshare rebind` gives it another, `deviceshare recover` takes it back.

The nodes are simulated, so the test says what a node's agent would; everything else is as installed.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare_sandbox import ENV
from tests.controlplane.invariants import snapshot, violations
from tests.controlplane.pool import GPU, VISIBLE, Json, Pool, pod, refers

SINCE = "2026-11-21T03:00:00Z"


def report(pool: Pool, node: str, *broken: int, devices: int = 4) -> None:
    """Applies the status of a node as its agent would: these devices are unhealthy."""
    parts = [
        Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79: it has fallen off the bus", since=SINCE)
        if n in broken
        else Part(GPU, n, f"GPU-{n}")
        for n in range(devices)
    ]
    status = {"hardware": msgspec.to_builtins(Hardware(devices=parts))}

    async def apply() -> None:
        async with connect(str(pool.sandbox.kubeconfig)) as connection:
            body = {"status": status}
            await Api(connection).apply(NODE_DEVICES, node, body, manager=contract.AGENT, subresource="status")

    asyncio.run(apply())


def deviceshare(pool: Pool, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command as a person would."""
    command = [sys.executable, "-m", "deviceshare", *arguments, "--kubeconfig", str(pool.sandbox.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def started(pool: Pool, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The same, while the test does its part."""
    command = [sys.executable, "-m", "deviceshare", *arguments, "--kubeconfig", str(pool.sandbox.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def claim(pool: Pool, node: str) -> Json:
    """The node's only claim: its devices and former ones by number, and the request it answered."""
    found: Json = next(iter(pool.get("ndev", node)["spec"].get("claims", {}).values()), {})
    return found | {key: [each["index"] for each in found.get(key, [])] for key in ("devices", "former")}


def sees(pool: Pool, name: str) -> str:
    """What the pod's one container found in its environment when it started."""
    return str(pool.environments([pool.get("pod", name)])[0][VISIBLE])


def restart(pool: Pool, name: str) -> None:
    """Has the simulated kubelet start the containers anew: it reads the environment when it has no record of it."""
    pool.kubectl("annotate", "pod", name, "-n", pool.name, f"{ENV}-")
    pool.eventually(lambda: pool.environments([pool.get("pod", name)]))


def no_violations(pool: Pool) -> None:
    async def look() -> list[str]:
        async with connect(str(pool.sandbox.kubeconfig)) as connection:
            return violations(await snapshot(Api(connection)))

    assert asyncio.run(look()) == []


def test_a_broken_device_is_replaced_in_place_and_comes_back_when_it_is_mended(pool: Pool) -> None:
    """The whole story, from the error to the day on which the device can be allocated again."""
    node = pool.node()
    report(pool, node)
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    assert sees(pool, "one") == "GPU-0,GPU-1"

    report(pool, node, 1)
    sick = pool.eventually(lambda: pool.condition(group, "Healthy"), lambda c: c.get("reason") == "DevicesUnhealthy")
    assert f"deviceshare rebind {group}" in sick["message"]
    assert pool.status(group)["phase"] == "Degraded"
    pool.apply(pod("late", group))
    pool.eventually(lambda: pool.reason("late"), refers(f"deviceshare rebind {group}"))

    done = deviceshare(pool, "rebind", group)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"now holds {GPU} 0,2 on node {node}, and no longer {GPU} 1" in done.stdout
    assert f"{pool.name}/one" in done.stdout
    assert (claim(pool, node)["devices"], claim(pool, node)["former"]) == ([0, 2], [1])
    told = pool.eventually(
        lambda: pool.get("pod", "one")["metadata"]["annotations"], lambda each: contract.FORMER_DEVICES in each
    )
    assert told[vendors.NVIDIA.annotation] == "GPU-0,GPU-2"
    pool.eventually(lambda: pool.status(group)["phase"], lambda phase: phase == "Bound")
    assert sees(pool, "one") == "GPU-0,GPU-1", "a container that runs keeps what it has"
    no_violations(pool)
    restart(pool, "one")
    assert sees(pool, "one") == "GPU-0,GPU-2"
    pool.running("late")
    assert sees(pool, "late") == "GPU-0,GPU-2"
    events = ("get", "events", "-n", pool.name, "--field-selector", "involvedObject.name=one")
    pool.eventually(lambda: pool.kubectl(*events), refers("DevicesReplaced"))

    with started(pool, "recover", node, "1") as recovery:
        said = pool.eventually(
            lambda: pool.get("ndev", node)["metadata"].get("annotations", {}).get(contract.RECOVERED)
        )
        assert said == f"GPU-1@{SINCE}"
        report(pool, node)
        output, _ = recovery.communicate(timeout=60)
        assert (recovery.returncode, output.split(" (")[0]) == (0, f"{GPU} 1 of node {node} can be allocated again")
    other = pool.group("other", 2)
    pool.apply(pod("waits", other))
    pool.eventually(lambda: pool.reason("waits"), refers("1 of 4 free"))
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.running("waits", seconds=90)  # binds are waited out before the former device is released: 28 s before 1.21
    assert sees(pool, "waits") == "GPU-1,GPU-3"
    no_violations(pool)


def test_a_rebind_without_a_healthy_device_fails_with_the_reason(pool: Pool) -> None:
    """And changes nothing."""
    node = pool.node(2)
    report(pool, node, devices=2)
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    report(pool, node, 0, devices=2)
    done = deviceshare(pool, "rebind", group)
    assert done.returncode == 1
    assert f"needs 1 healthy {GPU} to replace 0, but node {node} has 0 free" in done.stderr
    assert "rebound" not in claim(pool, node)


def test_what_is_well_is_left_alone(pool: Pool) -> None:
    """By both commands: one has nothing to do, the other was told something that isn't so."""
    node = pool.node()
    report(pool, node)
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    done = deviceshare(pool, "rebind", group)
    assert (done.returncode, done.stdout.startswith(f"All devices of group {group} are healthy")) == (0, True)
    done = deviceshare(pool, "recover", node, "3")
    assert (done.returncode, f"{GPU} 3 of node {node} is healthy" in done.stderr) == (1, True)
    assert deviceshare(pool, "rebind", "nobody").returncode == 1
    assert deviceshare(pool, "rebind").returncode == 2


def test_a_request_by_kubectl_alone_is_answered_in_events(pool: Pool) -> None:
    """Who may change groups needs no other right and no other program."""
    node = pool.node()
    report(pool, node)
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    report(pool, node, 0)
    pool.eventually(lambda: pool.status(group)["phase"], lambda phase: phase == "Degraded")
    pool.kubectl("annotate", "sdg", group, f"{contract.REBIND}=please")
    pool.eventually(lambda: claim(pool, node), lambda each: each.get("rebound") == "please")
    pool.eventually(lambda: pool.kubectl("describe", "sdg", group), refers("Rebound"))


def test_a_pods_share_moves_to_a_healthy_device_and_its_own_user_asks_for_it(pool: Pool) -> None:
    """By kubectl or the command; the webhook lets exactly that pass, and a restarted container sees the device."""
    node = pool.node(3)
    report(pool, node, devices=3)
    limits = {"resources": {"limits": {"deviceshare.io/gpu-percent": 60}}}
    containers = [{"name": "main", "image": "busybox", **limits}]
    pool.apply(pod("part", containers=containers, nodeSelector={"pool": pool.name}))
    pool.running("part")
    report(pool, node, 0, devices=3)
    annotate = ("annotate", "pod", "part", "-n", pool.name)
    assert "letters, digits" in pool.kubectl(*annotate, f"{contract.REBIND}=no word", fails=True)
    assert "written by deviceshare only" in pool.kubectl(*annotate, f"{contract.SHARES}-", fails=True)
    pool.kubectl(*annotate, f"{contract.REBIND}=please")
    said = pool.eventually(lambda: pool.kubectl("describe", "pod", "part", "-n", pool.name), refers("DevicesReplaced"))
    assert f"now has 60% of {GPU} 1 on node {node}" in said
    assert sees(pool, "part") == "GPU-0", "a container that runs keeps what it has"
    restart(pool, "part")
    assert sees(pool, "part") == "GPU-1"
    parts = pool.get("ndev", node)["spec"]["claims"].popitem()[1]["shares"]
    assert sorted((each["index"], each.get("former", False)) for each in parts) == [(0, True), (1, False)]
    done = deviceshare(pool, "rebind", "pod", f"{pool.name}/part")
    assert (done.returncode, "are healthy: it keeps 60%" in done.stdout) == (0, True)
    no_violations(pool)
    report(pool, node, 0, 1, devices=3)
    done = deviceshare(pool, "rebind", "pod", f"{pool.name}/part")
    assert (done.returncode, f"now has 60% of {GPU} 2" in done.stdout) == (0, True)
    report(pool, node, devices=3)
    pool.kubectl("delete", "pod", "part", "-n", pool.name)
    pool.eventually(lambda: pool.get("ndev", node)["spec"].get("claims", {}), lambda claims: not claims)
