"""A node as deviceshare sees it: does it take part, and which devices does it offer?"""

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.devices import Device, Devices, devices_of
from deviceshare.domain.hardware import Hardware
from deviceshare.domain.meta import Condition, ObjectMeta


class NodeSpec(Struct, frozen=True, rename="camel"):
    """The part of a node's spec that matters for placement."""

    unschedulable: bool = False


class NodeInfo(Struct, frozen=True):
    boot_id: str = field(default="", name="bootID")


class NodeStatus(Struct, frozen=True, rename="camel"):
    """`allocatable` maps resource names to Kubernetes quantities; device counts are plain integers."""

    allocatable: dict[str, str] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    node_info: NodeInfo = NodeInfo()


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


def inventory(node: Node) -> dict[str, int]:
    """How many devices of each known resource the node has.

    The annotation wins over `allocatable`, resource by resource: it is the owner's word for a node where no device
    plugin runs. Entries that can't be read are left out here; `inventory_faults` names them.
    """
    counts = {}
    for resource, quantity in node.status.allocatable.items():
        if contract.vendor_of(resource) and quantity.isdecimal():
            counts[resource] = int(quantity)
    for resource, quantity in _annotated(node):
        if contract.vendor_of(resource) and quantity.isdecimal():
            counts[resource] = int(quantity)
    return {resource: count for resource, count in sorted(counts.items()) if count > 0}


def offered(node: Node, hardware: Hardware) -> Devices:
    """The devices the node offers: the annotation's, else those that its agent sees, else the allocatable ones."""
    counts = inventory(node)
    annotated = {resource for resource, _ in _annotated(node)}
    seen = {part.resource for part in hardware.devices} - annotated
    parts = (Device(part.resource, part.index) for part in hardware.devices if part.resource in seen and not part.lost)
    told = devices_of({resource: count for resource, count in counts.items() if resource not in seen})
    return tuple(sorted((*told, *parts)))


def inventory_faults(node: Node) -> list[str]:
    """What is wrong with the node's inventory annotation, a sentence for each entry that is ignored."""
    faults = []
    for resource, quantity in _annotated(node):
        if not contract.vendor_of(resource):
            faults.append(f"unknown resource {resource!r} (known: {contract.KNOWN_RESOURCES_TEXT})")
        elif not quantity.isdecimal():
            faults.append(f"{resource} wants a whole number, not {quantity!r}")
    return faults


def _annotated(node: Node) -> list[tuple[str, str]]:
    text = node.metadata.annotations.get(contract.INVENTORY_ANNOTATION, "")
    entries = [entry.partition("=") for entry in text.split(",") if entry.strip()]
    return [(resource.strip(), quantity.strip()) for resource, _, quantity in entries]
