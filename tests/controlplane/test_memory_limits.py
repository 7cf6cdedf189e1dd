"""Limits of device memory in a real control plane: the real agent, control groups of version 2, and a scripted driver.

The driver keeps its limits by control group, as the kernel does, so that they outlive the agent that set them.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.nvml.library import build
from tests.controlplane.agents import NodeAgent
from tests.controlplane.pool import Pool, refers
from tests.controlplane.test_cli import deviceshare
from tests.controlplane.test_shares import container, sharer

MIB: Final = 1 << 20
DEVICE: Final = 81920
"""MiB of the nodes' one GPU."""
NONE: Final = (1 << 64) - 1


class ControlGroups:
    """The containers of a node: real control groups, below one of the test's own."""

    def __init__(self) -> None:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        self.root = (
            Path(next(m[1] for m in mounts if m[2] == "cgroup2" and "/sys/fs/cgroup" in m[1]))
            / f"deviceshare-{uuid4()}"
        )
        self.root.mkdir()

    def start(self, pod_uid: str, container_id: str = "") -> Path:
        """One that the kubelet has reported, by its ID, or not yet."""
        group = self.root / "kubepods/burstable" / f"pod{pod_uid}" / (container_id or f"{uuid4().hex}{uuid4().hex}")
        group.mkdir(parents=True)
        return group

    def end(self) -> None:
        for each in sorted(self.root.rglob("*"), key=lambda path: -len(path.parts)):
            if each.is_dir():
                each.rmdir()
        self.root.rmdir()


