"""A node: whether it is shared, ready, and rebooted since its agent's last report."""

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.object_meta import Condition, ObjectMeta
from deviceshare.domain.objects.quantities import Quantity
from deviceshare.domain.objects.taints import OUT_OF_SERVICE, Taint


class NodeSpec(Struct, frozen=True, gc=False, rename="camel"):
    """The part of a node's spec that matters for placement."""

    unschedulable: bool = False
    taints: list[Taint] = field(default_factory=list)


class NodeInfo(Struct, frozen=True, gc=False):
    boot_id: str = field(default="", name="bootID")


class NodeAddress(Struct, frozen=True, gc=False):
    """https://kubernetes.io/docs/reference/node/node-status/#addresses"""

    type: str = ""
    address: str = ""


class NodeStatus(Struct, frozen=True, gc=False, rename="camel"):
    """`capacity` is what device plugins report, `allocatable` what of it is healthy."""

    allocatable: dict[str, Quantity] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    node_info: NodeInfo = NodeInfo()
    capacity: dict[str, Quantity] = field(default_factory=dict)
    addresses: list[NodeAddress] = field(default_factory=list)


class Node(Struct, frozen=True, gc=False, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)

    @property
    def shared(self) -> bool:
        """Whether the node has the label by which its owner shares it."""
        return self.metadata.labels.get(contract.MODE_LABEL) == contract.MODE_SHARED

    @property
    def ready(self) -> bool:
        """Whether the kubelet reports the node Ready. A node without that condition is not ready."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def out_of_service(self) -> bool:
        """Whether somebody says that the node is down, so that none of its pods runs any more."""
        return any(taint.key == OUT_OF_SERVICE for taint in self.spec.taints)

    @property
    def address(self) -> str:
        """Its first internal IP address, or ""."""
        return next((each.address for each in self.status.addresses if each.type == "InternalIP"), "")


def same_boot(node: Node, hardware: Hardware) -> bool:
    """Whether the node is known to be in the boot in which its agent reported."""
    return bool(hardware.boot_id) and node.status.node_info.boot_id == hardware.boot_id


def rebooted(node: Node, hardware: Hardware) -> bool:
    """Whether the node rebooted since its agent reported: the numbers may mean other devices now."""
    booted = node.status.node_info.boot_id
    return bool(booted and hardware.boot_id) and booted != hardware.boot_id
