"""API objects: reads of what may be gone, conditional annotations, Events' subjects, nodes shared by others' labels."""

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node, SharingLabels, may_be_shared
from deviceshare.domain.objects.pod_spec import TERMINAL
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS, SHARED_NODES
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


class LabelledCluster:
    """Implements the port `Cluster` over another one, whose nodes are shared by other systems' labels, too (nodes.py).

    A list of the shared nodes lists all of them there, as a selector can't say "or".
    """

    def __init__(self, cluster: Cluster, labels: SharingLabels) -> None:
        self._cluster = cluster
        self._labels = labels
        # Nodes aren't written.
        self.create = cluster.create
        self.patch = cluster.patch
        self.delete = cluster.delete
        self.bind = cluster.bind
        self.evict = cluster.evict

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return self._seen(kind, await self._cluster.get(kind, name, namespace))

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        shared = bool(self._labels) and kind.plural == NODES.plural and label_selector == SHARED_NODES
        selector = "" if shared else label_selector
        found = await self._cluster.list(
            kind, namespace=namespace, label_selector=selector, field_selector=field_selector
        )
        seen = [self._seen(kind, obj) for obj in found]
        return [each for each in seen if may_be_shared(each)] if shared else seen

    def _seen(self, kind: Kind[T], obj: T) -> T:
        node: Any = obj
        return self._labels(node) if kind.plural == NODES.plural else obj
