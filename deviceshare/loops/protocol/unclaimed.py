"""The claim protocol's repair of a bound group without a claim: it leaves its node (claims.md, repair).

So it is where a ledger was lost twice while a leader recreated it, or where a person deleted the claim. Nobody can join
such a group. The steps are those of a release (release.py), but there is no claim to mark: instead of the second mark
the ledger is written, so that nobody puts the claim back who read the ledger before.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.requests import Holder
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Cluster
from deviceshare.loops.protocol import bind, holders
from deviceshare.loops.protocol.release import Release


async def leave(
    cluster: Cluster,
    node: str,
    holder: Holder,
    *,
    mark: str,
    new_mark: Callable[[], str],
    wait_out_binds: Callable[[str], Awaitable[None]],
    on_unwritable: bind.OnUnwritable = lambda _pod, _why: None,
    status: Callable[[Group], Mapping[str, Any]] = lambda _: {},
) -> Release:
    """Unbinds the group from the node whose open ledger has no claim of it, unless one of its pods lives there.

    `mark` stands for the time since when the claim has been missing: whoever calls this again, since binds have to be
    waited out, passes the same one as long as the claim was not there in between. The other arguments are those of
    `release`. ABSENT: the group isn't bound there, its claim is there, or its ledger is closed or lost.

    Raises:
        Conflict: somebody else wrote G or L; retry.
        ApiError: a request failed; retry.
    """
    waited = False
    while True:
        # G before L: a bind claims before it binds the group.
        group = await holders.read_group(cluster, holder)
        if group is None or group.node != node or group.deleting:
            return Release.ABSENT
        seen = await find(cluster, NODE_DEVICES, node)
        if seen is None or not seen.status.devices or holder.uid in seen.claims:
            return Release.ABSENT
        pods = await holders.pods(cluster, holder)
        if any(pod.holds(holder.uid, node) for pod in pods):
            return Release.STAYS
        # Whoever read the claim before it was lost and is about to write a pod fails by its version, or has ended.
        if waited or not await bind.stop_binds(cluster, pods, mark, wait_out_binds, on_unwritable):
            break
        waited = True
    # The claim is still missing, and a leader that saw a live pod of the group before can't claim for it any more.
    await cluster.patch(NODE_DEVICES, node, ledger.fence_patch(seen, new_mark()))
    # Who claims from now on has read a ledger in which nobody could join, or writes the group first.
    await holders.unsettle(cluster, group, status(group))
    return Release.LEFT
