"""`deviceshare top`, on an API server that passes on what agents answer."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from deviceshare.cli.main import main
from deviceshare.domain import contract
from tests.unit.cli.servers import served
from tests.unit.kube.scripted import status

Json = dict[str, Any]
GPU = "nvidia.com/gpu"
UNREACHABLE = "error trying to reach service: dial tcp 10.0.0.9:9410: connect: connection refused"


class MonitoredCluster:
    """The API server: ledgers, agents' pods, and what each agent answers."""

    def __init__(self) -> None:
        self.ledgers: list[Json] = []
        self.pods: list[Json] = []
        self.answers: dict[str, Json] = {}
        """By pod; one that is missing refuses connections."""
        self.forbidden = False

    def node(self, name: str, *claims: Json, agent: str = "Running", usage: Json | None = None) -> None:
        """A shared node, with an agent in this phase ("" for none) that answers `usage`."""
        spec = {"claims": {f"uid-{each['group']}": each for each in claims}}
        self.ledgers.append({"metadata": {"name": name}, "spec": spec, "status": {}})
        if agent:
            metadata = {"name": f"agent-{name}", "namespace": contract.NAMESPACE}
            self.pods.append({"metadata": metadata, "spec": {"nodeName": name}, "status": {"phase": agent}})
        if usage:
            self.answers[f"agent-{name}"] = {"node": name, **usage}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers as an API server does."""
        pods = f"/api/v1/namespaces/{contract.NAMESPACE}/pods"
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        if request.path == f"/apis/{contract.API_GROUP}/{contract.API_VERSION}/nodedevices":
            return web.json_response({"metadata": {}, "items": self.ledgers})
        if request.path == pods:
            assert request.query["labelSelector"] == f"app.kubernetes.io/name={contract.AGENT}"
            return web.json_response({"metadata": {}, "items": self.pods})
        agent, _, rest = request.path.removeprefix(f"{pods}/").partition(":")
        assert rest == f"{contract.AGENT_PORT}/proxy/usage"
        if self.forbidden:
            return web.json_response({**status(403, "Forbidden"), "message": "pods/proxy is forbidden"}, status=403)
        if agent not in self.answers:
            return web.json_response({**status(503, "ServiceUnavailable"), "message": UNREACHABLE}, status=503)
        return web.json_response(self.answers[agent])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MonitoredCluster]:
    """It is served while the test runs."""
    cluster = MonitoredCluster()
    with served(cluster.handle, tmp_path):
        yield cluster


def top(directory: Path, *arguments: str) -> Result:
    """`deviceshare top ARGUMENTS`."""
    return CliRunner().invoke(main, ["top", "--kubeconfig", str(directory / "kubeconfig"), *arguments])


def claim(group: str, *indices: int) -> Json:
    """A group's claim, in a ledger."""
    return {"group": group, "devices": [{"resource": GPU, "index": index} for index in indices]}


def device(index: int, *processes: Json, **more: Any) -> Json:
    """A device, in an agent's answer."""
    numbers = {"memoryUsedMib": 30000, "memoryTotalMib": 81559, "utilization": 93, "model": "NVIDIA H100"}
    return {"resource": GPU, "index": index, **numbers, **more, "processes": list(processes)}


def process(pid: int, mib: int, pod: str = "default/train", **more: Any) -> Json:
    """A process, in an agent's answer."""
    return {"pid": pid, "name": "python", "memoryMib": mib, "pod": pod, "container": "main"} | more


def rows(result: Result) -> list[list[str]]:
    """The table's lines, in words."""
    return [line.split() for line in result.output.splitlines()[1:]]


