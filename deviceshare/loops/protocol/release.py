"""The claim protocol's release: a bound group without a live pod leaves its node (claims.md, release an idle group).

It is needed where a group has had no pods for as long as it says, where a deleted one has no pods any more, and where
the cluster's scheduler found no place for its pods on its node. Only in the last of these do pending pods not keep it.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster, Conflict
from deviceshare.loops.protocol import bind, holders
from deviceshare.loops.protocol.claiming import write_claims


class Release(Enum):
    """How a release ended."""

    LEFT = "the group has no node any more"
    STAYS = "a pod of it lives on the node, or it is kept for another reason"
    ABSENT = "the group isn't bound there, or its claim is missing"


Keeps = Callable[[Group, Collection[Pod]], bool]
"""Whether the group is to stay, though none of these pods, which name it, lives on its node."""


async def release(
    cluster: Cluster,
    node: str,
    uid: str,
    *,
    new_mark: Callable[[], str],
    wait_out_binds: Callable[[str], Awaitable[None]],
    on_unwritable: bind.OnUnwritable = lambda _pod, _why: None,
    compares: bool = False,
    keeps: Keeps = lambda _group, _pods: False,
    status: Callable[[Group], Mapping[str, Any]] = lambda _: {},
) -> Release:
    """Unbinds the group from the node and drops its claim, unless one of its pods lives there.

    Arguments and errors are those of `collect`; besides, `keeps` is asked with a fresh group and list of pods, and
    `status` gives fields of the status that say why the group was released. Who stops half-way, or finds that the group
    has left, leaves a marked claim, which collect ends: it takes the mark away from a group that still lives there.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None:
        return Release.ABSENT
    # 1. From here on nobody joins by this claim.
    mark = claim.releasing or new_mark()
    if not claim.releasing:
        seen = await write_claims(cluster, seen, ledger.mark_patch(seen, uid, mark))
    holder, waited = claim.holder(uid), False
    while True:
        # 3. The group is read first: a write of it after the list makes step 4 fail.
        group = await holders.read_group(cluster, holder)
        pods = await holders.pods(cluster, holder)
        if group is None or group.node != node:
            return Release.ABSENT  # An earlier try came as far as step 4, or the group went by itself: collect ends it.
        if any(pod.holds(uid, node) for pod in pods) or keeps(group, pods):
            await holders.fence(cluster, group)  # Another release of it fails, before anybody joins.
            await write_claims(cluster, seen, ledger.unmark_patch(seen, uid))
            return Release.STAYS
        # 2. Whoever read the ledger before and is about to write a pod fails by its version, or has ended.
        if waited or not await bind.stop_binds(cluster, pods, mark, wait_out_binds, on_unwritable, compares=compares):
            break
        waited = True
    # The claim still bears the mark, in the same ledger, and who takes it away from now on writes the group first.
    again = new_mark()
    seen = await write_claims(cluster, seen, ledger.mark_patch(seen, uid, again, token=claim.token or again))
    # 4. The group has no node, and binds that read it before fail.
    await holders.unsettle(cluster, group, status(group))
    # 5. With the version of the last mark. Whoever wrote L meanwhile, such as its summary, leaves the claim to collect.
    with suppress(Conflict):
        await write_claims(cluster, seen, ledger.drop_patch(seen, uid))
    return Release.LEFT
