"""API objects: reads of what may be gone, conditional annotations, and the subjects of Events."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pod_spec import TERMINAL
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Cluster, Kind, NotFound, Subject

T = TypeVar("T")


async def find(cluster: Cluster, kind: Kind[T], name: str, namespace: str = "") -> T | None:
    """The object, read fresh; None where there is no such object. Raises ApiError."""
    try:
        return await cluster.get(kind, name, namespace)
    except NotFound:
        return None


async def annotate(cluster: Cluster, pod: Pod, annotations: Mapping[str, str | None]) -> Pod | None:
    """The pod with these annotations changed; None where it is gone.

    Raises:
        Conflict: somebody else wrote the pod since it was read.
        ApiError: the pod could not be written.
    """
    meta = pod.metadata
    body = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
    try:
        return await cluster.patch(PODS, meta.name, body, namespace=meta.namespace)
    except NotFound:
        return None


def says_the_same(old: Pod, new: Pod) -> bool:
    """Whether nothing of the pod has changed by which anything is decided here.

    Most changes of a pod that runs are its kubelet's, of its conditions and of its containers' statuses; and of one
    that waits kube-scheduler's, of the words of its refusal.
    """
    return (
        old.spec == new.spec
        and replace(old.metadata, resource_version="") == replace(new.metadata, resource_version="")
        and (old.status == new.status or (old.left_out == new.left_out and _decisive(old) == _decisive(new)))
    )


def _decisive(pod: Pod) -> object:
    status, refusal = pod.status, pod.refusal
    if pod.placed_on or status.phase in TERMINAL:
        return status
    every = (status.container_statuses, status.init_container_statuses)
    allocated = [(each.name, each.allocated_resources) for statuses in every for each in statuses or ()]
    running = {"container_statuses": None, "init_container_statuses": None, "ephemeral_container_statuses": None}
    return replace(status, conditions=[], **running), allocated, refusal and refusal.reason


_KINDS: dict[type, Kind[Any]] = {kind.type: kind for kind in (GROUPS, NODE_DEVICES, PODS)}


def subject_of(obj: Group | NodeDevices | Node | Pod) -> Subject:
    """The object as the subject of an Event."""
    meta = obj.metadata
    if isinstance(obj, Node):
        return node_subject(meta.name)
    return Subject(_KINDS[type(obj)], meta.name, meta.namespace, meta.uid)


def node_subject(name: str) -> Subject:
    """Events about nodes carry the name as UID, as the kubelet's do: `kubectl describe node` looks for that."""
    return Subject(NODES, name, uid=name)
