"""The claim of a pod's share: parts of devices, of a node's own or of its group's (claims.md, shares)."""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement import allocation, sharing
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.handover import as_claimed
from deviceshare.domain.placement.join_obstacles import joining_obstacle
from deviceshare.domain.placement.share_handover import too_long_for_cdi
from deviceshare.loops.protocol.claiming import WantedClaim


def wanted(request: Request, opaque: Callable[[], Collection[str]] = tuple) -> WantedClaim:
    """The pod's wish for the parts that it asks for.

    Args:
        opaque: gives the resources of which a device plugin allocated devices, unknown which, when the claim is chosen.
    """
    return WantedClaim(request.taker.uid, lambda seen: _choose(request, seen, opaque()))


def _choose(request: Request, seen: NodeDevices, opaque: Collection[str]) -> Claim | Reason:
    states, sharer, within = device_states(seen), request.taker, ""
    if request.sharer:
        within = request.holder.uid
        if within not in seen.claims:
            text = f"the claim of {request.holder} on node {seen.node} is missing; it is being repaired"
            return Reason(ReasonKind.CLAIM_MISSING, text)
        if reason := joining_obstacle(seen, states, request.holder):
            return reason
    if mine := seen.claims.get(sharer.uid):
        if mine.within != within or (within and not _is_inside(mine, seen, within)):
            # A bind ended half-way, and since then the group was recreated, or left the node and came back.
            text = f"what {sharer} claimed on node {seen.node} is no part of the group's devices, and is being released"
            return Reason(ReasonKind.CLAIM_RELEASING, text)
        return joining_obstacle(seen, states, sharer) or mine
    rooms = [(d, room) for d, room in allocation.rooms(states, within) if within or d.resource not in opaque]
    shares = sharing.choose_shares(request.share, request.strategy, rooms)
    if shares is None:
        lacks = sharing.shortage(request.share, [room for _, room in rooms])
        return lacks or Reason(ReasonKind.TOO_FULL, f"{sharer} no longer fits on node {seen.node}")
    if container := too_long_for_cdi(seen, shares):
        text = f"the name of container {container} is too long for the hand-over by CDI on node {seen.node}"
        return Reason(ReasonKind.NOT_HANDED_OVER, text, "give it one of at most 53 characters")
    return ledger.share_claim_of(sharer, (_as_claimed(share, seen, within) for share in shares), within)


def _is_inside(mine: Claim, seen: NodeDevices, within: str) -> bool:
    """Whether the parts are of devices that the group has, or had before a rebind."""
    theirs = {device.identity for device in seen.reserved(seen.claims[within])}
    return all(seen.present(share.device).identity in theirs for share in mine.shares)


def _as_claimed(share: Share, seen: NodeDevices, within: str) -> Share:
    """Named as in the pod's annotations: by number alone where those do, and as the group's claim names its device."""
    for device in seen.claims[within].devices if within else ():
        if seen.present(device).identity == share.device.identity:
            return replace(share, uuid=device.uuid)
    [named] = as_claimed([share.device], seen.status.handover)
    return replace(share, uuid=named.uuid)
