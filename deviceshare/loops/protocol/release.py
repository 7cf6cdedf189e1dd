"""The claim protocol's release: a bound group without a live pod leaves its node (claims.md, release an idle group).

Here it is needed where a pod was placed on the group's node and the cluster's scheduler found no place for it there:
the group must be free to go elsewhere. Pending pods don't keep it, since they can't be bound but by a gate's lifting:
a write of ours makes those fail that read an older version of the pod (`bind.fence_pod`).
"""

from collections.abc import Awaitable, Callable
from enum import Enum

from deviceshare.domain.objects import ledger
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster
from deviceshare.loops.protocol import bind, holders


class Release(Enum):
    """How a release ended."""

    LEFT = "the group has no node any more"
    STAYS = "a pod of it lives on the node"
    ABSENT = "the group isn't bound there, or its claim is missing"


async def release(
    cluster: Cluster,
    node: str,
    uid: str,
    *,
    new_mark: Callable[[], str],
    wait_out_binds: Callable[[str], Awaitable[None]],
) -> Release:
    """Unbinds the group from the node and drops its claim, unless one of its pods lives there.

    Arguments and errors are those of `collect`. Who stops half-way, or finds that the group has left, leaves a marked
    claim, which collect ends: it takes the mark away from a group that still lives there.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None:
        return Release.ABSENT
    # 1. From here on nobody joins by this claim.
    mark = claim.releasing or new_mark()
    if not claim.releasing:
        seen = await cluster.patch(NODE_DEVICES, node, ledger.mark_patch(seen, uid, mark))
    holder = claim.holder(uid)
    # 2. Whoever read the ledger before and is about to write a pod fails by its version, or has ended.
    for pod in await holders.pods(cluster, holder):
        if pod.pending:
            await bind.fence_pod(cluster, pod, mark)
    await wait_out_binds(mark)
    # 3. The group is read first: a write of it after the list makes step 4 fail.
    group = await holders.read_group(cluster, holder)
    pods = await holders.pods(cluster, holder)
    if group is None or group.node != node:
        return Release.ABSENT  # An earlier try came as far as step 4, or the group went by itself: collect ends it.
    if any(pod.holds(uid, node) for pod in pods):
        await cluster.patch(NODE_DEVICES, node, ledger.unmark_patch(seen, uid))
        return Release.STAYS
    # 4. The group has no node, and binds that read it before fail.
    await holders.unsettle(cluster, group)
    # 5. With the version of step 1.
    await cluster.patch(NODE_DEVICES, node, ledger.drop_patch(seen, uid))
    return Release.LEFT
