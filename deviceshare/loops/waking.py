"""Wakes pods that now fit: kube-scheduler doesn't know that our devices came free and may leave a pod for minutes.

Any change of a pod's annotations has the scheduler try it again at once, so that is how it is told. Of an unbound
group only the pod that waits longest is touched at first: it takes the group to a node, and then the others are. If 500
pods were touched for one freed device, the one that gets it would stand in line behind the rest.

A touch may be missed, or something else than devices may be lacking. So while pods wait that should fit, all of them
are touched again, less and less often.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import structlog
from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.fleet import Fleet
from deviceshare.domain.groups import Group
from deviceshare.domain.pods import Pod
from deviceshare.loops.kinds import PODS
from deviceshare.loops.members import Members
from deviceshare.loops.ports import Cluster, Mirror, NotFound
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

WORKERS = 8
AGAIN_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""After a touch that changed nothing; the last for ever."""
GATHER_SECONDS = 0.05
"""Between a change of the nodes and the look at all who wait: changes come in bursts."""

WAITING_GROUPS = ""
"""The key that stands for every group that pods wait for; no object has this name."""


class _Woken(Struct):
    """What was done for a group so far."""

    fits: frozenset[str]
    """The nodes that it fitted on when we last looked."""
    at: float
    times: int = 0
    pods: set[str] = field(default_factory=set)
    """The UIDs of the pods touched."""

    @property
    def again_at(self) -> float:
        return self.at + AGAIN_SECONDS[min(self.times, len(AGAIN_SECONDS) - 1)]


class Waker:
    """The reconciler of pods that wait, keyed by their group's name."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: Fleet,
        *,
        groups: Mirror[Group],
        pods: Mirror[Pod],
        members: Members,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue: Queue[str] = Queue("waking", self._reconcile, workers=WORKERS, clock=clock)
        self._cluster = cluster
        self._fleet = fleet
        self._groups = groups
        self._pods = pods
        self._members = members
        self._clock = clock
        self._woken: dict[str, _Woken] = {}

    def look_at_waiting(self) -> None:
        """Has every group that pods wait for looked at: devices came free, or a node came or changed."""
        self.queue.add(WAITING_GROUPS, GATHER_SECONDS)

    async def _reconcile(self, name: str) -> None:
        if name == WAITING_GROUPS:
            for waiting in self._members.waiting():
                self.queue.add(waiting)
            return
        group = self._groups.get(name)
        pods = _refused(self._members.pending(name))
        if group is None or group.deleting or not pods:
            self._woken.pop(name, None)
            return
        fits = frozenset(self._fleet.filter(group, self._fleet.names()).fits)
        if not fits:
            # A bind that fails gives back what it had assumed without anybody being told: look again by ourselves.
            self._woken.pop(name, None)
            self.queue.add(name, AGAIN_SECONDS[0])
            return
        woken = self._woken.get(name)
        if woken is None or fits - woken.fits or not any(pod.metadata.uid in woken.pods for pod in pods):
            woken = _Woken(fits, self._clock())
            chosen = pods if group.node else pods[:1]
        elif self._clock() >= woken.again_at:
            woken = _Woken(fits, self._clock(), woken.times + 1)
            chosen = pods
        else:
            chosen = [pod for pod in pods if pod.metadata.uid not in woken.pods] if group.node else []
            woken.fits = fits
        for pod in chosen:
            await self._touch(pod)
            woken.pods.add(pod.metadata.uid)
        # Only now: were a touch to fail, the next try would begin as this one did.
        self._woken[name] = woken
        self.queue.add(name, woken.again_at - self._clock())

    async def _touch(self, pod: Pod) -> None:
        """Raises Conflict when somebody wrote the pod meanwhile; it may have been bound."""
        meta = pod.metadata
        body = {
            "metadata": {
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
                "annotations": {contract.WOKEN_AT: f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"},
            }
        }
        try:
            self._pods.put(await self._cluster.patch(PODS, meta.name, body, namespace=meta.namespace))
        except NotFound:
            return
        log.info("Woke pod", pod=meta.key, group=pod.group)


def _refused(pods: list[Pod]) -> list[Pod]:
    """The pods that the scheduler has tried in vain, the longest waiting first."""
    refused = [pod for pod in pods if pod.refused and not pod.metadata.deletion_timestamp]
    return sorted(refused, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.key))
