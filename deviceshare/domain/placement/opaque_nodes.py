"""Opaque nodes, of which pods have devices through the vendor's device plugin, unknown which."""

from collections.abc import Collection, Iterable, Mapping

from deviceshare.domain import vendors
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.wording import listed


def opaque(ledger: NodeDevices, states: Iterable[DeviceState], pods: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Resources of which pods hold devices, unless the node's agent tells which; `pods` are resources by pod UID.

    A vendor's devices are the same under all its resources, whole, in turns or in parts, so all of them are named.
    """
    known = {(allocation.uid, allocation.resource) for allocation in ledger.hardware.allocations or ()}
    held = {resource for uid, resources in pods.items() for resource in resources if (uid, resource) not in known}
    if any(state.split for state in states):  # Who has a part by MIG has it of these, and no group gets these.
        held = {resource for resource in held if not resource.startswith(vendors.MIG_PREFIX)}
    if not held:
        return frozenset()
    owners = {vendors.plugin_vendor_of(resource) for resource in held}
    mine = {device.resource for device in (*ledger.devices, *ledger.claimed())}
    return frozenset(held | {resource for resource in mine if vendors.vendor_of(resource) in owners})


def opaque_reason(resources: Collection[str]) -> Reason | None:
    """Why a group that wants these opaque resources gets none."""
    if not resources:
        return None
    held = f"pods on the node hold {listed(resources)} through the device plugin, unknown which devices"
    return Reason(
        ReasonKind.DEVICES_OPAQUE, held, "delete those pods, or run deviceshare's agent there (agent.enabled=true)"
    )
