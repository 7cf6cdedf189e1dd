"""The claim protocol's collect: releases a claim that no holder needs (claims.md, collect).

A claim is suspect when its holder is gone, lives elsewhere, or has been unbound for longer than a bind may take. Only
suspicion is needed to begin: every step looks again, and each can be the last that this process takes.
"""

from collections.abc import Awaitable, Callable
from enum import Enum

from deviceshare.domain.objects import ledger
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster
from deviceshare.loops.protocol import bind, holders
from deviceshare.loops.protocol.claiming import write_claims


class Outcome(Enum):
    """How a collection ended."""

    FREED = "freed"
    KEPT_BOUND = "kept: the holder lives here after all"
    KEPT_IN_USE = "kept, marked: a pod with these devices lives"
    ABSENT = "there was no such claim"


async def collect(
    cluster: Cluster,
    node: str,
    uid: str,
    *,
    new_mark: Callable[[], str],
    wait_out_binds: Callable[[str], Awaitable[None]],
    on_unwritable: bind.OnUnwritable = lambda _pod, _why: None,
    compares: bool = False,
    marked: bool = False,
) -> Outcome:
    """Releases the claim of the holder `uid` on the node, unless it turns out to be needed.

    Args:
        new_mark: returns a mark that was never written before.
        wait_out_binds: called with the mark; returns once that mark has stood for as long as a bind may take, so that
            every bind that began before it has ended or given up.
        on_unwritable: called for each pending pod that takes no write of ours (bind.fence_pod).
        compares: whether the API server refuses a Binding whose pod was written since.
        marked: whether the claim was seen with a mark; if it bears none any more, somebody took it away, and nothing
            is done.

    Raises:
        Conflict: somebody else wrote L or the holder; retry later.
        ApiError: a request failed; retry later.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None:
        return Outcome.ABSENT
    if marked and not claim.releasing:
        return Outcome.KEPT_BOUND
    # 1. From here on nobody joins by this claim.
    mark = claim.releasing or new_mark()
    if not claim.releasing:
        seen = await write_claims(cluster, seen, ledger.mark_patch(seen, uid, mark))
    # 2. From here on nobody who read the holder before commits to this node, nor releases it from there.
    holder = claim.holder(uid)
    if await holders.home(cluster, holder, node) == node:
        await write_claims(cluster, seen, ledger.unmark_patch(seen, uid))
        return Outcome.KEPT_BOUND
    # 3. A pod that got the devices keeps them; one that may be getting them just now is waited for.
    waited = False
    while True:
        pods = await holders.pods(cluster, holder)
        if any(pod.holds(uid, node) for pod in pods):
            return Outcome.KEPT_IN_USE
        if waited or not await bind.stop_binds(cluster, pods, mark, wait_out_binds, on_unwritable, compares=compares):
            break
        waited = True
    # 4. With the version of step 1: had anybody unmarked the claim meanwhile, this fails.
    await write_claims(cluster, seen, ledger.drop_patch(seen, uid))
    return Outcome.FREED
