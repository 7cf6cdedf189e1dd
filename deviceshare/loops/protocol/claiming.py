"""The claim protocol's bind, step 3: claims in a node's ledger, of all holders that ask at once.

One CAS of the ledger may claim for several groups and pods: each gets what it asks for beside those before it, or is
left out with the reason.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain.answers.ledger_status import with_summary
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement import ledger_budget
from deviceshare.domain.placement.blind_spots import ledger_fault
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster, Conflict, NotFound
from deviceshare.loops.protocol import bind


class WantedClaim(NamedTuple):
    """A holder's wish for a claim."""

    uid: str
    """The holder's."""
    choose: Callable[[NodeDevices], Claim | Reason]
    """The holder's claim: the one that is there, or a new one; or why it can't have one."""


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

    A claim that is there unmarked is used, since it is of a bind that ended half-way.

    `known` is a copy of the ledger of any age. A write by its version proves that it was the newest when it was
    written, which is after this call. Where nothing is written nothing is proven: so where a claim is there already, or
    somebody is refused, as where the copy turns out to be old (`on_conflict`), the ledger is read, after this call
    began.

    Raises:
        Refused: the node has no ledger.
        Conflict: somebody else wrote the ledger since it was read; retry.
        ApiError: the ledger could not be read or written.
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


async def write_claims(cluster: Cluster, seen: NodeDevices, patch: Patch) -> NodeDevices:
    """CAS L: each write of claims, which brings the summary that follows from them; the ledger as written.

    Raises:
        Conflict: somebody else wrote the ledger since it was read.
        ApiError: it could not be written.
    """
    return await cluster.patch(NODE_DEVICES, seen.node, with_summary(seen, patch))