class LimitingNode:
    """A node whose agent limits memory, and what the driver has been told."""

    def __init__(self, pool: Pool, agent: NodeAgent, groups: ControlGroups, limits: Path) -> None:
        self.pool, self.agent, self.groups = pool, agent, groups
        self._limits = limits

    def share(self, name: str, **limits: Any) -> str:
        """Runs a pod with a share; its UID."""
        self.pool.apply(sharer(self.pool, name, container(**limits)))
        (running,) = self.pool.running(name)
        uid: str = running["metadata"]["uid"]
        return uid

    def run(self, name: str, **limits: Any) -> Path:
        """Runs such a pod; the control group of its container."""
        uid = self.share(name, **limits)
        [status] = self.pool.get("pod", name)["status"]["containerStatuses"]
        return self.groups.start(uid, status["containerID"].rpartition("//")[2])

    def hard(self, group: Path) -> int:
        """The group's limit in MiB; a large number where there is none."""
        for file in self._limits.glob(f"*@{group.stat().st_ino}"):
            return int(file.read_text().split()[1]) // MIB
        return NONE // MIB

    def use(self, group: Path, mib: int) -> None:
        """Has the container use so much."""
        [file] = self._limits.glob(f"*@{group.stat().st_ino}")
        soft, hard, _, *rest = file.read_text().split()
        file.write_text(" ".join([soft, hard, str(mib * MIB), *rest]))

    def wait(self, group: Path, mib: int, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        while self.hard(group) != mib:
            assert time.monotonic() < deadline, f"{self.hard(group)} MiB, not {mib}"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def limiting(sandbox: Sandbox, pool: Pool, library: Path, tmp_path: Path) -> Iterator[Callable[[], LimitingNode]]:
    """A node, by a call."""
    begun: list[tuple[NodeAgent, ControlGroups]] = []

    def begin() -> LimitingNode:
        node, groups = pool.node(1), ControlGroups()
        flags = ("--memory-limits=agent", f"--cgroup-root={groups.root}")
        agent = NodeAgent(sandbox, node, library, tmp_path, *flags)
        begun.append((agent, groups))
        agent.script.limit_memory(tmp_path / "limits")
        agent.script.gpus(1, memory_mib=DEVICE)
        agent.start()
        hardware = pool.eventually(
            lambda: pool.get("ndev", node)["status"]["hardware"], lambda found: "memoryLimits" in found
        )
        assert hardware["memoryLimits"] == "agent"
        return LimitingNode(pool, agent, groups, tmp_path / "limits")

    yield begin
    for agent, groups in begun:
        agent.stop()
        groups.end()


def test_a_share_that_has_to_be_enforced_waits_for_a_node_that_does(
    pool: Pool, limiting: Callable[[], LimitingNode]
) -> None:
    """With the cure, and it goes there without anybody's doing."""
    pool.node(1)
    wants = sharer(pool, "strict", container(percent=50))
    wants["metadata"]["annotations"] = {"deviceshare.io/isolation": "required"}
    pool.apply(wants)
    pool.eventually(lambda: pool.reason("strict"), refers("only count shares: no agent sets memory limits"))
    assert "shares.memoryLimits=agent" in deviceshare(pool, "explain", "pod", f"{pool.name}/strict")
    node = limiting()
    (running,) = pool.running("strict")
    group = node.groups.start(running["metadata"]["uid"])
    node.wait(group, DEVICE // 2)
    assert "enforced" in deviceshare(pool, "explain", "pod", f"{pool.name}/strict")
    assert "enforced" in deviceshare(pool, "inspect", "-d", running["spec"]["nodeName"])


def test_a_thousand_containers_come_and_go_and_each_has_its_limit(limiting: Callable[[], LimitingNode]) -> None:
    """On a node with four pods; within a second of their start, whatever the machine does beside."""
    node = limiting()
    sizes = {node.share(f"p{mib}", **{"deviceshare.io/gpu-mem-mib": mib}): mib for mib in (1000, 2000, 3000, 4000)}
    began: dict[Path, float] = {}
    for number in range(1000):
        uid = list(sizes)[number % 4]
        began[node.groups.start(uid)] = time.monotonic()
        if number % 50 == 49:
            for group in began:
                node.wait(group, sizes[group.parent.name.removeprefix("pod")])
            for group in began:
                group.rmdir()
            began.clear()
    metrics = dict(line.rsplit(" ", 1) for line in node.agent.read("metrics").splitlines() if not line.startswith("#"))
    count = float(metrics["deviceshare_memory_limit_seconds_count"])
    within = float(metrics['deviceshare_memory_limit_seconds_bucket{le="1.0"}'])
    assert count >= 1000 and within / count >= 0.99, f"{within} of {count} within a second"
    assert metrics["deviceshare_memory_limits_repaired_total"] == "0.0"


def test_an_agent_that_was_killed_limits_what_started_meanwhile_before_it_is_ready(
    pool: Pool, limiting: Callable[[], LimitingNode]
) -> None:
    node = limiting()
    uid = node.share("p", percent=25)
    first = node.groups.start(uid)
    node.wait(first, DEVICE // 4)
    node.agent._process.kill()  # type: ignore[union-attr]
    node.agent._process.wait()  # type: ignore[union-attr]
    second = node.groups.start(uid)
    node.agent.start()  # until it is ready
    assert (node.hard(first), node.hard(second)) == (DEVICE // 4, DEVICE // 4)
    events = pool.get("events")
    assert [
        each["reason"] for each in events if each["involvedObject"].get("uid") == uid and "Memory" in each["reason"]
    ]


def test_a_share_is_resized_while_it_runs(pool: Pool, limiting: Callable[[], LimitingNode]) -> None:
    """Smaller once it uses less, larger once there is room; no container restarts, and the number is told."""
    node = limiting()
    mine = node.run("mine", mem=20)
    node.wait(mine, 20 << 10)
    pod = f"{pool.name}/mine"
    assert "12 GiB" in deviceshare(pool, "resize", "pod", pod, "--gpu-mem", "12")
    node.wait(mine, 12 << 10)
    node.use(mine, 9000)
    told = deviceshare(pool, "resize", "pod", pod, "--gpu-mem", "8", code=1)
    assert "container main uses 9000 MiB, more than asked for" in told
    node.use(mine, 4000)
    node.wait(mine, 8 << 10)
    node.share("other", mem=60)
    told = deviceshare(pool, "resize", "pod", pod, "--gpu-percent", "50", code=1)
    assert "needs 32 GiB more of nvidia.com/gpu 0" in told and "12 of 80 GiB of it is free" in told
    pool.kubectl("delete", "pod", "other", "-n", pool.name)
    node.wait(mine, 40 << 10, 60)
    refusal = pool.kubectl(
        "annotate", "pod", "mine", "-n", pool.name, "deviceshare.io/resize=8", "--overwrite", fails=True
    )
    assert "set it to CONTAINER=SIZE" in refusal


def test_the_limits_of_a_device_never_come_to_more_than_it_has(limiting: Callable[[], LimitingNode]) -> None:
    """Three pods that are resized at random, all at once, with an agent that is killed in between."""
    node, rng = limiting(), random.Random(24)
    names = ["a", "b", "c"]
    groups = {name: node.run(name, percent=30) for name in names}
    for group in groups.values():
        node.wait(group, DEVICE * 30 // 100)
    worst, over = [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            worst[0] = max(worst[0], sum(node.hard(group) for group in groups.values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for step in range(40):
            name, percent = rng.choice(names), rng.randint(5, 80)
            node.pool.kubectl(
                *("annotate", "pod", name, "-n", node.pool.name, "--overwrite"),
                f"deviceshare.io/resize=main={percent}%",
            )
            if step % 13 == 12:
                node.agent._process.kill()  # type: ignore[union-attr]
                node.agent._process.wait()  # type: ignore[union-attr]
                node.agent.start()
            time.sleep(rng.choice([0, 0.2, 0.6]))
        for name in names:  # all fit
            node.pool.kubectl(
                "annotate", "pod", name, "-n", node.pool.name, "--overwrite", "deviceshare.io/resize=main=20%"
            )
        for name in names:
            node.wait(groups[name], DEVICE // 5, 60)
    finally:
        over.set()
        watcher.join()
    assert 0 < worst[0] <= DEVICE, f"{worst[0]} of {DEVICE} MiB"

    def percents() -> list[int]:
        told = [node.pool.get("pod", name)["metadata"]["annotations"]["deviceshare.io/shares"] for name in names]
        return [json.loads(each)[0]["percent"] for each in told]

    node.pool.eventually(percents, lambda found: found == [20, 20, 20])
