"""Shares that their containers exceed: told to their owners, and their pods evicted where that is enabled.

What a pod uses beyond its share is missing for the others on the device, whose programs then fail to allocate. Only the
pod that exceeds is ever told or evicted, never another one on the device.
"""

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from deviceshare.domain.device_health.overuse import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_TOLERANCE_PERCENT,
    OVERUSE_CURE,
    Exceeder,
    Streak,
    bound,
    exceeder,
    exceeds,
    is_over,
    streaks,
)
from deviceshare.domain.device_health.overuse_report import READINGS, OveruseReport
from deviceshare.domain.device_health.share_uses import ShareUse, share_uses
from deviceshare.domain.device_health.trespasses import Occupant
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.loops.agent.evictions import SPARED, Intruder
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import Subject

log = structlog.get_logger(__name__)

REASON: Final = "MemoryShareExceeded"
"""Of the Events."""
QUIET_SECONDS: Final = 600.0
"""Between two Events about one container and device, for as long as it exceeds."""


class ShareWatch:
    """Compares each reading with the shares, and remembers since when each is exceeded."""

    def __init__(
        self,
        node: OwnNode,
        *,
        tolerance: int = DEFAULT_TOLERANCE_PERCENT,
        grace: float = DEFAULT_GRACE_SECONDS,
        evict: Callable[[Intruder], object] | None = None,
        spare: Callable[[Intruder], object] = lambda _: None,
    ) -> None:
        """`tolerance` is in percent of a share, `grace` in seconds.

        `evict` is called with each pod to evict, at each look, and `spare` once it isn't to be evicted any more; None
        where no pod is to be evicted.
        """
        self._node = node
        self._tolerance = tolerance
        self._grace = grace
        self._evict = evict
        self._spare = spare
        self.report = OveruseReport()
        self._wanted: set[Intruder] = set()
        self._streaks: dict[Exceeder, Streak] = {}
        self._told: dict[Exceeder, float] = {}
        """When somebody was told of it."""
        self._announced: set[Exceeder] = set()
        """Likewise, of its eviction."""

    def look(self, ledger: NodeDevices, occupants: Iterable[Occupant], read_at: float) -> list[tuple[ShareUse, bool]]:
        """The use of every share, and whether it exceeds what is tolerated."""
        rows = [(use, exceeds(use, self._tolerance)) for use in share_uses(ledger, occupants)]
        exceeding = {exceeder(use): use for use, exceeded in rows if exceeded}
        self._streaks = streaks(self._streaks, exceeding, read_at)
        self._announced &= exceeding.keys()
        now = self._node.clock()
        self.report.update(rows, self._streaks, now, self._node.now())
        self._told = {each: at for each, at in self._told.items() if now - at < QUIET_SECONDS}
        wanted = set()
        for each, use in exceeding.items():
            if not self._stays(use):
                continue  # There is nothing more to ask of it.
            streak = self._streaks[each]
            if streak.readings >= READINGS and each not in self._told:
                self._told[each] = now
                self._tell(use)
            if self._evicts(use) and is_over(streak, grace=self._grace, now=now):
                wanted.add(self._request_eviction(each, use))
        for intruder in self._wanted - wanted:
            self._spare(intruder)
        self._wanted = wanted
        return rows

    def _stays(self, use: ShareUse) -> bool:
        """Whether the pod is the one that the claim means, and isn't being deleted."""
        pod = self._node.pods.get(use.pod)
        return pod is not None and pod.metadata.uid == use.pod_uid and not pod.metadata.deletion_timestamp

    def _evicts(self, use: ShareUse) -> bool:
        return self._evict is not None and not use.pod.startswith(f"{SPARED}/")

    def _tell(self, use: ShareUse) -> None:
        limit, most = use.limit_mib, bound(use, self._tolerance)
        log.warning("Found an exceeded share", pod=use.pod, container=use.container, used=use.used_mib, limit=limit)
        next_step = OVERUSE_CURE
        if self._evicts(use):
            next_step += f"; above {most} MiB for {self._grace:.0f} s the pod is evicted"
        self._warn(use, f"{self._what(use)}, its share is {limit} MiB and the rest belongs to others: {next_step}")

    def _request_eviction(self, which: Exceeder, use: ShareUse) -> Intruder:
        namespace, _, name = use.pod.partition("/")
        intruder = Intruder(namespace, name, use.pod_uid)
        if self._evict:
            self._evict(intruder)
        if which not in self._announced:
            self._announced.add(which)
            most = bound(use, self._tolerance)
            text = f"{self._what(use)}, and has been above {most} MiB for {self._grace:.0f} s: its pod is being evicted"
            self._warn(use, f"{text}, since its share is {use.limit_mib} MiB; ask for a larger one")
        return intruder

    def _what(self, use: ShareUse) -> str:
        who = f"container {use.container}" if use.container else "the pod"
        return f"{who} uses {use.used_mib} MiB of {use.device} on node {self._node.name}"

    def _warn(self, use: ShareUse, message: str) -> None:
        namespace, _, name = use.pod.partition("/")
        self._node.recorder.warn(Subject(PODS, name, namespace, use.pod_uid), REASON, message)
