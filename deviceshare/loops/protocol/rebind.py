"""The claim protocol's rebind: replaces the unhealthy devices of a group, or of a pod's share (claims.md, rebind).

The holder stays where it is, and keeps its healthy devices. What is replaced stays reserved in the claim until no
bind or pod can have it any more. Every step looks again, and each can be the last that this process takes.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Holder
from deviceshare.domain.placement import replacement
from deviceshare.domain.placement.holds import not_held
from deviceshare.domain.placement.replacement import Replacement, rebind_patch
from deviceshare.loops.kinds import NODE_DEVICES, annotate, find
from deviceshare.loops.ports import Cluster, Forbidden, Invalid
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.bind import list_holds, write_claims
from deviceshare.loops.protocol.holders import BindStop, OnUnwritable
from deviceshare.loops.queue import Later

UNHELD_SECONDS: Final = 0.5
"""Between two looks at devices that kube-scheduler is to allocate to deviceshare."""


class Answer(NamedTuple):
    """The answer to a request: the ledger as written, and what was replaced or why nothing was."""

    asked: Group | Pod
    holder: Holder
    ledger: NodeDevices
    verdict: Replacement


async def rebind(
    cluster: Cluster, node: str, holder: Holder, *, opaque: Callable[[str], Collection[str]]
) -> Answer | None:
    """Answers the holder's request for other devices; None when there is no request that can be answered now.

    `opaque` gives, for a node, the resources of which a device plugin allocated devices, unknown which.
    """
    # 1. The holder first: a leader that wakes late with an older request must not win over the answer to a newer one.
    asked = await holders.read(cluster, holder)
    if asked is None or asked.metadata.uid != holder.uid:
        return None
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(holder.uid)) is None or not replacement.awaits(asked, seen, claim):
        return None
    # 2. Replace all that is broken, with the parts that pods have of a group's devices, or nothing.
    verdict = replacement.judge(seen, asked, opaque(node))
    written = await write_claims(cluster, seen, rebind_patch(seen, holder.uid, asked.rebind, verdict))
    return Answer(asked, holder, written, verdict)


async def update_pods(
    cluster: Cluster,
    node: str,
    uid: str,
    pods: Iterable[Pod],
    on_unwritable: OnUnwritable = lambda _pod, _why: None,
    *,
    holds_in: str = "",
) -> list[Pod]:
    """Step 3: writes the devices of the holder's claim into the annotations of its pods; returns those that changed.

    A pod that refuses that holds up no other: what it had stays reserved as long as it lives.

    `pods` were read before this call, be it from a mirror. The ledger is read after them, and each pod is changed only
    if nobody wrote it since: so an old leader can't write devices into a pod that a newer one has released.

    Raises Later while DRA may give the devices to others (claims.md, holds); `holds_in` is deviceshare's namespace.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None:
        return []
    if seen.status.published.held is not None and not_held(seen, uid, by=await list_holds(cluster, holds_in, node)):
        raise Later(UNHELD_SECONDS)
    written = []
    for pod in pods:
        annotations = replacement.pod_changes(pod, seen, claim)
        try:
            if annotations and (changed := await annotate(cluster, pod, annotations)):
                written.append(changed)  # Others have ended.
        except (Forbidden, Invalid) as refusal:
            on_unwritable(pod, refusal)
    return written


async def release_former(cluster: Cluster, node: str, uid: str, stop_binds: BindStop) -> NodeDevices | None:
    """Step 4: releases the former devices of a claim that no live pod received; None when there are none.

    Former parts of a pod's claim are released with the claim; the numbers by which it named its devices as a group's.

    Binds are always waited out, until the claim has stood so for as long as one may take: every bind that read an
    earlier state of it has ended or given up then.
    """
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None or (claim := seen.claims.get(uid)) is None or not claim.former:
        return None
    holder = claim.holder(uid)
    for pod in await holders.pods(cluster, holder):
        if pod.pending:
            await holders.fence_pod(cluster, pod, f"rebind {claim.rebound}", stop_binds.on_unwritable)
    await stop_binds.wait(claim)
    mine = [pod for pod in await holders.pods(cluster, holder) if pod.holds(uid, node)]
    # While a pod's annotations are outdated, an old leader may be about to write into them what was replaced since.
    if any(pod.metadata.hides("metadata.annotations") or not replacement.is_settled(pod, seen, claim) for pod in mine):
        return None
    held = replacement.still_held(claim, mine)
    if len(held) == len(claim.former):
        return None
    return await write_claims(cluster, seen, ledger.former_patch(seen, uid, held))
