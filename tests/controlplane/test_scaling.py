"""Autoscalers add nodes for what waits, by the pods that they are shown; here a loop of the test's own plays one.

As the cluster autoscaler does, it takes pods with `PodScheduled=False` and the reason `Unschedulable`, and adds a node
where none that is there matches: by resource, node selector and required node affinity.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceshare_sandbox import Options, Sandbox, running
from deviceshare_sandbox.simulated_nodes import node
from tests.controlplane.pool import GPU, SCHEDULER

API = "deviceshare.io/v1alpha1"
HOME = "deviceshare-system"
SHARED = "deviceshare.io/mode"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """With a node of two GPUs."""
    program = str(Path(__file__).with_name("hurried.py"))
    with running(Options(nodes=1, devices=2, scaling_pods=True, program=program)) as started:
        yield started


def kubectl(cluster: Sandbox, *arguments: str, stdin: str | None = None) -> str:
    done = cluster.kubectl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(cluster: Sandbox, *what: str) -> list[Json]:
    found: list[Json] = json.loads(kubectl(cluster, "get", *what, "-o", "json"))["items"]
    return found


class Autoscaler:
    """Adds a node of two GPUs for each pod that fits on none, unless one that it added has room for it."""

    def __init__(self, cluster: Sandbox) -> None:
        self._cluster = cluster
        self.added: list[str] = []

    def look(self) -> None:
        nodes = listed(self._cluster, "nodes")
        used: dict[str, int] = {}
        for pod in listed(self._cluster, "pods", "-n", HOME, "-l", "deviceshare.io/scaling"):
            conditions = pod["status"].get("conditions", [])
            if not any(c["type"] == "PodScheduled" and c["reason"] == "Unschedulable" for c in conditions):
                continue
            wanted = int(pod["spec"]["containers"][0]["resources"].get("limits", {}).get(GPU, 0))
            fits = next((n for n in map(self._name, nodes) if self._fits(pod, n, nodes, wanted, used)), None)
            name = fits or self._add(nodes)
            used[name] = used.get(name, 0) + wanted

    def _name(self, node: Json) -> str:
        name: str = node["metadata"]["name"]
        return name

    def _fits(self, pod: Json, name: str, nodes: list[Json], wanted: int, used: dict[str, int]) -> bool:
        [there] = [each for each in nodes if self._name(each) == name]
        required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [term] = required["nodeSelectorTerms"]
        labels = there["metadata"]["labels"]
        barred = any(labels.get(each["key"]) in each["values"] for each in term["matchExpressions"])
        selected = labels.items() >= pod["spec"]["nodeSelector"].items()
        free = int(there["status"]["allocatable"].get(GPU, 0)) - used.get(name, 0)
        return selected and not barred and free >= wanted

    def _add(self, nodes: list[Json]) -> str:
        name = f"added-{len(self.added)}"
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            **node(name, Options(devices=2), self._cluster.plan.binaries.version),
        }
        kubectl(self._cluster, "create", "-f", "-", stdin=json.dumps(body))
        kubectl(self._cluster, "patch", "node", name, "--type=merge", "-p", '{"spec": {"taints": null}}')
        self.added.append(name)
        nodes.append(body)
        return name


def a_pod(name: str, *, percent: int = 0, group: str = "") -> Json:
    container: Json = {"name": "main", "image": "busybox"}
    if percent:
        container["resources"] = {"limits": {"deviceshare.io/gpu-percent": percent}}
    annotations = {"deviceshare.io/group": group} if group else {}
    spec = {"schedulerName": SCHEDULER, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def a_group(name: str) -> Json:
    spec = {"resources": {GPU: 2}}
    return {"apiVersion": API, "kind": "SharedDeviceGroup", "metadata": {"name": name}, "spec": spec}


def test_nodes_come_for_a_group_and_for_shares_and_no_more_than_they_need(cluster: Sandbox) -> None:
    """The group of two GPUs has one, three shares of 60 % have two; when all run, no scaling pod is left."""
    for each in (a_group("team"), a_group("first"), a_pod("first", group="first")):
        kubectl(cluster, "create", "-f", "-", stdin=json.dumps(each))
    deadline = time.monotonic() + 60
    while listed(cluster, "pods")[0]["status"]["phase"] != "Running":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    waiting = [a_pod("team", group="team"), *(a_pod(f"share-{number}", percent=60) for number in range(3))]
    for each in waiting:
        kubectl(cluster, "create", "-f", "-", stdin=json.dumps(each))
    scaler, deadline = Autoscaler(cluster), time.monotonic() + 150
    while {pod["status"]["phase"] for pod in listed(cluster, "pods")} != {"Running"}:
        assert time.monotonic() < deadline, kubectl(cluster, "get", "pods", "-A", "-o", "wide")
        scaler.look()
        time.sleep(1)
    assert len(scaler.added) == 3
    while listed(cluster, "pods", "-n", HOME, "-l", "deviceshare.io/scaling"):
        assert time.monotonic() < deadline
        time.sleep(0.5)
