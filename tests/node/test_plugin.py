"""Groups beside plain pods that get devices from a device plugin, on one real kubelet.

The sandbox's node has its kubelet's directory in the sandbox's own, so plugin and agent run outside of it.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from deviceshare.agent.allocations import Allocated, ask_kubelet
from deviceshare.domain.contract import PLACEHOLDER
from deviceshare_sandbox import Options, running
from deviceshare_sandbox.network import free_ports
from deviceshare_sandbox.nvml import Script, build
from tests.node.cluster import GPU, TELL, Cluster, Json, group, pod

COUNT = 4
STAY = f"{TELL}; sleep 3600 & wait"
ENDS_SECONDS = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A real node, and deviceshare as a process of this machine."""
    with running(Options(real_node=True, devices=COUNT)) as sandbox:
        started = Cluster(sandbox)
        started.eventually(lambda: started.inventory() >= {"serviceaccount/default"})
        yield started


def of_kubelet(cluster: Cluster) -> Path:
    """The kubelet's directory, /var/lib/kubelet to itself."""
    return cluster.sandbox.layout.data / "kubelet"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """The GPUs as NVML shows them."""
    return Script(tmp_path_factory.mktemp("script") / "script")


@pytest.fixture(scope="module")
def uuids(cluster: Cluster, script: Script) -> Iterator[list[str]]:
    """Of the node's GPUs, by index; the device plugin offers them, and the node says so."""
    uuids = script.gpus(COUNT)
    directory = of_kubelet(cluster) / "device-plugins"
    with process(cluster, "plugin", "tests.node.device_plugin", directory, GPU, *uuids):
        cluster.eventually(lambda: cluster.get("node", "node-1")["status"]["allocatable"].get(GPU) == str(COUNT))
        yield uuids


@contextlib.contextmanager
def running_agent(cluster: Cluster, gpus: Script, directory: Path, *more: str) -> Iterator[None]:
    """The node's agent, which has reported."""
    flags = ["--node-name=node-1", f"--kubeconfig={cluster.sandbox.agent_kubeconfig('node-1')}", *more]
    flags += [f"--pod-resources={socket(of_kubelet(cluster))}", f"--bind=127.0.0.1:{free_ports(1)[0]}"]
    with process(cluster, "agent", "deviceshare", "agent", *flags, environment=gpus.environment(build(directory))):
        cluster.eventually(lambda: len(hardware(cluster).get("devices", [])) == COUNT)
        cluster.eventually(lambda: hardware(cluster).get("placeholders", False) == bool(more))
        yield


@pytest.fixture(autouse=True)
def _clear(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.clear()


def test_what_a_plugin_gave_to_a_pod_is_read_from_the_kubelet(cluster: Cluster, uuids: list[str]) -> None:
    """The plugin tells the container, and the kubelet tells us the same device."""
    assert ask(of_kubelet(cluster)) == []
    cluster.apply(plain("plain", 1), plain("two", 2), pod("none", STAY))
    one, two = (cluster.tells(name).strip("[]").split(",") for name in ("plain", "two"))

    assert len(one) == 1 and len(two) == 2 and {*one, *two} < set(uuids)
    assert ask(of_kubelet(cluster)) == [
        Allocated("default", "plain", GPU, tuple(one)),
        Allocated("default", "two", GPU, tuple(sorted(two))),
    ]


def test_a_group_gets_other_devices_than_a_plain_pod(
    cluster: Cluster, script: Script, uuids: list[str], tmp_path: Path
) -> None:
    """And the plain pod's once that is gone."""
    with running_agent(cluster, script, tmp_path):
        cluster.apply(plain("plain", 1))
        given = cluster.tells("plain").strip("[]")
        cluster.eventually(lambda: known(cluster) == {"default/plain": [uuids.index(given)]})

        cluster.apply(group("three", 3), pod("a", STAY, "three"), pod("b", STAY, "three"))
        told = cluster.tells("a")

        assert set(told.strip("[]").split(",")) == set(uuids) - {given}
        assert cluster.tells("b") == told
        cluster.apply(group("one", 1), pod("late", STAY, "one"))
        cluster.eventually(lambda: "FailedScheduling" in cluster.kubectl("get", "events", "-o", "jsonpath={..reason}"))
        cluster.kubectl("delete", "pod", "plain")
        assert cluster.tells("late") == f"[{given}]"


def test_with_placeholders_no_plain_pod_gets_a_groups_device(
    cluster: Cluster, script: Script, uuids: list[str], tmp_path: Path
) -> None:
    """Whoever comes first: the kubelet gives away what is left and no more. Without its placeholder a group says so."""
    keeper = plain("keeper", 2)
    keeper["metadata"]["labels"] = {PLACEHOLDER: "all"}
    with running_agent(cluster, script, tmp_path, "--placeholders=default"):
        cluster.apply(group("two", 2), pod("a", STAY, "two"))
        cluster.eventually(lambda: "left to the device plugin" in condition(cluster, "Bound")["message"])

        cluster.apply(keeper)
        kept = set(cluster.tells("keeper").strip("[]").split(","))
        assert set(cluster.tells("a").strip("[]").split(",")) == kept
        cluster.eventually(lambda: condition(cluster, "Healthy")["reason"] == "AsClaimed")

        cluster.apply(plain("one", 1), plain("other", 1), plain("toomany", 1))
        cluster.eventually(lambda: len(known(cluster)) == 3)
        assert {index for indices in known(cluster).values() for index in indices} == set(range(COUNT))
        assert {uuids[index] for index in known(cluster)["default/keeper"]} == kept
        cluster.eventually(lambda: "Insufficient" in cluster.kubectl("get", "events", "-o", "jsonpath={..message}"))

        cluster.kubectl("delete", "pod", "toomany")
        cluster.kubectl("delete", "pod", "keeper")
        cluster.eventually(lambda: condition(cluster, "Healthy")["reason"] == "DevicesNotReserved")


def condition(cluster: Cluster, type_: str) -> Json:
    """What the group says of itself."""
    found = cluster.get("sdg", "two").get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == type_), {"reason": "", "message": ""})


def plain(name: str, count: int) -> Json:
    """A pod that asks the device plugin."""
    return pod(name, STAY, container={"resources": {"limits": {GPU: str(count)}}})


def socket(kubelet: Path) -> Path:
    """Where it reports what plugins allocated."""
    return kubelet / "pod-resources" / "kubelet.sock"


def ask(kubelet: Path) -> list[Allocated]:
    return asyncio.run(ask_kubelet(socket(kubelet)))


def hardware(cluster: Cluster) -> Json:
    """What the agent has reported."""
    found: Json = cluster.get("nodedevices", "node-1").get("status", {}).get("hardware", {})
    return found


def known(cluster: Cluster) -> dict[str, list[int]]:
    """By pod, which devices plugins allocated, as the agent reported."""
    return {each["pod"]: each["indices"] for each in hardware(cluster).get("allocations", [])}


@contextlib.contextmanager
def process(
    cluster: Cluster, name: str, module: str, *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A Python program of this machine, for the length of a block."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    # It finds modules as this process does: the wheel's before the checkout's.
    modules = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})}
    with (cluster.sandbox.layout.logs / f"{name}.log").open("ab") as log:
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=modules)
    try:
        yield
        assert started.poll() is None, (cluster.sandbox.layout.logs / f"{name}.log").read_text()[-3000:]
    finally:
        started.terminate()
        started.wait(ENDS_SECONDS)
