"""What is done about trespasses and exceeded shares: Events, and evictions where they are enabled.

What a pod uses beyond its share is missing for the others on the device, whose programs then fail to allocate. Only the
pod that trespasses or exceeds is ever told or evicted, never another one on the device.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from deviceshare.agent.own_node import OwnNode, pod_subject
from deviceshare.domain.device_health.containers import NodeProcess
from deviceshare.domain.device_health.violations import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_TOLERANCE_PERCENT,
    OVERUSE_CURE,
    READINGS,
    Overuses,
    ShareKey,
    ShareUse,
    Trespasses,
    share_uses,
)
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.wording import listed, quoted
from deviceshare.loops.kinds import node_subject
from deviceshare.loops.ports import Conflict, NotFound, Subject
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

TRESPASS: Final = "trespass"
OVERUSE: Final = "overuse"
CAUSES: Final = (TRESPASS, OVERUSE)
"""Why a pod is evicted, in the log and the metrics."""
SPARED: Final = "kube-system"
"""The namespace whose pods are never evicted: the cluster's own, such as device plugins."""
FRESH_SECONDS: Final = 15.0
"""For so long a request to evict holds: a pod that ceased while a budget protected it is spared."""
REST_SECONDS: Final = 60.0
"""After an eviction, until the same pod may be evicted again: it may take its time to end."""
QUIET_SECONDS: Final = 600.0
"""Between two Events about one container and device, for as long as it exceeds."""
EXCEEDED: Final = "MemoryShareExceeded"
"""The reason of the Events about it."""


@dataclass(eq=False)
class Evictions:
    """Evicts pods while `run` runs, by the eviction API: it honours PodDisruptionBudgets and grace periods."""

    node: OwnNode
    on_evicted: Callable[[str], object] = lambda _: None
    """Called with the cause of each eviction."""

    def __post_init__(self) -> None:
        self._wanted: dict[Subject, tuple[float, str]] = {}
        self._evicted: dict[Subject, float] = {}
        self._queue: Queue[Subject] = Queue("evictions", self._reconcile, workers=2, clock=self.node.clock)
        self.run = self._queue.run

    def want(self, pod: Subject, cause: str) -> None:
        """Has the pod evicted. To be repeated for as long as it is meant."""
        now = self.node.clock()
        self._wanted = {each: wish for each, wish in self._wanted.items() if now - wish[0] < FRESH_SECONDS}
        self._evicted = {each: at for each, at in self._evicted.items() if now - at < REST_SECONDS}
        if pod not in self._evicted:
            self._wanted[pod] = now, cause
            self._queue.add(pod)

    def spare(self, cause: str, *, but: Collection[Subject] = ()) -> None:
        """Spares all other pods at once that were to be evicted for this cause."""
        self._wanted = {pod: wish for pod, wish in self._wanted.items() if wish[1] != cause or pod in but}

    async def _reconcile(self, pod: Subject) -> None:
        at, cause = self._wanted.get(pod, (-FRESH_SECONDS, ""))
        if pod in self._evicted or self.node.clock() - at >= FRESH_SECONDS:
            return
        try:
            await self.node.writer.evict(pod.namespace, pod.name, uid=pod.uid)
        except (NotFound, Conflict):
            return
        self._evicted[pod] = self.node.clock()
        self.on_evicted(cause)
        log.warning("Evicted a pod", cause=cause, namespace=pod.namespace, pod=pod.name, uid=pod.uid)