def test_devices_and_processes_of_every_node_are_shown(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """Each device with who holds it, and its processes with whose they are, the greatest first."""
    small, great = process(4711, 100), process(4712, 29000)
    cluster.node("node-2", usage={"devices": [device(0, utilization=None, memoryUsedMib=0)]})
    cluster.node("node-1", claim("training", 0), usage={"devices": [device(0, small, great), device(1)]})

    shown = top(tmp_path)

    assert shown.exit_code == 0, shown.output
    assert rows(shown) == [
        ["node-1", "0", "93%", "30000", "/", "81559", "training", "NVIDIA", "H100"],
        ["29000", "default/train", "main", "python", "4712"],
        ["100", "default/train", "main", "python", "4711"],
        ["1", "93%", "30000", "/", "81559", "-", "NVIDIA", "H100"],
        ["node-2", "0", "-", "0", "/", "81559", "-", "NVIDIA", "H100"],
    ]


def test_a_trespass_and_a_broken_device_are_marked(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """And a process outside of any pod is named as such."""
    stranger = process(9, 50, name="[odd]\x1b[2J", pod="", container="", trespass=True)
    cluster.node("node-1", claim("training", 0), usage={"devices": [device(0, stranger)]})
    part = {"resource": GPU, "index": 0, "uuid": "GPU-0", "unhealthy": "Xid 79: GPU has fallen off the bus"}
    cluster.ledgers[0]["status"] = {"hardware": {"devices": [part]}}

    first, second = rows(top(tmp_path))

    assert " ".join(first).endswith("Xid 79: GPU has fallen off the bus")
    assert second == ["50", "no", "pod", "[odd]\\x1b[2J", "9", "trespass"]


def test_who_has_more_than_its_share_is_marked(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """Its container, or the whole pod where only that is known; nobody else on the device."""
    processes = [
        process(1, 900, pod="ns/greedy", container="main"),
        process(2, 800, pod="ns/greedy", container="side"),
        process(3, 700, pod="ns/unknown", container=""),
        process(4, 600, pod="ns/modest", container="main"),
    ]
    shares = [
        {"pod": "ns/greedy", "container": "main", "usedMib": 900, "limitMib": 100, "exceeded": True},
        {"pod": "ns/modest", "container": "main", "usedMib": 600, "limitMib": 700},
        {"pod": "ns/unknown", "usedMib": 700, "limitMib": 100, "exceeded": True},
    ]
    cluster.node("node-1", usage={"devices": [device(0, *processes, shares=shares)]})

    marked = {line[1] + ":" + line[2] for line in rows(top(tmp_path))[1:] if "share" in line}
    assert marked == {"ns/greedy:main", "ns/unknown:python"}
    [read] = json.loads(top(tmp_path, "-o", "json").output)["nodes"]
    assert read["devices"][0]["shares"] == shares


def test_nodes_that_can_not_be_asked_are_named_with_the_reason(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """What others do is shown all the same."""
    cluster.node("node-1", usage={"devices": [device(0)]})
    cluster.node("node-2")
    cluster.node("node-3", agent="Pending")
    cluster.node("node-4", agent="")

    shown = top(tmp_path)

    assert shown.exit_code == 0
    assert "node-2: its agent agent-node-2 doesn't answer: " in shown.output
    assert UNREACHABLE in shown.output
    assert "node-3: its agent agent-node-3 is Pending" in shown.output
    assert "node-4: no agent runs there" in shown.output


def test_an_agent_that_is_being_replaced_is_not_the_one_that_is_asked(
    cluster: MonitoredCluster, tmp_path: Path
) -> None:
    """Both are listed while one ends."""
    cluster.node("node-1", usage={"devices": [device(0)]})
    old: Json = {"name": "old", "namespace": contract.NAMESPACE, "deletionTimestamp": "2026-11-21T00:00:00Z"}
    cluster.pods.append({"metadata": old, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}})

    assert top(tmp_path).exit_code == 0


def test_where_no_agent_answers_the_command_fails(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """And says where to read on."""
    cluster.node("node-1", agent="")

    shown = top(tmp_path)

    assert shown.exit_code == 1
    assert "docs/agent.md" in shown.output


def test_one_node_can_be_asked_alone(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """Others don't keep it waiting."""
    cluster.node("node-1", usage={"devices": [device(0)]})
    cluster.node("node-2")

    assert len(rows(top(tmp_path, "node-1"))) == 1
    unknown = top(tmp_path, "node-3")
    assert unknown.exit_code == 1
    assert "node-3 is not a shared node" in unknown.output


def test_programs_get_json(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """With the holders and the reasons in it."""
    cluster.node("node-1", claim("training", 0), usage={"time": "now", "devices": [device(0, process(1, 2))]})
    cluster.node("node-2", agent="")

    first, second = json.loads(top(tmp_path, "-o", "json").output)["nodes"]

    [only] = first["devices"]
    assert (only["groups"], only["processes"][0]["pod"]) == (["training"], "default/train")
    assert second == {"node": "node-2", "silent": "no agent runs there"}


def test_a_watch_shows_it_again_and_ends_well(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """Until Ctrl-C; where there is no terminal, one below the other."""
    cluster.node("node-1", usage={"devices": [device(0)]})
    command = [sys.executable, "-m", "deviceshare", "top", "--watch", "--kubeconfig", str(tmp_path / "kubeconfig")]
    modules = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | modules) as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(2)]
        cluster.answers["agent-node-1"]["devices"].append(device(1))
        while not lines[-1].lstrip().startswith("1 "):
            lines.append(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    assert lines[1].startswith("node-1  0 ")


def test_who_may_not_reach_pods_is_told_so(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """Once, not for each node."""
    cluster.node("node-1")
    cluster.forbidden = True

    refused = top(tmp_path)

    assert refused.exit_code == 1
    assert refused.output.count("pods/proxy is forbidden") == 1


def test_a_cluster_without_shared_nodes_is_told_how_to_share_one(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """The first thing that a newcomer sees."""
    empty = top(tmp_path)

    assert empty.exit_code == 1
    assert "kubectl label node NODE deviceshare.io/mode=shared" in empty.output


def test_turns_are_shown_below_the_devices(cluster: MonitoredCluster, tmp_path: Path) -> None:
    """Which pod has each, and which wait; a holder that lost contact and a queue that is held up say so."""
    held = {"pod": "default/a", "seconds": 840.0, "asked": True}
    lost = {"pod": "default/c", "seconds": 5.0, "lost": 3.0}
    waits = [{"pod": "default/b", "seconds": 7.0, "priority": 5}]
    turns = [
        {"group": "team", "holder": held, "waiting": waits},
        {"group": "far", "holder": lost},
        {"group": "new", "waiting": waits},
    ]
    cluster.node("node-1", usage={"devices": [device(0)], "turns": turns})

    shown = top(tmp_path).output

    assert "team     node-1  default/a  has it (asked to end)" in shown
    assert "14m" in shown and "default/b  waits" in shown
    assert "lost contact 3 s ago" in shown
    assert "none given: a former agent's may not have ended" in shown
    [node] = json.loads(top(tmp_path, "-o", "json").output)["nodes"]
    assert node["turns"][0]["holder"] == held
