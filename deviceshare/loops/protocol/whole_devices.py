"""The claim of a group that lives nowhere yet: whole devices of a node (claims.md, bind, step 3)."""

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.handover import as_claimed
from deviceshare.loops.protocol.claiming import WantedClaim


def wanted(request: Request, *, token: str) -> WantedClaim:
    """The group's wish. `token` was never written before; a claim that is there keeps its own."""
    return WantedClaim(request.holder.uid, lambda seen: _choose(request, token, seen))


def _choose(request: Request, token: str, seen: NodeDevices) -> Claim | Reason:
    holder = request.holder
    if mine := seen.claims.get(holder.uid):
        # An unbound group may change its mind after a bind died half-way; its claim is then collected.
        if not allocation.meets(request, mine.devices):
            text = f"{holder} has changed, and what it claimed on node {seen.node} is being released"
            return Reason(ReasonKind.CLAIM_RELEASING, text)
        return mine
    chosen = allocation.choose(request, allocation.available(seen))
    if chosen is None:
        text = f"{holder} no longer fits on node {seen.node}: others took its devices meanwhile"
        return Reason(ReasonKind.TOO_FULL, text)
    return ledger.claim_of(holder, as_claimed(chosen, seen.status.handover), token=token)
