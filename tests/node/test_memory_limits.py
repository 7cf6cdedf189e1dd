"""Limits of device memory on a real node: the control groups are those that kubelet and containerd make, of version 2.

The driver is the tests' own NVML, which keeps what it is told by control group, as NVIDIA documents it.
"""

import json
import os
import re
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
"""A thousand take a quarter of an hour: `--timeout 3600`."""
IN_A_POD = 4
PODS = 5 if CONTAINERS < 100 else 25
ROUNDS = CONTAINERS // (PODS * IN_A_POD)


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


def limits(agent: Agent) -> dict[tuple[str, str], int]:
    """The hard limits in MiB, by the GPU's UUID and the control group."""
    lines = agent.exec("sh", "-c", f"grep '' {LIMITS}/GPU-*@* /dev/null || true").splitlines()
    found = (re.fullmatch(r".*/(GPU-[^@/]+)@\d+:\d+ (\d+) \d+ (\S+)", line) for line in lines)
    return {(each[1], each[3]): int(each[2]) // MIB for each in found if each}


def limits_of(agent: Agent, pods: list[Any]) -> dict[tuple[str, str], list[int]]:
    """The limits at the control group of each container, of its own GPU, by the names of pod and container.

    Before the agent knew which container it was, it may have limited it on another GPU of its pod, too.
    """
    every, found = limits(agent), {}
    uuids = {each["index"]: each["uuid"] for each in agent.hardware()["devices"]}
    for each in pods:
        uid, annotations = each["metadata"]["uid"], each["metadata"]["annotations"]
        gpus = {share["container"]: uuids[share["index"]] for share in json.loads(annotations["deviceshare.io/shares"])}
        for status in each["status"]["containerStatuses"]:
            container, gpu = status["containerID"].rpartition("//")[2], gpus[status["name"]]
            mine = [mib for (uuid, group), mib in every.items() if uuid == gpu and uid in group and container in group]
            found[each["metadata"]["name"], status["name"]] = mine
    return found


def several_containers(name: str, sizes: list[int]) -> Any:
    """A pod with a container for each size, in MiB."""
    document = pod(name, "sleep 3600 & wait")
    [container] = document["spec"]["containers"]
    document["spec"]["containers"] = [
        {**container, "name": f"c{number}", "resources": {"limits": {"deviceshare.io/gpu-mem-mib": size}}}
        for number, size in enumerate(sizes)
    ]
    return document


def test_each_real_container_has_its_limit_at_its_own_control_group(cluster: Cluster, agent: Agent) -> None:
    """They come and go; each is limited within a second of its start, and none was ever found without."""
    for round_ in range(ROUNDS):
        pods = {
            f"p{round_}-{number}": [1000 + 20 * number + each for each in range(IN_A_POD)] for number in range(PODS)
        }
        for name, sizes in pods.items():
            cluster.eventually(partial(cluster.joins, several_containers(name, sizes)))
        cluster.kubectl("wait", "--for=condition=Ready", "pod", *pods, "--timeout=180s")
        expected = {(name, f"c{number}"): [mib] for name, sizes in pods.items() for number, mib in enumerate(sizes)}
        cluster.eventually(partial(limits_of, agent, cluster.get("pod", *pods)), partial(eq, expected))
        cluster.kubectl("delete", "pod", *pods, "--grace-period=1")
    code = "import urllib.request as u; print(u.urlopen(f'http://{ADDRESS}:9410/metrics').read().decode())"
    address = "import os; ADDRESS = os.environ.get('DEVICESHARE_NODE_ADDRESS', '127.0.0.1'); "
    lines = agent.exec("python", "-c", address + code).splitlines()
    metrics = dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    count = float(metrics["deviceshare_memory_limit_seconds_count"])
    assert count >= ROUNDS * PODS * IN_A_POD
    within = {le: metrics[f'deviceshare_memory_limit_seconds_bucket{{le="{le}"}}'] for le in ("0.25", "0.5", "1.0")}
    print(f"{count:.0f} containers and sandboxes were limited, within seconds: {within}")
    assert float(within["1.0"]) >= 0.99 * count
    assert metrics["deviceshare_memory_limits_repaired_total"] == "0.0"
