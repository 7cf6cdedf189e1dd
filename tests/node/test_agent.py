"""The agent on a real node: what it reports, what pods are told by it, and whose a process is by real control groups.

The tests share one release; the last takes it away.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from deviceshare.cli.main import main
from deviceshare_sandbox.nvml import Script
from tests.node.agents import IMAGE, Agent, release_with_agents
from tests.node.cluster import GPU, TELL, Cluster, Json, group, pod
from tests.node.processes import process_of, running
from tests.node.release import LEASES, Parts, Release

STAY = f"{TELL}; sleep 3600 & wait"
SEES = "trap 'exit 0' TERM; deviceshare smi; echo all; sleep 3600 & wait"
REST_SECONDS = 20
MEMORY_MIB = 80


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """Four GPUs."""
    script = Script(tmp_path_factory.mktemp("script") / "script")
    script.gpus(4, nvlink_pairs=True)
    return script


@pytest.fixture(scope="module")
def release(
    cluster: Cluster, release_parts: Parts, script: Script, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Release]:
    """The chart with agents, all ready."""
    with release_with_agents(cluster, release_parts, script, tmp_path_factory.mktemp("nvml")) as installed:
        yield installed


@pytest.fixture(autouse=True)
def _installed(clear: None) -> None:
    """Every test here needs the release, and leaves it as it was."""


@pytest.fixture
def agent(cluster: Cluster, release: Release, script: Script) -> Agent:
    """It has reported the GPUs."""
    found = Agent(cluster, script)
    cluster.eventually(lambda: len(found.hardware().get("devices", [])) == 4)
    return found


@pytest.fixture
def uuids(agent: Agent) -> list[str]:
    """Of the node's GPUs, by index."""
    return [each["uuid"] for each in sorted(agent.hardware()["devices"], key=lambda each: each["index"])]


def test_an_agent_reports_what_its_node_has(agent: Agent) -> None:
    """Through the webhook, under the name of its own ServiceAccount."""
    hardware = agent.hardware()

    assert hardware["driver"] == "550.54.15"
    assert [each["model"] for each in hardware["devices"]] == ["NVIDIA H100 80GB HBM3"] * 4
    assert {"resource": GPU, "a": 0, "b": 1, "kind": "nvlink", "lanes": 4} in hardware["links"]
    # The kubelet's socket could be read, and no device plugin gave anything away.
    assert hardware["allocations"] == []
    assert hardware["bootId"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_pods_are_told_uuids(cluster: Cluster, uuids: list[str]) -> None:
    """Inside their containers; people go on seeing indices."""
    cluster.apply(group("pair", 2))
    cluster.apply(pod("a", STAY, "pair"), pod("b", STAY, "pair"))

    assert cluster.tells("a") == cluster.tells("b") == f"[{uuids[0]},{uuids[1]}]"
    assert cluster.get("sdg", "pair")["status"]["selectedDevices"] == {GPU: "0,1"}


def test_top_knows_whose_a_process_is(cluster: Cluster, agent: Agent, script: Script, uuids: list[str]) -> None:
    """By the control groups that kubelet and containerd made, asked through the API server's proxy."""
    cluster.apply(group("training", 1))
    cluster.apply(pod("member", STAY, "training"), pod("stranger", STAY))
    held = uuids.index(cluster.tells("member").strip("[]"))
    cluster.tells("stranger")
    member, stranger = process_of("member"), process_of("stranger")
    script.use(uuids[held], used_mib=30000, percent=93)
    script.processes(uuids[held], {member: 20000, stranger: 9000})
    agent.follow()

    found = cluster.eventually(lambda: top(cluster)["devices"][held], lambda device: trespasses(device) == [stranger])

    processes = {each["pid"]: each for each in found["processes"]}
    assert (found["groups"], found["utilization"], found["memoryUsedMib"]) == (["training"], 93, 30000)
    assert (processes[member]["pod"], processes[member]["container"]) == ("default/member", "main")
    assert (processes[stranger]["pod"], processes[stranger]["memoryMib"]) == ("default/stranger", 9000)
    events = cluster.eventually(lambda: cluster.get("events", "--field-selector", "reason=Trespass"))
    assert events[0]["involvedObject"]["name"] == "stranger"
    script.processes(uuids[held], {})
    agent.follow()
    cluster.eventually(lambda: trespasses(top(cluster)["devices"][held]) == [])


def test_smi_shows_a_pods_own_devices(cluster: Cluster, uuids: list[str]) -> None:
    """In a container, without any access to the cluster, though nothing keeps its NVML from seeing all four."""
    own = {"image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", SEES]}
    cluster.apply(group("looking", 2))
    cluster.apply(pod("looker", "", "looking", container=own, automountServiceAccountToken=False))

    said = cluster.eventually(lambda: cluster.sandbox.kubectl("logs", "looker").stdout, lambda text: "\nall\n" in text)

    assert [line.split()[0] for line in said.splitlines()[1:]] == ["0", "1", "all"]


