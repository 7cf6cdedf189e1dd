"""What the kubelet gives the container runtime is what the Binding brought, on one real kubelet and containerd.

NVIDIA's plugin is not here; what it would read is: the annotations with which the pod's sandbox was made.
"""

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Iterator

import msgspec
import pytest

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare_sandbox import Options, running
from deviceshare_sandbox.machine import RUNTIME_SOCKET, entering
from tests.node.cluster import GPU, TELL, Cluster, Json, group, pod

KIND = vendors.NVIDIA.kinds[0]
COUNT = 4
STAY = f"{TELL}; sleep 3600 & wait"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A real node whose agent says that devices are injected by CDI there."""
    with running(Options(real_node=True, devices=COUNT)) as sandbox:
        started = Cluster(sandbox)
        started.eventually(
            lambda: started.inventory() >= {"serviceaccount/default", "nodedevices.deviceshare.io/node-1"}
        )
        report(started)
        started.eventually(lambda: words(started) == KIND)
        yield started


def report(cluster: Cluster, *broken: int) -> None:
    """What the node's agent would say."""
    parts = [Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79" if n in broken else "") for n in range(COUNT)]
    body = {"status": {"hardware": msgspec.to_builtins(Hardware(devices=parts, runtime="cdi", cdi_kinds=[KIND]))}}

    async def apply() -> None:
        async with connect(str(cluster.sandbox.kubeconfig)) as connection:
            await Api(connection).apply(NODE_DEVICES, "node-1", body, manager=contract.AGENT, subresource="status")

    asyncio.run(apply())


def words(cluster: Cluster) -> str:
    """In which the node is told NVIDIA's devices."""
    return str(cluster.get("ndev", "node-1")["status"].get("handover", {}).get("nvidia", ""))


def sandbox_annotations(cluster: Cluster, name: str) -> Json:
    """What containerd was given of a pod when its sandbox was made, and gives to its plugins since.

    It is empty until the sandbox is made: the API server knows a pod before its node does.
    """
    uid = cluster.get("pod", name)["metadata"]["uid"]
    labels = f'labels."io.kubernetes.pod.uid"=={uid},labels."io.cri-containerd.kind"==sandbox'
    ids = ctr(cluster, "containers", "list", "-q", labels).split()
    if not ids:
        return {}
    [id] = ids
    extensions = json.loads(ctr(cluster, "containers", "info", id))["Extensions"]
    stored = json.loads(base64.b64decode(extensions["io.cri-containerd.sandbox.metadata"]["value"]))
    annotations: Json = stored["Metadata"]["Config"]["annotations"]
    return annotations


def ctr(cluster: Cluster, *arguments: str) -> str:
    """Asks the node's containerd."""
    layout, programs = cluster.sandbox.layout, cluster.sandbox.plan.programs
    assert programs is not None
    command = [*entering(layout), programs.ctr, f"--address={RUNTIME_SOCKET}", "--namespace=k8s.io", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ)).stdout


def test_what_the_binding_brought_is_what_the_sandbox_and_the_container_get(cluster: Cluster) -> None:
    """The annotation that NVIDIA's plugin reads, and the variable that its runtime reads; both in the same words."""
    cluster.apply(group("two", 2), pod("a", STAY, "two"))
    names = f"{KIND}=GPU-0,{KIND}=GPU-1"
    assert cluster.tells("a") == f"[{names}]"
    assert cluster.get("pod", "a")["metadata"]["annotations"][vendors.NVIDIA.cdi_annotation] == names
    assert sandbox_annotations(cluster, "a")[vendors.NVIDIA.cdi_annotation] == names
    cluster.clear()


def test_a_container_that_restarts_has_the_sandbox_of_before(cluster: Cluster) -> None:
    """Also after a change of the pod's annotations: so a plugin gives it the devices that the pod was bound with."""
    cluster.apply(
        group("one", 1), pod("a", f"{TELL}; test -e /tmp/again || (touch /tmp/again; sleep 1); exit 1", "one")
    )
    annotation = vendors.NVIDIA.cdi_annotation
    before = cluster.eventually(lambda: sandbox_annotations(cluster, "a"))[annotation]
    # As an older deviceshare would tell a pod of other devices: nothing of it reaches the sandbox.
    changed = json.dumps({"metadata": {"annotations": {annotation: f"{KIND}=GPU-3"}}})
    cluster.kubectl("patch", "pod", "a", "--type=merge", "-p", changed, identity="deviceshare")
    count = restarts(cluster)
    cluster.eventually(lambda: restarts(cluster) > count, seconds=200)  # the kubelet pauses for up to 160 s by then
    assert sandbox_annotations(cluster, "a")[annotation] == before == f"{KIND}=GPU-0"
    cluster.clear()


def restarts(cluster: Cluster) -> int:
    """Of the pod's container."""
    statuses = cluster.get("pod", "a")["status"].get("containerStatuses", [{}])
    return int(statuses[0].get("restartCount", 0))
