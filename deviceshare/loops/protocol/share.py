"""The claim protocol's bind of shares: claims of the parts that pods ask for (claims.md, shares).

One GET and one CAS of the ledger may claim for several pods: all get what they ask for, or those that don't fit are
left out with the reason. L is the NodeDevices of the node.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement import allocation, sharing
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.handover import as_claimed
from deviceshare.domain.placement.join_obstacles import joining_obstacle
from deviceshare.domain.placement.share_handover import too_long_for_cdi
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster
from deviceshare.loops.protocol import bind


class Claimed(NamedTuple):
    """The ledger with the claims of those pods that got one, and why the others did not, by the pods' UIDs."""

    ledger: NodeDevices
    refused: Mapping[str, Reason]


async def claim_shares(
    cluster: Cluster, requests: Iterable[Request], node: str, opaque: Collection[str] = ()
) -> Claimed:
    """The ledger with a claim for each of the pods; writes those that aren't there.

    The GET begins after this call. A claim that is there unmarked is used, since it is of a bind that ended half-way.

    Args:
        opaque: resources of which a device plugin allocated devices, unknown which.

    Raises:
        Refused: the node has no ledger.
        Conflict: somebody else wrote the ledger; retry.
        ApiError: the ledger could not be read or written.
    """
    seen = await bind.read_ledger(cluster, node)
    after, chosen, refused = seen, dict[str, Claim](), dict[str, Reason]()
    for request in requests:
        uid = request.taker.uid
        found = _claim_for(request, after, opaque)
        if isinstance(found, Reason):
            refused[uid] = found
        elif uid not in seen.claims:
            chosen[uid] = found
            after = replace(after, spec=replace(after.spec, claims={**after.claims, uid: found}))
    if chosen:
        seen = await cluster.patch(NODE_DEVICES, node, ledger.claims_patch(seen, chosen))
    return Claimed(seen, refused)


def _claim_for(request: Request, seen: NodeDevices, opaque: Collection[str]) -> Claim | Reason:
    """The pod's claim: the one that is there, or a new one; or why it can't have one."""
    states, sharer, within = device_states(seen), request.taker, ""
    if request.sharer:
        within = request.holder.uid
        if within not in seen.claims:
            text = f"the claim of {request.holder} on node {seen.node} is missing; it is being repaired"
            return Reason(ReasonKind.CLAIM_MISSING, text)
        if reason := joining_obstacle(seen, states, request.holder):
            return reason
    if mine := seen.claims.get(sharer.uid):
        if mine.within != within:
            # A bind ended half-way, and the group was recreated since: its parts are of devices of the former one.
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
    return ledger.share_claim_of(sharer, (_as_claimed(share, seen) for share in shares), within)


def _as_claimed(share: Share, seen: NodeDevices) -> Share:
    """Named as in the pod's annotations: by number alone where those do."""
    [named] = as_claimed([Device(share.resource, share.index, share.uuid)], seen.status.handover)
    return replace(share, uuid=named.uuid)
