"""Memory limits: how much of each device's memory the driver is to give a container, by its control group.

A limit is never above what any record of the share says: the claim in the ledger, the pod's annotation, from which a
lost ledger is restored, and what was reported as lowered for a resize. So at no moment do the limits of a device's
containers come to more than what its claims leave to nobody else (claims.md, resize).
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from deviceshare.domain import contract
from deviceshare.domain.device_health.containers import NodePod
from deviceshare.domain.device_health.violations import limit_of_container
from deviceshare.domain.objects.hardware import LimitReport
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.share_wishes import burst_mib, sizes_wanted
from deviceshare.domain.objects.shares import INITS, INTERCEPTED, Share, container_annotation, current

MIB: Final = 1 << 20


class GroupMemory(NamedTuple):
    """What a control group may use of a device's memory, in bytes."""

    soft: int
    """What is kept for the container while others want memory, too: its share."""
    hard: int
    """Beyond which its allocations fail."""
    used: int = 0


UNLIMITED: Final = GroupMemory(0, (1 << 64) - 1)
"""Of a device that a container has as a whole; one that it had a part of before may have a limit."""
Limits = Mapping[str, GroupMemory]
"""By the device's UUID."""


LimitKey = tuple[str, str, str]
"""The pod's UID, the container's name and the device's UUID."""


class PodLimits(NamedTuple):
    """Those of one pod with shares."""

    pod: str
    """`namespace/name`"""
    uid: str
    containers: Mapping[str, Limits]
    names: Mapping[str, str]
    """The container's name by its ID, as the kubelet reports both a moment after its start."""
    wanted: Mapping[str, Limits]
    """Smaller limits that its user asks for, of containers whose share isn't as small yet."""

    def of(self, container_id: str) -> tuple[str, Limits]:
        """A container's name and its limits. While it is unknown which it is, the least of each device."""
        if name := self.names.get(container_id):
            return name, self.containers.get(name, {})
        least: dict[str, GroupMemory] = {}
        for limits in self.containers.values():
            for uuid, limit in limits.items():
                least[uuid] = min(limit, least.get(uuid, limit), key=lambda each: each.hard)
        return "", least


def limits_of(ledger: NodeDevices, pods: Mapping[str, NodePod], lowered: Mapping[LimitKey, int]) -> list[PodLimits]:
    """The limits of every pod with shares on the node; `pods` by UID.

    `lowered` has limits that may have been reported and must not be exceeded.
    """
    reported = {each.key: each.limit_mib for each in ledger.status.hardware.limits if each.limit_mib}
    for key, limit in lowered.items():
        reported[key] = min(limit, reported.get(key, limit))
    return [
        _of_pod(ledger, uid, pods[uid], claim.shares, reported)
        for uid, claim in ledger.claims.items()
        if claim.pod and uid in pods
    ]


def unintercepted(ledger: NodeDevices, pods: Mapping[str, NodePod]) -> list[LimitReport]:
    """The containers whose Binding gave them no limit for HAMi-core, with the cure; `pods` by UID."""
    found = []
    for uid, claim in ledger.claims.items():
        for share in current(claim.shares) if uid in pods else ():
            meta, device = pods[uid].metadata, ledger.present(share.device)
            if container_annotation(INTERCEPTED, share.container) not in meta.annotations:
                why = _BOUND_BEFORE if share.memory_mib or ledger.memory_of(device) else _SIZE_UNKNOWN
                found.append(LimitReport(meta.key, uid, share.container, device.uuid, missing=why))
    return sorted(found)


_BOUND_BEFORE: Final = "it was bound before HAMi-core was there: recreate the pod"
_SIZE_UNKNOWN: Final = "the memory of its device is unknown: see the agent's log, then recreate the pod"


def _of_pod(
    ledger: NodeDevices, uid: str, pod: NodePod, claimed: Iterable[Share], lowered: Mapping[LimitKey, int]
) -> PodLimits:
    meta, status, shares, told = pod.metadata, pod.status, list(claimed), _told(pod)
    # Of init containers that coincide the claim has one (shares.stored_once): the annotation has each.
    shares += [each for each in told if each.role in INITS and all(s.container != each.container for s in shares)]
    sizes, burst = sizes_wanted(meta.annotations), burst_mib(meta.annotations)
    containers: dict[str, dict[str, GroupMemory]] = {}
    wanted: dict[str, dict[str, GroupMemory]] = {}
    for share in shares:
        device = ledger.present(share.device)
        if not (size := ledger.memory_of(device)) or not device.uuid:
            continue
        same = [s for s in told if (s.container, ledger.present(s.device)) == (share.container, device)]
        soft = min(limit_of_container((each,), size) for each in (share, *same))
        soft = min(soft, lowered.get((uid, share.container, device.uuid), soft))
        limit = _limit(soft, min(burst, size)) if soft < size else UNLIMITED
        containers.setdefault(share.container, {})[device.uuid] = limit
        if share.container in sizes and not share.former:
            memory, percent = sizes[share.container]
            asked = memory or percent * size // 100
            if asked < soft or (asked <= soft < limit_of_container((share,), size)):
                wanted.setdefault(share.container, {})[device.uuid] = _limit(asked, min(burst, size))
    every = (*status.container_statuses, *status.init_container_statuses, *status.ephemeral_container_statuses)
    return PodLimits(meta.key, uid, containers, {each.id: each.name for each in every if each.id}, wanted)


def _limit(share: int, burst: int) -> GroupMemory:
    """Of amounts in MiB."""
    return GroupMemory(share * MIB, max(share, burst) * MIB)


def _told(pod: NodePod) -> tuple[Share, ...]:
    try:
        return current(msgspec.json.decode(pod.metadata.annotations.get(contract.SHARES, "[]"), type=list[Share]))
    except ValueError:
        return ()
