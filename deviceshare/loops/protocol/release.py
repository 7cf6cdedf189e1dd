"""The claim protocol's release: the one way in which a holder leaves a node (claims.md, release).

A claim goes that nobody needs, or a group that is bound to the node leaves it for a `Cause`. Only suspicion is needed
to begin: every step looks again, and each can be the last that this process takes. Who stops half-way leaves a marked
claim, by which nobody joins, and which the next release ends.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

from deviceshare.domain import contract
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.placement import holds
from deviceshare.domain.placement.holds import Json
from deviceshare.loops.kinds import HOLDS, NODE_DEVICES, find
from deviceshare.loops.ports import Cluster, Conflict, NotFound
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.bind import new_mark, write_claims
from deviceshare.loops.protocol.holders import BindStop


class Outcome(Enum):
    """How a release ended."""

    LEFT = "the group has no node any more"
    FREED = "the claim is gone, which no holder needed"
    STAYS = "the holder lives here and keeps its claim, unmarked"
    IN_USE = "kept, marked: a pod with these devices lives, though its holder doesn't live here"
    ABSENT = "there is no such claim"


Keeps = Callable[[Group, Collection[Pod]], bool]


def never_keeps(_group: Group, _pods: Collection[Pod]) -> bool:
    """Of a cause that nothing takes back."""
    return False


class Cause(NamedTuple):
    """Why a group leaves the node that it is bound to."""

    keeps: Keeps = never_keeps
    """Whether it is to stay, though none of these pods, which name it, lives there; asked with fresh reads of both."""
    status: Callable[[Group], Mapping[str, Any]] = lambda _: {}
    """Fields of its status that say why it left."""
    name: str = ""
    """Which it is, for who began the release."""
    event: str = ""
    """The reason of the Event that is to be recorded once it has left, or ""."""
    text: str = ""
    """What that Event says."""


async def release(
    cluster: Cluster,
    node: str,
    uid: str,
    stop_binds: BindStop,
    cause: Cause | None = None,
    *,
    marked: bool = False,
    frees: Callable[[], Awaitable[bool]] | None = None,
) -> Outcome:
    """Releases the claim of the holder `uid` on the node, unless it turns out to be needed.

    Without a `cause` a holder that lives there keeps it. A pod with these devices keeps it in any case.
    `marked` says that the claim was seen with a mark: if it bears none any more, somebody took it away, and nothing is
    done. `frees` ends a hold by which kube-scheduler alone has pods join (`end_hold`), and says whether none is left.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None:
        return Outcome.ABSENT
    if marked and not claim.releasing:
        return Outcome.STAYS
    # 1. Mark. From here on nobody joins by this claim.
    mark = claim.releasing or new_mark()
    if not claim.releasing:
        seen = await write_claims(cluster, seen, ledger.mark_patch(seen, uid, mark))
    holder, stopped = claim.holder(uid), False
    while True:
        # 2. Look at the holder. Nobody who read a group unbound before this commits to the node any more.
        found = await holders.read(cluster, holder)
        group = found if isinstance(found, Group) else None
        here = holders.home(found) == node
        if here and not cause:
            return await _stay(cluster, seen, uid, group)
        if group and not group.node:
            await holders.fence(cluster, group)
        # 3. Look at its pods. One that got the devices keeps them.
        pods = await holders.pods(cluster, holder)
        used = any(pod.holds(uid, node) for pod in pods)
        if here and (used or (group and cause and cause.keeps(group, pods))):
            return await _stay(cluster, seen, uid, group)
        if used:
            return Outcome.IN_USE
        # 4. Stop binds that read L before the mark, and look again at what they may have done.
        if stopped or not await stop_binds(cluster, pods, mark):
            break
        stopped = True
    if frees and not await frees():
        return await _stay(cluster, seen, uid, group) if here else Outcome.IN_USE
    if here and group and cause:
        return await _leave(cluster, seen, group, cause)
    # 6. Drop, by the version of step 1: had anybody taken the mark away meanwhile, this fails.
    await write_claims(cluster, seen, ledger.drop_patch(seen, uid))
    return Outcome.FREED


async def end_hold(cluster: Cluster, claim: ResourceClaim) -> bool:
    """Whether the hold of a group by claim is gone, unless pods are entered in it, or a write meets another.

    kube-scheduler enters a pod before it binds it, and none in a claim that is gone.
    """
    fresh = await find(cluster, HOLDS, claim.metadata.name, claim.metadata.namespace)
    if fresh is None:
        return True
    if holds.has_pod(fresh):
        return False
    with suppress(NotFound):
        if holds.is_allocated(fresh):
            fresh = await write_hold(cluster, fresh, holds.clearing(fresh), status=True)
        await let_go(cluster, fresh)
    return True


async def let_go(cluster: Cluster, claim: ResourceClaim) -> None:
    """Deletes a hold that isn't allocated."""
    if contract.HOLD_FINALIZER in claim.metadata.finalizers:
        claim = await write_hold(cluster, claim, holds.letting_go(claim))
    meta = claim.metadata
    await cluster.delete(HOLDS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version)


async def write_hold(cluster: Cluster, claim: ResourceClaim, body: Json, *, status: bool = False) -> ResourceClaim:
    """A write of a ResourceClaim of ours."""
    meta, subresource = claim.metadata, "status" if status else ""
    return await cluster.patch(HOLDS, meta.name, body, namespace=meta.namespace, subresource=subresource)


async def _leave(cluster: Cluster, seen: NodeDevices, group: Group, cause: Cause) -> Outcome:
    # 5. Leave. Another mark: after the group was read L is still as it was, and who takes the mark away from here on
    # writes the group first, so that this fails. Then the group has no node, and binds fail that read it before.
    mark, token = new_mark(), seen.claims[group.uid].token
    seen = await write_claims(cluster, seen, ledger.mark_patch(seen, group.uid, mark, token=token or mark))
    await holders.unsettle(cluster, group, cause.status(group))
    # 6. Drop, by the version of that mark. Where somebody wrote L since, as its summary, the claim is left, marked.
    with suppress(Conflict):
        await write_claims(cluster, seen, ledger.drop_patch(seen, group.uid))
    return Outcome.LEFT


async def _stay(cluster: Cluster, seen: NodeDevices, uid: str, group: Group | None) -> Outcome:
    """Takes the mark away. A group is written first, so that no other release of it commits once pods may join."""
    if group:
        await holders.fence(cluster, group)
    await write_claims(cluster, seen, ledger.unmark_patch(seen, uid))
    return Outcome.STAYS
