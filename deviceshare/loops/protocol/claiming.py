"""The claim protocol's bind, step 3: claims in a node's ledger, of all holders that ask at once.

One GET and one CAS of the ledger may claim for several groups and pods: each gets what it asks for beside those before
it, or is left out with the reason.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement.blind_spots import ledger_fault
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster
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


async def claim_all(cluster: Cluster, wanted: Iterable[WantedClaim], node: str) -> Claimed:
    """The ledger with a claim for each of the holders; writes those that aren't there.

    The GET begins after this call. A claim that is there unmarked is used, since it is of a bind that ended half-way.

    Raises:
        Refused: the node has no ledger.
        Conflict: somebody else wrote the ledger; retry.
        ApiError: the ledger could not be read or written.
    """
    seen = await bind.read_ledger(cluster, node)
    after, chosen, refused = seen, dict[str, Claim](), dict[str, Reason]()
    for uid, choose in wanted:
        unknown = ledger_fault(seen) if uid in seen.hidden_claims or uid not in seen.claims else None
        found = unknown or choose(after)
        if isinstance(found, Reason):
            refused[uid] = found
        elif uid not in seen.claims:
            chosen[uid] = found
            after = replace(after, spec=replace(after.spec, claims={**after.claims, uid: found}))
    if chosen:
        seen = await cluster.patch(NODE_DEVICES, node, ledger.claims_patch(seen, chosen))
    return Claimed(seen, refused)