def test_a_broken_gpu_is_not_handed_out(cluster: Cluster, agent: Agent, script: Script, uuids: list[str]) -> None:
    """An Xid of the GPU's marks it while the agent runs; an operator's word takes the mark away."""
    script.xid(uuids[0], 79)
    agent.follow()
    broken = cluster.eventually(lambda: agent.hardware()["devices"][0], lambda device: device.get("unhealthy"))
    cluster.apply(group("sound", 2))
    cluster.apply(pod("well", STAY, "sound"))

    assert "Xid 79" in broken["unhealthy"]
    assert uuids[0] not in cluster.tells("well")
    finding = f"{broken['uuid']}@{broken['since']}"
    cluster.kubectl("annotate", "ndev", "node-1", f"deviceshare.io/recovered={finding}")
    cluster.eventually(lambda: "unhealthy" not in agent.hardware()["devices"][0])


def test_an_agent_at_rest_needs_next_to_nothing(agent: Agent) -> None:
    """Its memory is bounded here; what it takes of a processor is printed, as processors differ."""
    process = running("DEVICESHARE_NODE_NAME=node-1")  # its host name is the node's
    before = seconds(process)
    time.sleep(REST_SECONDS)
    used = 100 * (seconds(process) - before) / REST_SECONDS
    resident = int((process / "status").read_text().partition("VmRSS:")[2].split()[0]) / 1024

    print(f"the agent at rest: {used:.2f}% of a core, {resident:.0f} MiB")
    assert resident < MEMORY_MIB


def test_an_uninstall_takes_the_agents_along(cluster: Cluster, release: Release) -> None:
    """Roles, accounts and pods; what they reported stays with the NodeDevices."""
    release.uninstall()
    kinds = ("devicequotas", "nodedevices", "shareddevicegroups")
    kept = {f"customresourcedefinition.apiextensions.k8s.io/{kind}.deviceshare.io" for kind in kinds}
    # The API server's own, for as long as there are CRDs of the group.
    kept |= LEASES | {"nodedevices.deviceshare.io/node-1", "apiservice.apiregistration.k8s.io/v1alpha1.deviceshare.io"}

    cluster.eventually(lambda: cluster.inventory() - release.before, lambda left: left == kept)


def top(cluster: Cluster) -> Json:
    """What `deviceshare top -o json` tells of the node."""
    done = CliRunner().invoke(main, ["top", "--kubeconfig", str(cluster.sandbox.kubeconfig), "-o", "json"])
    assert done.exit_code == 0, done.output
    [node] = json.loads(done.stdout)["nodes"]
    found: Json = node
    return found


def trespasses(device: Json) -> list[int]:
    """The processes on it that are marked."""
    return [each["pid"] for each in device.get("processes", []) if each.get("trespass")]


def seconds(process: Path) -> float:
    """The time that it has had of a processor: proc_pid_stat(5), the 14th and 15th field."""
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
