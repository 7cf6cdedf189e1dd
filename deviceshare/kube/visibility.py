"""What of the cluster a person's rights let a command see, and what stands in for the rest.

Without the right to list nodes, the ledgers say which there are; without that to list the pods of all namespaces, the
groups' statuses name the pods that have devices.
"""

from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node, NodeStatus
from deviceshare.domain.objects.object_decoder import Condition, ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.kube.cache import Cache
from deviceshare.loops.ports import Mirror, ObjectChange


class Visibility(NamedTuple):
    """Which nodes, pods and namespaces can be listed."""

    nodes: bool = True
    namespace: str = ""
    """The one whose pods are seen; "" for all."""
    pods: bool = True
    """Whether any are."""
    namespaces: bool = True

    @property
    def whole(self) -> bool:
        """Whether no node and no pod is hidden."""
        return self.nodes and self.pods and not self.namespace

    def shows(self, pod: str) -> bool:
        """Whether the pod `namespace/name` is listed, if it exists."""
        return self.pods and self.namespace in ("", pod.partition("/")[0])


WHOLE_CLUSTER = Visibility()


def without_selector(group: Group) -> Group:
    """The group as it is judged where no label of a node is known."""
    return replace(group, spec=replace(group.spec, node_selector={})) if group.spec.node_selector else group


def without_affinity(pod: Pod) -> Pod:
    """The pod, likewise."""
    if not pod.spec.node_selector and not pod.spec.affinity:
        return pod
    return replace(pod, spec=replace(pod.spec, node_selector=None, affinity=None))


class NodesOfLedgers(Cache[Node]):
    """Nodes known by their ledgers alone: each is taken for shared and ready, and has no other label."""

    synced = True

    def __init__(self, ledgers: Mirror[NodeDevices]) -> None:
        super().__init__()
        ledgers.subscribe(self._on_ledger)

    def _on_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        if change.new is None:
            self.remove(change.key, self.version)
        elif change.old is None:
            self.apply(_node(change.key))


def _node(name: str) -> Node:
    meta = ObjectMeta(name=name, uid=name, resource_version="1", labels={contract.MODE_LABEL: contract.MODE_SHARED})
    return Node(metadata=meta, status=NodeStatus(conditions=[Condition("Ready", "True")]))


class PodsOfStatuses:
    """Has a fleet know, of pods that can't be listed, those that the groups' statuses name."""

    def __init__(self, fleet: Fleet, groups: Mirror[Group], visibility: Visibility) -> None:
        self._fleet = fleet
        self._visibility = visibility
        groups.subscribe(self._on_group)

    def _on_group(self, change: ObjectChange[Group]) -> None:
        if change.old:
            self._set(change.old, "")
        if change.new:
            self._set(change.new, change.new.node)

    def _set(self, group: Group, node: str) -> None:
        for pod in group.status.allocated_pods:
            if not self._visibility.shows(pod):
                self._fleet.set_living(group.uid, pod, node)
