"""Device plugins on shared nodes, which may allocate a group's devices to plain pods."""

from collections.abc import Iterable, Sequence

from deviceshare.doctor.findings import WARNING, Check, Finding, check, listed, unread
from deviceshare.domain import vendors
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import is_some
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import ApiError, Cluster


async def examine(api: Cluster) -> Check:
    """Compares the devices of plugins on shared nodes with the placeholders that agents report."""
    try:
        nodes, ledgers = await api.list(NODES), await api.list(NODE_DEVICES)
    except ApiError as error:
        return check("plugin", "", [unread("nodes and their ledgers (NodeDevices)", error)])
    return check("plugin", "no device plugin may allocate a group's devices to a plain pod", judge(nodes, ledgers))


def judge(nodes: Sequence[Node], ledgers: Iterable[NodeDevices]) -> list[Finding]:
    """Nodes on which a plain pod and a group could receive the same device."""
    # An agent's placeholders hold only devices that it sees; another vendor's plugin on the node isn't held back.
    kept = {
        ledger.node: {part.resource for part in ledger.hardware.devices}
        for ledger in ledgers
        if ledger.hardware.placeholders
    }
    shared = ((node.metadata.name, node) for node in nodes if node.shared)
    loose = [name for name, node in shared if _plugged(node) - kept.get(name, set())]
    if not loose:
        return []
    what = f"the device plugin may allocate a group's devices to a plain pod: {listed(loose)}"
    cure = "keep it off shared nodes, or have placeholder pods hold the groups' devices (docs/agent.md)"
    return [Finding(WARNING, what, cure)]


def _plugged(node: Node) -> set[str]:
    """Resources that a plugin registered; the kubelet sets those of a plugin that is gone to 0."""
    registered = (resource for resource, quantity in node.status.allocatable.items() if is_some(quantity))
    return {vendors.counted_as(resource) for resource in registered if vendors.plugin_vendor_of(resource)}
