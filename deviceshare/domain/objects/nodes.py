"""Nodes as deviceshare sees them: whether one is shared, is ready, and has rebooted."""

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.object_meta import Condition, ObjectMeta
from deviceshare.domain.objects.quantities import Quantity


class NodeSpec(Struct, frozen=True, rename="camel"):
    """The part of a node's spec that matters for placement."""

    unschedulable: bool = False


class NodeInfo(Struct, frozen=True):
    boot_id: str = field(default="", name="bootID")


class NodeStatus(Struct, frozen=True, rename="camel"):
    """`capacity` is what device plugins report, `allocatable` what of it is healthy."""

    allocatable: dict[str, Quantity] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    node_info: NodeInfo = NodeInfo()
    capacity: dict[str, Quantity] = field(default_factory=dict)


class Node(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)

    @property
    def shared(self) -> bool:
        """Whether the node's owner lets deviceshare use it."""
        return self.metadata.labels.get(contract.MODE_LABEL) == contract.MODE_SHARED

    @property
    def ready(self) -> bool:
        """Whether the kubelet reports the node Ready. A node that reports nothing is taken as not ready."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


def rebooted(node: Node, hardware: Hardware) -> bool:
    """Whether the node was started anew since its agent reported: the numbers may mean other devices now."""
    booted = node.status.node_info.boot_id
    return bool(booted and hardware.boot_id) and booted != hardware.boot_id
