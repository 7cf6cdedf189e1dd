"""Why no further pod may join a holder, by the ledger of the node that it lives on."""

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.requests import Holder
from deviceshare.domain.placement.replacement import untellable


def joining_obstacle(ledger: NodeDevices, holder: Holder) -> str:
    """What is wrong with the holder's claim or its devices, or "".

    A claim that isn't there is no obstacle here: the ledger may be behind, and the bind reads it fresh. Nor are devices
    that were kept out since: they are there, and the holder's.
    """
    claim = ledger.claims.get(holder.uid)
    if claim is None:
        return ""
    if claim.releasing:
        return f"the devices of {holder} are being released"
    if broken := ledger.ailing(claim):
        return f"{broken} of {holder}: deviceshare rebind {holder.name}"
    if fault := untellable(ledger, claim):
        return fault
    gone = [device for device in ledger.held(claim) if not ledger.has(device)]
    for device in gone:
        if unknown := ledger.unknown(device.resource):
            return withheld_text(device.resource, unknown)
    if gone:
        return f"the node lost {', '.join(map(str, gone))} of {holder}: delete the group and make it again"
    return ""


def withheld_text(resource: str, reason: str) -> str:
    """Why a group gets nothing of a resource on a node, whatever is free."""
    return f"the node offers no {resource} to groups: {reason}"
