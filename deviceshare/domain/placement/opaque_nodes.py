"""Opaque nodes: pods have devices of theirs through the vendor's device plugin, and nobody knows which devices."""

from collections.abc import Collection, Iterable, Mapping

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement.device_state import DeviceState


def opaque(ledger: NodeDevices, states: Iterable[DeviceState], pods: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Resources of which pods hold devices, unless the node's agent tells which; `pods` are resources by pod UID.

    A vendor's devices are the same under all its resources, whole, in turns or in parts, so all of them are named.
    """
    known = {(allocation.uid, allocation.resource) for allocation in ledger.hardware.allocations or ()}
    held = {resource for uid, resources in pods.items() for resource in resources if (uid, resource) not in known}
    if any(state.split for state in states):  # Who has a part by MIG has it of these, and no group gets these.
        held = {resource for resource in held if not resource.startswith(contract.MIG_PREFIX)}
    if not held:
        return frozenset()
    vendors = {contract.plugin_vendor_of(resource) for resource in held}
    mine = {device.resource for device in (*ledger.devices, *ledger.claimed())}
    return frozenset(held | {resource for resource in mine if contract.vendor_of(resource) in vendors})


def opaque_text(resources: Collection[str]) -> str:
    """Why a group that wants these opaque resources gets none, or ""."""
    if not resources:
        return ""
    return f"pods on the node hold {' and '.join(resources)} through the device plugin, unknown which devices"
