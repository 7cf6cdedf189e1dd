"""Limits of device memory on a real node: the control groups are those that kubelet and containerd make, of version 2.

The driver is the tests' own NVML, which keeps what it is told by control group, as NVIDIA documents it.
"""

import os
from collections.abc import Iterator
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from deviceshare_sandbox.nvml import Script
from tests.node.agents import LIMITS, Agent, release_with_agents
from tests.node.cluster import Cluster, pod
from tests.node.release import Parts, Release

MIB = 1 << 20
CONTAINERS = int(os.environ.get("DEVICESHARE_LIMITED_CONTAINERS", "20"))
"""A thousand take three quarters of an hour, and `--timeout 3600`."""
PODS = 5 if CONTAINERS < 100 else 25
ROUNDS = CONTAINERS // PODS


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Two GPUs of 80 GiB, and a driver that limits memory."""
    script = Script(tmp_path_factory.mktemp("script") / "script", driver="615.71")
    script.gpus(2, memory_mib=81920)
    script.limit_memory(LIMITS)
    return script


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, release_parts: Parts, script: Script, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart with agents that limit memory."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    mount = next(each[1] for each in mounts if each[2] == "cgroup2" and each[1].startswith("/sys/fs/cgroup"))
    values = {"shares": {"memoryLimits": "agent"}}
    flags = {"extraArgs": [f"--cgroup-root={mount}"]}  # below /sys/fs/cgroup, where version 1 is mounted beside it
    scratch = tmp_path_factory.mktemp("nvml")
    with release_with_agents(cluster, release_parts, script, scratch, agent=flags, **values) as installed:
        yield installed


@pytest.fixture(autouse=True)
def _installed(clear: None) -> None:
    """Every test here needs the release, and leaves it as it was."""


@pytest.fixture
def agent(cluster: Cluster, release: Release, script: Script) -> Agent:
    found = Agent(cluster, script)
    cluster.eventually(lambda: found.hardware().get("memoryLimits", ""), lambda by: by == "agent")
    return found


def limits(agent: Agent) -> dict[str, int]:
    """The hard limit in MiB by control group, of those that have one."""
    lines = agent.exec("sh", "-c", f"cat {LIMITS}/GPU-*@* 2>/dev/null || true").splitlines()
    return {words[3]: int(words[1]) // MIB for words in map(str.split, lines) if len(words) == 4}


def limits_of(agent: Agent, pods: list[Any]) -> dict[str, list[int]]:
    """The limits at the control group of each pod's container."""
    groups, found = limits(agent), {}
    for each in pods:
        uid, container = each["metadata"]["uid"], each["status"]["containerStatuses"][0]["containerID"]
        mine = [limit for group, limit in groups.items() if uid in group and container.rpartition("//")[2] in group]
        found[each["metadata"]["name"]] = mine
    return found


def test_each_real_container_has_its_limit_at_its_own_control_group(cluster: Cluster, agent: Agent) -> None:
    """They come and go; each is limited within a second of its start, and none was ever found without."""
    for round_ in range(ROUNDS):
        sizes = {f"p{round_}-{number}": 1000 + 100 * number for number in range(PODS)}
        for name, mib in sizes.items():
            asked = {"resources": {"limits": {"deviceshare.io/gpu-mem-mib": mib}}}
            document = pod(name, "sleep 3600 & wait", container=asked)
            cluster.eventually(partial(cluster.joins, document))
        cluster.kubectl("wait", "--for=condition=Ready", "pod", *sizes, "--timeout=180s")
        cluster.eventually(
            partial(limits_of, agent, cluster.get("pod", *sizes)),
            partial(eq, {name: [mib] for name, mib in sizes.items()}),
        )
        cluster.kubectl("delete", "pod", *sizes, "--grace-period=1")
    code = "import urllib.request as u; print(u.urlopen(f'http://{ADDRESS}:9410/metrics').read().decode())"
    address = "import os; ADDRESS = os.environ.get('DEVICESHARE_NODE_ADDRESS', '127.0.0.1'); "
    lines = agent.exec("python", "-c", address + code).splitlines()
    metrics = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    count = float(metrics["deviceshare_memory_limit_seconds_count"])
    assert count >= ROUNDS * PODS
    within = {le: metrics[f'deviceshare_memory_limit_seconds_bucket{{le="{le}"}}'] for le in ("0.25", "0.5", "1.0")}
    print(f"{count:.0f} containers and sandboxes were limited, within seconds: {within}")
    assert float(within["1.0"]) >= 0.99 * count
    assert metrics["deviceshare_memory_limits_repaired_total"] == "0.0"
