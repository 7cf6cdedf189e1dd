"""The claim protocol's rebind: replaces the unhealthy devices of a group, or of a pod's share (claims.md, rebind).

The holder stays where it is, and keeps its healthy devices. What is replaced stays reserved in the claim until no
bind or pod can have it any more. Every step looks again, and each can be the last that this process takes.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.requests import Holder
from deviceshare.domain.placement import replacement, share_replacement
from deviceshare.domain.placement.replacement import Replacement, rebind_patch
from deviceshare.loops.api_objects import annotate, find
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES
from deviceshare.loops.ports import Cluster, Forbidden, Invalid
from deviceshare.loops.protocol import bind, holders
from deviceshare.loops.protocol.claiming import write_claims


class Answer(NamedTuple):
    """The answer to a request: the ledger as written, and what was replaced or why nothing was."""

    asked: Group | Pod
    holder: Holder
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
    verdict = share_replacement.judge_group(seen, group.uid, opaque(group.node))
    written = await write_claims(cluster, seen, rebind_patch(seen, group.uid, group.rebind, verdict))
    return Answer(group, group.holder, written, verdict)


async def rebind_share(
    cluster: Cluster, node: str, holder: Holder, *, opaque: Callable[[str], Collection[str]]
) -> Answer | None:
    """The same for a pod with a share on the node; None also while its annotations differ from its claim.

    So it was told each device that its claim ever named. A pod without a node is never answered: its bind may have read
    the claim, and chooses again when it has failed.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    # The pod first, as the group above; its annotations, once it has a node, are changed by update_pods alone.
    pod = await holders.read_pod(cluster, holder)
    if pod is None or pod.metadata.uid != holder.uid:
        return None
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(holder.uid)) is None or not claim.pod:
        return None
    if not share_replacement.awaits(pod, seen, claim):
        return None
    verdict = share_replacement.judge_share(seen, pod, opaque(node))
    written = await write_claims(cluster, seen, rebind_patch(seen, holder.uid, pod.rebind, verdict))
    return Answer(pod, holder, written, verdict)


async def update_pods(
    cluster: Cluster,
    node: str,
    uid: str,
    pods: Iterable[Pod],
    on_unwritable: bind.OnUnwritable = lambda _pod, _why: None,
) -> list[Pod]:
    """Writes the devices of the holder's claim into the annotations of its pods; returns those that were changed.

    A pod that refuses that holds up no other: what it had stays reserved as long as it lives.

    `pods` were read before this call, be it from a mirror. The ledger is read after them, and each pod is changed only
    if nobody wrote it since: so an old leader can't write devices into a pod that a newer one has released.

    Raises:
        Conflict: somebody else wrote a pod; retry.
        ApiError: a request failed; retry.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None:
        return []
    changes = [(pod, share_replacement.pod_changes(pod, seen, claim)) for pod in pods]
    written = []
    for pod, annotations in changes:
        try:
            if annotations and (changed := await annotate(cluster, pod, annotations)):
                written.append(changed)  # Others have ended.
        except (Forbidden, Invalid) as refusal:
            on_unwritable(pod, refusal)
    return written


async def release_former(
    cluster: Cluster,
    node: str,
    uid: str,
    *,
    wait_out_binds: Callable[[Claim], Awaitable[None]],
    on_unwritable: bind.OnUnwritable = lambda _pod, _why: None,
) -> NodeDevices | None:
    """Releases the former devices of a claim that no live pod received; None when there are none.

    Former parts of a pod's claim are released with the claim; the numbers by which it named its devices as a group's.

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
            await bind.fence_pod(cluster, pod, f"rebind {claim.rebound}", on_unwritable)
    await wait_out_binds(claim)
    pods = await holders.pods(cluster, holder)
    mine = [pod for pod in pods if pod.holds(uid, node)]
    if any(pod.metadata.hides("metadata.annotations") for pod in mine):
        return None
    # While a pod's annotations are outdated, an old leader may be about to write into them what was replaced since.
    if not all(share_replacement.is_settled(pod, seen, claim) for pod in mine):
        return None
    held = replacement.still_held(claim, mine)
    if len(held) == len(claim.former):
        return None
    return await write_claims(cluster, seen, ledger.former_patch(seen, uid, held))
