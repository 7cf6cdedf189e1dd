"""The claim protocol's claims: what holders want, devices or shares, and the CAS of a ledger (claims.md, bind, step 3).

One CAS of the ledger may claim for several groups and pods: each gets what it asks for beside those before it, or is
left out with the reason.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare import timestamps
from deviceshare.domain.answers.ledger_status import with_summary
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import Request, Share
from deviceshare.domain.placement import allocation, ledger_budget
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.handover import as_claimed, too_long_for_cdi
from deviceshare.domain.placement.join_obstacles import counted_only, joining_obstacle, ledger_fault, not_claimable
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster, Conflict, NotFound
from deviceshare.loops.protocol import bind


def new_mark() -> str:
    """A mark, or a claim's token, that was never written before: RFC 3339, its last digits random."""
    return f"{timestamps.micro_now()[:-1]}{random.randrange(1000):03}Z"


class WantedClaim(NamedTuple):
    """What a holder wants."""

    uid: str
    """The holder's."""
    choose: Callable[[NodeDevices], Claim | Reason]
    """The holder's claim: the one that is there, or a new one; or why it can't have one."""


def wanted_devices(request: Request, *, token: str) -> WantedClaim:
    """The wish of a group that lives nowhere yet: whole devices of a node.

    `token` was never written before; a claim that is there keeps its own.
    """
    return WantedClaim(request.holder.uid, lambda seen: _choose_devices(request, token, seen))


def wanted_share(request: Request, opaque: Callable[[], Collection[str]] = tuple) -> WantedClaim:
    """The wish of a pod for parts of devices, of a node's own or of its group's (claims.md, shares).

    `opaque` gives the resources of which a device plugin allocated devices, unknown which, when the claim is chosen.
    """
    return WantedClaim(request.taker.uid, lambda seen: _choose_share(request, seen, opaque()))


class Claimed(NamedTuple):
    """The ledger with the claims of those that got one, and why the others did not, by the holders' UIDs."""

    ledger: NodeDevices
    refused: Mapping[str, Reason]


async def claim_all(
    cluster: Cluster,
    wanted: Iterable[WantedClaim],
    node: str,
    known: NodeDevices | None = None,
    *,
    on_conflict: Callable[[], None] = lambda: None,
) -> Claimed:
    """The ledger with a claim for each of the holders; writes those that aren't there.

    A claim that is there unmarked is used, since it is of a bind that ended half-way. `known` is a copy of the ledger
    of any age. A write by its version proves that it was the newest when it was written, which is after this call.
    Where nothing is written nothing is proven: so where a claim is there already, or somebody is refused, as where the
    copy turns out to be old (`on_conflict`), the ledger is read, after this call began.

    Raises Refused where the node has no ledger.
    """
    wishes = list(wanted)
    if known is not None and not known.metadata.unreadable and not any(wish.uid in known.claims for wish in wishes):
        chosen, refused = _choose(known, wishes)
        if not refused:
            try:
                return Claimed(await _claim(cluster, known, chosen), {})
            except Conflict:
                on_conflict()
            except NotFound:
                pass  # As below, unless somebody has recreated it.
    seen = await bind.read_ledger(cluster, node)
    chosen, refused = _choose(seen, wishes)
    return Claimed(await _claim(cluster, seen, chosen), refused)


async def write_claims(cluster: Cluster, seen: NodeDevices, patch: Patch) -> NodeDevices:
    """CAS L: each write of claims, which brings the summary that follows from them; the ledger as written."""
    return await cluster.patch(NODE_DEVICES, seen.node, with_summary(seen, patch))


def _choose(seen: NodeDevices, wanted: Iterable[WantedClaim]) -> tuple[dict[str, Claim], dict[str, Reason]]:
    """The claims to write, each chosen beside those before it, and why others get none."""
    after, chosen, refused = seen, dict[str, Claim](), dict[str, Reason]()
    for uid, choose in wanted:
        unknown = ledger_fault(seen) if uid in seen.hidden_claims or uid not in seen.claims else None
        found = unknown or choose(after)
        if isinstance(found, Reason):
            refused[uid] = found
        elif uid not in seen.claims and (reason := ledger_budget.obstacle(after, uid, found)):
            refused[uid] = reason
        elif uid not in seen.claims:
            chosen[uid] = found
            after = replace(after, spec=replace(after.spec, claims={**after.claims, uid: found}))
    return chosen, refused


async def _claim(cluster: Cluster, seen: NodeDevices, chosen: Mapping[str, Claim]) -> NodeDevices:
    return await write_claims(cluster, seen, ledger.claims_patch(seen, chosen)) if chosen else seen


def _choose_devices(request: Request, token: str, seen: NodeDevices) -> Claim | Reason:
    holder = request.holder
    if mine := seen.claims.get(holder.uid):
        # An unbound group may change its mind after a bind died half-way; its claim is then collected.
        if not allocation.meets(request, mine.devices):
            text = f"{holder} has changed, and what it claimed on node {seen.node} is being released"
            return Reason(ReasonKind.CLAIM_RELEASING, text)
        return mine
    if bare := not_claimable(request, seen.claimable):
        return bare
    chosen = allocation.choose(request, allocation.available(seen))
    if chosen is None:
        text = f"{holder} no longer fits on node {seen.node}: others took its devices meanwhile"
        return Reason(ReasonKind.TOO_FULL, text)
    return ledger.claim_of(holder, as_claimed(chosen, seen.status.handover), token=token)


def _choose_share(request: Request, seen: NodeDevices, opaque: Collection[str]) -> Claim | Reason:
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
    if reason := counted_only(request, seen.counts_only):
        return reason
    rooms = [(d, room) for d, room in allocation.rooms(states, within) if within or d.resource not in opaque]
    shares = allocation.choose_shares(request.share, request.strategy, rooms)
    if shares is None:
        lacks = allocation.share_shortage(request.share, [room for _, room in rooms])
        return lacks or Reason(ReasonKind.TOO_FULL, f"{sharer} no longer fits on node {seen.node}")
    if container := too_long_for_cdi(seen, shares):
        text = f"the name of container {container} is too long for the hand-over by CDI on node {seen.node}"
        return Reason(ReasonKind.NOT_HANDED_OVER, text, "give it one of at most 53 characters")
    return ledger.share_claim_of(sharer, (_named(share, seen, within) for share in shares), within)


def _is_inside(mine: Claim, seen: NodeDevices, within: str) -> bool:
    """Whether the parts are of devices that the group has, or had before a rebind."""
    theirs = {device.identity for device in seen.reserved(seen.claims[within])}
    return all(seen.present(share.device).identity in theirs for share in mine.shares)


def _named(share: Share, seen: NodeDevices, within: str) -> Share:
    """Named as in the pod's annotations: by number alone where those do, and as the group's claim names its device."""
    for device in seen.claims[within].devices if within else ():
        if seen.present(device).identity == share.device.identity:
            return replace(share, uuid=device.uuid)
    [named] = as_claimed([share.device], seen.status.handover)
    return replace(share, uuid=named.uuid)
