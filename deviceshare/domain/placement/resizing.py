"""A resize: a pod's share made larger or smaller where it is, without a restart (claims.md, resize).

A larger part needs room on its device. A smaller one is claimed only once the agent has reported, in the very ledger
that is written, that it lowered the limit of what runs to that: so the limits of a device's containers never come to
more than its memory. Where shares are only counted there is no limit to lower.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.share_wishes import sizes_wanted
from deviceshare.domain.objects.shares import DIALECTS, INITS, WHOLE, Share, current, in_gib, stored_once
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.rooms import capacity, mib, units, used
from deviceshare.domain.wording import listed


class Resize(NamedTuple):
    """What becomes of a pod's request now; nothing is left to do where it is empty."""

    claim: Claim | None = None
    """The claim to write."""
    uncounted: bool = False
    """Whether that is more than the pod's limits say, by which a ResourceQuota counts it."""
    obstacle: str = ""
    """Why not, and what to do: the end of a sentence about the pod."""
    lowering: str = ""
    """That the agent has its part to do first, likewise: it can only where the container runs."""


def judge(ledger: NodeDevices, pod: Pod) -> Resize:
    """Of a pod whose annotations say what its claim does; until they do it waits."""
    claim, wanted = ledger.claims.get(pod.metadata.uid), sizes_wanted(pod.metadata.annotations)
    if claim is None or claim.releasing or stored_once(pod.shares) != stored_once(claim.shares):
        return Resize()
    mine = {share.container: share.role for share in current(claim.shares)}
    if unknown := sorted(wanted.keys() - mine.keys()):
        return Resize(obstacle=f"has no share in container {listed(unknown)}: name {listed(sorted(mine), link='or')}")
    if ended := sorted(name for name in wanted if mine[name] in INITS):
        return Resize(obstacle=f"can't have another share in init container {listed(ended)}: leave it out")
    shares = []
    for share in claim.shares:
        memory, percent = (0, 0) if share.former else wanted.get(share.container, (0, 0))
        shares.append(replace(share, memory_mib=memory, percent=percent) if memory or percent else share)
    if shares == claim.shares:
        return Resize()
    if obstacle := _shortage(ledger, claim, shares):
        return Resize(obstacle=obstacle)
    if not ledger.counts_only and not all(
        _may_shrink(ledger, pod, before, after) for before, after in zip(claim.shares, shares, strict=True)
    ):
        return Resize(lowering="keeps its share until the node's agent has lowered the limit of its running container")
    return Resize(replace(claim, shares=shares), any(_is_uncounted(ledger, pod, share) for share in shares))


def refusal(ledger: NodeDevices, pod: Pod) -> str:
    """Why the pod can't have less now, by the agent's report: the end of a sentence about it, or "".

    A report of an earlier request may still be there.
    """
    wanted = sizes_wanted(pod.metadata.annotations)
    for each in ledger.status.hardware.limits:
        if each.uid == pod.metadata.uid and each.used_mib and each.container in wanted:
            memory, percent = wanted[each.container]
            part = ledger.hardware.named(each.uuid)
            if each.used_mib > (memory or percent * (part.memory_mib if part else 0) // WHOLE):
                uses = f"container {each.container} uses {each.used_mib} MiB, more than asked for"
                return f"keeps its share: {uses}; it gets less as soon as it uses less"
    return ""


def _is_uncounted(ledger: NodeDevices, pod: Pod, share: Share) -> bool:
    size = ledger.memory_of(ledger.present(share.device))
    asked = (units(need, size) for need in pod.share.container(share.container))
    return (units(share, size) or 0) > max((each for each in asked if each is not None), default=0)


def counts_shares(hard: Iterable[str]) -> bool:
    """Whether a ResourceQuota with these names counts shares, by the limits of pods."""
    return any(name.removeprefix("requests.") in DIALECTS for name in hard)


def _shortage(ledger: NodeDevices, claim: Claim, after: Sequence[Share]) -> str:
    """Which device has less than its parts are to have in all."""
    rooms = dict(allocation.rooms(device_states(ledger), claim.within))
    for device in sorted({ledger.present(share.device) for share in current(after)}):
        size = ledger.memory_of(device)
        if not size and any(share.memory_mib for share in after):
            return f"asks for MiB of {device}, whose memory is unknown: ask for percent, or run the node's agent"
        before_cost, cost = (
            used([share for share in each if ledger.present(share.device) == device], size)
            for each in (claim.shares, after)
        )
        if cost > capacity(size) or any((units(share, size) or 0) > capacity(size) for share in after):
            return f"asks for more than {device} has ({in_gib(size) if size else '100%'}): ask for less"
        room = rooms.get(device)
        if cost - before_cost > max(room.free if room else 0, 0):
            free = f"{room} of it is free" if room else "it takes no more shares"
            more = f"{in_gib(mib(cost - before_cost, size)) if size else f'{cost - before_cost}%'} more of {device}"
            return f"needs {more}, and {free}: it gets that as soon as others leave it"
    return ""


def _may_shrink(ledger: NodeDevices, pod: Pod, before: Share, after: Share) -> bool:
    """Whether what runs can't use more than the part is to be, as the ledger says."""
    device = ledger.present(before.device)
    size = ledger.memory_of(device)
    now, then = mib(units(before, size) or 0, size), mib(units(after, size) or 0, size)
    if then >= now:
        return True
    key = pod.metadata.uid, before.container, device.uuid
    return any(each.key == key and 0 < each.limit_mib <= then for each in ledger.status.hardware.limits)
