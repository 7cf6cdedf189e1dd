"""The claim protocol's rebind: a group gets other devices in place of unhealthy ones (claims.md, rebind).

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
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Cluster, NotFound
from deviceshare.loops.protocol import bind, holders


class Answer(NamedTuple):
    """What came of a request: the ledger as written and what was done."""

    group: Group
    ledger: NodeDevices
    verdict: Replacement


async def rebind(cluster: Cluster, name: str, *, opaque: Callable[[str], Collection[str]]) -> Answer | None:
    """Answers the group's request for other devices, whatever the answer is; None when there is none to be given.

    `opaque` gives, for a node, the resources of which a device plugin allocated devices, unknown which.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    # The group first: a leader that wakes late with an older request must not win over the answer to a newer one.
    try:
        group = await cluster.get(GROUPS, name)
        if not group.node:
            return None
        seen = await cluster.get(NODE_DEVICES, group.node)
    except NotFound:
        return None
    claim = seen.claims.get(group.uid)
    if claim is None or not replacement.awaits(group, seen, claim):
        return None
    verdict = replacement.judge(seen, claim, opaque(group.node))
    patch = replacement.rebind_patch(seen, group.uid, group.rebind, verdict)
    written = await cluster.patch(NODE_DEVICES, seen.node, patch)
    return Answer(group, written, verdict)


async def tell(cluster: Cluster, node: str, uid: str, pods: Iterable[Pod]) -> list[Pod]:
    """Writes what the holder's claim has into the annotations of its pods; answers with those that were changed.

    `pods` were read before this call, be it from a mirror. The ledger is read after them, and each pod is changed only
    if nobody wrote it since: so an old leader can't write devices into a pod that a newer one has given up.

    Raises:
        Conflict: somebody else wrote a pod; retry.
        ApiError: a request failed; retry.
    """
    try:
        seen = await cluster.get(NODE_DEVICES, node)
    except NotFound:
        return []
    claim = seen.claims.get(uid)
    if claim is None:
        return []
    changed = []
    for pod in pods:
        annotations = replacement.annotation_changes(pod, seen, claim)
        if not annotations:
            continue
        meta = pod.metadata
        body = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
        try:
            changed.append(await cluster.patch(PODS, meta.name, body, namespace=meta.namespace))
        except NotFound:
            continue  # It has ended, and its name is nobody's or another pod's.
    return changed


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
    try:
        seen = await cluster.get(NODE_DEVICES, node)
    except NotFound:
        return None
    claim = seen.claims.get(uid)
    if claim is None or not claim.former:
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
