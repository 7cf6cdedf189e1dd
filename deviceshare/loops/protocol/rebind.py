"""The claim protocol's rebind: replaces the unhealthy devices of a group (claims.md, rebind).

The group stays where it is, and keeps its healthy devices. What is replaced stays reserved in the claim until no
bind or pod can have it any more. Every step looks again, and each can be the last that this process takes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import replacement
from deviceshare.domain.placement.replacement import Replacement
from deviceshare.loops.api_objects import annotate, find
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES
from deviceshare.loops.ports import Cluster
from deviceshare.loops.protocol import bind, holders


class Answer(NamedTuple):
    """The answer to a request: the ledger as written, and what was replaced or why nothing was."""

    group: Group
    ledger: NodeDevices
    verdict: Replacement


async def rebind(cluster: Cluster, name: str, *, opaque: Callable[[str], Collection[str]]) -> Answer | None:
    """Answers the group's request for other devices; None when there is no request that can be answered now.

    `opaque` gives, for a node, the resources of which a device plugin allocated devices, unknown which.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    # The group first: a leader that wakes late with an older request must not win over the answer to a newer one.
    group = await find(cluster, GROUPS, name)
    if group is None or not group.node:
        return None
    seen = await find(cluster, NODE_DEVICES, group.node)
    if seen is None or (claim := seen.claims.get(group.uid)) is None or not replacement.awaits(group, seen, claim):
        return None
    verdict = replacement.judge(seen, claim, opaque(group.node))
    patch = replacement.rebind_patch(seen, group.uid, group.rebind, verdict)
    written = await cluster.patch(NODE_DEVICES, seen.node, patch)
    return Answer(group, written, verdict)


async def update_pods(cluster: Cluster, node: str, uid: str, pods: Iterable[Pod]) -> list[Pod]:
    """Writes the devices of the holder's claim into the annotations of its pods; returns those that were changed.

    `pods` were read before this call, be it from a mirror. The ledger is read after them, and each pod is changed only
    if nobody wrote it since: so an old leader can't write devices into a pod that a newer one has released.

    Raises:
        Conflict: somebody else wrote a pod; retry.
        ApiError: a request failed; retry.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None:
        return []
    changes = [(pod, replacement.annotation_changes(pod, seen, claim)) for pod in pods]
    written = [await annotate(cluster, pod, annotations) for pod, annotations in changes if annotations]
    return [pod for pod in written if pod is not None]  # Others have ended.


async def release_former(
    cluster: Cluster, node: str, uid: str, *, wait_out_binds: Callable[[Claim], Awaitable[None]]
) -> NodeDevices | None:
    """Releases the former devices of a claim that no live pod received; None when there are none.

    `wait_out_binds` is called with the claim; it returns once the claim has stood so for as long as a bind may take,
    so that every bind that read an earlier state of it has ended or given up.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None or not claim.former:
        return None
    holder = claim.holder(uid)
    for pod in await holders.pods(cluster, holder):
        if pod.pending:
            await bind.fence_pod(cluster, pod, f"rebind {claim.rebound}")
    await wait_out_binds(claim)
    pods = await holders.pods(cluster, holder)
    mine = [pod for pod in pods if pod.holds(uid, node)]
    if any(pod.metadata.hides("metadata.annotations") for pod in mine):
        return None
    # While a pod's annotations are outdated, an old leader may be about to write into them what was replaced since.
    if not all(replacement.is_settled(pod, seen, claim) for pod in mine):
        return None
    held = replacement.still_held(claim, mine)
    if len(held) == len(claim.former):
        return None
    return await cluster.patch(NODE_DEVICES, node, ledger.former_patch(seen, uid, held))