@dataclass(eq=False)
class Violations:
    """Remembers what each reading shows of the node's processes, and tells of it."""

    node: OwnNode
    evictions: Evictions
    enforced: Collection[str] = ()
    """For which of CAUSES pods are evicted, for overuse after `grace` seconds."""
    tolerance: int = DEFAULT_TOLERANCE_PERCENT
    grace: float = DEFAULT_GRACE_SECONDS

    def __post_init__(self) -> None:
        self.trespasses = Trespasses()
        self.overuses = Overuses(self.tolerance)
        self._told: dict[ShareKey, float] = {}
        """When an Event was recorded about it."""
        self._announced: set[ShareKey] = set()
        """Shares whose pod's eviction an Event was recorded of."""

    def take(self, ledger: NodeDevices, processes: Collection[NodeProcess], read_at: float) -> list[ShareUse]:
        """The use of every share on the node."""
        for found in self.trespasses.take(ledger, processes):
            container = found.process.container
            pod = pod_subject(container.pod, container.pod_uid)
            if found.news:
                self._tell_of_trespass(ledger, found.process, found.row.process, pod)
            if found.seen_before and pod.uid and self._evicts(pod, TRESPASS):
                self.evictions.want(pod, TRESPASS)
        uses = share_uses(ledger, processes)
        self._act_on(self.overuses.take(uses, read_at, self.node.clock(), self.node.now()))
        return uses

    def _evicts(self, pod: Subject, cause: str) -> bool:
        return cause in self.enforced and pod.namespace != SPARED

    def _tell_of_trespass(self, ledger: NodeDevices, process: NodeProcess, name: str, pod: Subject) -> None:
        device, pid = process.device, process.use.pid
        claims = [claim for claim in ledger.claims.values() if device in ledger.reserved(claim)]
        groups = listed(sorted(claim.group for claim in claims if claim.group))
        container = process.container.pod
        log.warning("Found a trespasser", device=str(device), groups=groups, pod=container, process=name, pid=pid)
        # Of pods with shares no names: who reads a pod's events may not see those of other namespaces.
        whose = (
            f"SharedDeviceGroup {groups} holds, but belongs to no pod of it"
            if groups
            else "pods with shares have, but belongs to none of them"
        )
        message = f"process {quoted(name)} (PID {pid}) uses {device} of node {self.node.name}, which {whose}"
        self.node.recorder.warn(pod if pod.uid else node_subject(self.node.name), "Trespass", message)

    def _act_on(self, exceeding: Iterable[ShareUse]) -> None:
        now = self.node.clock()
        self._announced &= self.overuses.streaks.keys()
        self._told = {each: at for each, at in self._told.items() if now - at < QUIET_SECONDS}
        wanted = set()
        for use in exceeding:
            pod = pod_subject(use.pod, use.pod_uid)
            streak = self.overuses.streaks[use.key]
            seen = self.node.pods.get(use.pod)
            if seen is None or seen.metadata.uid != use.pod_uid or seen.metadata.deletion_timestamp:
                continue  # It is another pod, or there is nothing more to ask of it.
            if streak.readings >= READINGS and use.key not in self._told:
                self._told[use.key] = now
                self._tell_of_overuse(use, pod)
            if self._evicts(pod, OVERUSE) and streak.is_over(self.grace, now):
                wanted.add(pod)
                self.evictions.want(pod, OVERUSE)
                if use.key not in self._announced:
                    self._announced.add(use.key)
                    text = f"and has been {self._above(use)}: its pod is being evicted, since its share is"
                    self._warn(use, pod, f"{text} {use.limit_mib} MiB; ask for a larger one")
        self.evictions.spare(OVERUSE, but=wanted)

    def _tell_of_overuse(self, use: ShareUse, pod: Subject) -> None:
        limit = use.limit_mib
        log.warning("Found an exceeded share", pod=use.pod, container=use.container, used=use.used_mib, limit=limit)
        then = f"; {self._above(use)} the pod is evicted" if self._evicts(pod, OVERUSE) else ""
        self._warn(use, pod, f"its share is {limit} MiB and the rest belongs to others: {OVERUSE_CURE}{then}")

    def _above(self, use: ShareUse) -> str:
        return f"above {self.overuses.bound(use)} MiB for {self.grace:.0f} s"

    def _warn(self, use: ShareUse, pod: Subject, text: str) -> None:
        who = f"container {use.container}" if use.container else "the pod"
        what = f"{who} uses {use.used_mib} MiB of {use.device} on node {self.node.name}"
        self.node.recorder.warn(pod, EXCEEDED, f"{what}, {text}")
