"""The vendor's device plugin: on shared nodes it gives devices to plain pods, and asks nobody whose they are."""

from collections.abc import Iterable, Sequence

from deviceshare.doctor.findings import WARNING, Check, Finding, check, listed, unread
from deviceshare.domain import vendors
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import is_some
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import ApiError, Cluster


async def examine(api: Cluster) -> Check:
    """The shared nodes that a plugin has devices on, and what their agents say of placeholders."""
    try:
        nodes, ledgers = await api.list(NODES), await api.list(NODE_DEVICES)
    except ApiError as error:
        return check("plugin", "", [unread("nodes and their ledgers (NodeDevices)", error)])
    return check("plugin", "no device plugin may give a group's devices to a plain pod", judge(nodes, ledgers))


def judge(nodes: Sequence[Node], ledgers: Iterable[NodeDevices]) -> list[Finding]:
    """Where a plain pod and a group could come to have one device."""
    # Placeholders are an agent's, and keep what it sees; another vendor's plugin on the node goes on as it likes.
    kept = {
        ledger.node: {part.resource for part in ledger.hardware.devices}
        for ledger in ledgers
        if ledger.hardware.placeholders
    }
    shared = ((node.metadata.name, node) for node in nodes if node.shared)
    loose = [name for name, node in shared if _plugged(node) - kept.get(name, set())]
    if not loose:
        return []
    what = f"the device plugin may give a group's devices to a plain pod: {listed(loose)}"
    cure = "keep it off shared nodes, or have placeholder pods hold the groups' devices (docs/agent.md)"
    return [Finding(WARNING, what, cure)]


def _plugged(node: Node) -> set[str]:
    """Resources that a plugin tells of; the kubelet takes back what a plugin that is gone told, as 0."""
    told = (resource for resource, quantity in node.status.allocatable.items() if is_some(quantity))
    return {vendors.counted_as(resource) for resource in told if vendors.plugin_vendor_of(resource)}
