"""Why no further pod may join a group, by the ledger of the node that the group lives on."""

from collections.abc import Iterable

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.placement.device_states import ailing, held_by
from deviceshare.domain.placement.replacement import untellable


def joining_obstacle(ledger: NodeDevices, states: Iterable[DeviceState], group: Group) -> str:
    """What is wrong with the group's claim or its devices, or "".

    A claim that isn't there is no obstacle here: the ledger may be behind, and the bind reads it fresh. Nor are devices
    that were kept out since: they are there, and the group's.
    """
    claim = ledger.claims.get(group.uid)
    if claim is None:
        return ""
    if claim.releasing:
        return f"the devices of group {group.name} are being released"
    mine = held_by(states, group.uid)
    if broken := ailing(mine):
        return f"{broken} of group {group.name}: deviceshare rebind {group.name}"
    if fault := untellable(ledger, claim):
        return fault
    gone = [state.device for state in mine if state.lost]
    for device in gone:
        if unknown := ledger.unknown(device.resource):
            return withheld_text(device.resource, unknown)
    if gone:
        return f"the node lost {', '.join(map(str, gone))} of group {group.name}: delete the group and make it again"
    return ""


def withheld_text(resource: str, reason: str) -> str:
    """Why a group gets nothing of a resource on a node, whatever is free."""
    return f"the node offers no {resource} to groups: {reason}"
