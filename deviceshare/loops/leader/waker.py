"""The reconciler of waiting pods that now fit: wakes them by touching an annotation.

kube-scheduler doesn't learn that our devices came free and may leave a pod for minutes; any change of a pod's
annotations has it retry the pod at once. Of an unbound group only the pod that waits longest is touched at first: its
bind chooses the node, and then the others are touched. If 500 pods were touched for one freed device, the one that gets
it would be queued behind the rest.

A touch may be missed, or something else than devices may be lacking. So while pods wait that should fit, all of them
are touched again, less and less often. Of each namespace only a few are under way at a time (touch_window.py). A pod
that refuses the touch costs only its owner: the next pod of its line is touched in its place.
"""

import asyncio
from collections.abc import Collection
from typing import Final

import structlog
from msgspec import Struct, field

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.requests import POD, Holder, Request
from deviceshare.domain.objects.shares import ShareRequest
from deviceshare.domain.placement.barred_pods import ruled_out
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.api_objects import annotate
from deviceshare.loops.leader.members import WAITING_GROUPS
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.touch_window import TouchWindow
from deviceshare.loops.ports import ApiError, Conflict, ObjectChange
from deviceshare.loops.protocol.bind import REFUSALS
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

WORKERS = 8
AGAIN_SECONDS = (5.0, 10.0, 20.0, 40.0, 60.0)
"""After a touch that changed nothing; the last for ever."""
GATHER_SECONDS = 0.05
"""Between a change and the work on waiting pods: changes come in bursts, and a thousand pods take a millisecond."""
_AT_ONCE: Final = 100
"""Lines looked at between two turns of the event loop."""


class _Woken(Struct):
    """One round of touches for a group."""

    fits: frozenset[str]
    """The nodes that it fitted on when we last looked."""
    chosen: frozenset[str]
    """The UIDs of the pods to be touched (`_chosen`)."""
    at: float
    """When it began or, where pods have to take turns, was last under way."""
    times: int = 0
    """Rounds before it that changed nothing."""
    pods: set[str] = field(default_factory=set)
    """The UIDs of the pods touched."""

    @property
    def again_at(self) -> float:
        return self.at + AGAIN_SECONDS[min(self.times, len(AGAIN_SECONDS) - 1)]

    def untouched(self, pods: list[Pod]) -> list[Pod]:
        """Those of the pods that have yet to be touched, in their order."""
        return [pod for pod in pods if pod.metadata.uid in self.chosen - self.pods]


class Waker:
    """Keyed by `Pod.line`: the name of the waiting pods' group, or the share that they ask for."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("waking", self._reconcile, workers=WORKERS, clock=term.clock)
        self._woken: dict[str, _Woken] = {}
        self._window = TouchWindow()
        self._refused: dict[str, tuple[int, float]] = {}
        """By the UID of a waiting pod that refused a touch: how often in a row, and when it is touched again."""

    def change(self, change: ObjectChange[Pod]) -> None:
        """Enqueues the group of a changed pod that the scheduler refused."""
        _, old, new = change
        if old and not (new and new.pending):
            self._window.leave(old)
            self._refused.pop(old.metadata.uid, None)
            self._go_on(old.metadata.namespace)
        for pod in change.sides:
            if pod.wants_devices and pod.refusal:
                self.queue.add(pod.line, GATHER_SECONDS)

    def enqueue_waiting(self) -> None:
        """Enqueues every line of waiting pods: devices came free, or a node came or changed."""
        self.queue.add(WAITING_GROUPS, GATHER_SECONDS)

    async def _reconcile(self, name: str) -> None:
        if name == WAITING_GROUPS:
            await self._enqueue_lines()
            return
        group, now = self._term.groups.get(name), self._term.clock()
        pods = [pod for pod in self._term.members.pending(name) if pod.refusal and not pod.metadata.deletion_timestamp]
        if refused := [until for pod in pods if (until := self._refused.get(pod.metadata.uid, (0, 0.0))[1]) > now]:
            self.queue.add(name, min(refused) - now)
            pods = [pod for pod in pods if self._refused.get(pod.metadata.uid, (0, 0.0))[1] <= now]
        wanted = group.request if group else _request(pods[0], None) if pods else None
        if wanted is not None:
            # A pod that waits in vain would stand in front of those that don't, which may be other people's.
            vain = {each.pod.metadata.uid for each in ruled_out(self._term.fleet, wanted, pods)}
            pods = [pod for pod in pods if pod.metadata.uid not in vain]
        if group is not None:
            namespaces = self._term.fleet.namespaces
            pods = [pod for pod in pods if not namespaces.obstacle(group, pod.metadata.namespace)]
        usable = group is None or not (group.deleting or group.metadata.unreadable)
        nodes = self._nodes_for(pods, group) if usable else {}
        if not nodes or not any(each is not None for each in nodes.values()):
            self._rest(name)
            return
        pods = [pod for pod in pods if nodes[pod.metadata.uid]]
        fits = frozenset[str]().union(*(each or () for each in nodes.values()))
        if not fits:
            # A bind that fails forgets what it had assumed, of which there is no event: retry after a while.
            self._rest(name)
            self.queue.add(name, AGAIN_SECONDS[0 if self._term.fleet.assuming else -1])
            return
        pods.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.key))
        woken = self._woken.get(name)
        if woken is None or fits - woken.fits or not any(pod.metadata.uid in woken.pods for pod in pods):
            woken = _Woken(fits, self._chosen(pods, group, fits, 0), self._term.clock())
        elif not woken.untouched(pods) and self._term.clock() >= woken.again_at:
            times = woken.times + 1
            woken = _Woken(fits, self._chosen(pods, group, fits, times), self._term.clock(), times)
        elif group is None or group.node:
            woken.chosen = self._chosen(pods, group, fits, woken.times)  # more may have come, or more room
        woken.fits = fits
        closed = await self._touch_in_turn(woken, woken.untouched(pods))
        self._give_up(name, but=closed)
        if closed:
            woken.at = self._term.clock()
            self.queue.add(name, AGAIN_SECONDS[0])  # unless its turn comes earlier
            return
        self.queue.add(name, woken.again_at - self._term.clock())

    async def _enqueue_lines(self) -> None:
        """Enqueues the lines but for groups that fit nowhere, as they did when they were looked at."""
        for number, line in enumerate(self._term.members.lines(), 1):
            group = self._term.groups.get(line)
            if group is None or group.node or line in self._woken or self._term.waits.may_fit(group):
                self.queue.add(line)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        if self._term.fleet.assuming:  # as for one that is looked at
            self.queue.add(WAITING_GROUPS, AGAIN_SECONDS[0])

    def _nodes_for(self, pods: list[Pod], group: Group | None) -> dict[str, frozenset[str] | None]:
        """Where each of the pods fits now, by UID; None where it wants what isn't there. Equal requests count once."""
        found: dict[ShareRequest, frozenset[str] | None] = {}
        for pod in pods:
            if pod.share not in found:
                request = _request(pod, group)
                found[pod.share] = frozenset(self._term.fleet.fitting(request)) if request else None
        return {pod.metadata.uid: found[pod.share] for pod in pods}

    def _chosen(self, pods: list[Pod], group: Group | None, fits: Collection[str], times: int) -> frozenset[str]:
        """The UIDs of those to be touched, the longest waiting first: of equal shares as many as there is room for.

        In each further round twice as many: what kept the first from a node may not keep the others.
        """
        if group is not None and not group.node:
            return _uids(pods if times else pods[:1])
        chosen = set[str]()
        equal: dict[ShareRequest, list[Pod]] = {}
        for pod in pods:
            equal.setdefault(pod.share, []).append(pod)
        for share, mine in equal.items():
            request, many = _request(mine[0], group), len(mine)
            if share and request:
                many = self._term.fleet.how_many(request, sorted(fits), many) << times
            chosen |= _uids(mine[:many])
        return frozenset(chosen)

    async def _touch_in_turn(self, woken: _Woken, pods: list[Pod]) -> set[str]:
        """Touches those of a group's pods whose turn it is; returns the namespaces in whose lines the group stands."""
        closed: set[str] = set()
        for pod in pods:
            namespace = pod.metadata.namespace
            if namespace in closed:
                continue
            if not self._window.enter(pod, self._term.clock()):
                closed.add(namespace)
                self._go_on(namespace)
                continue
            try:
                await self._touch(pod)
            except REFUSALS as refusal:
                self._window.leave(pod)
                self._refuse(pod, refusal)
                self._go_on(namespace)
                continue
            except ApiError as error:
                self._window.leave(pod)
                if not isinstance(error, Conflict):
                    self._stand_back(pod)
                self._give_up(pod.line)  # a group that is retried later keeps no other waiting
                self._go_on(namespace)
                raise
            self._refused.pop(pod.metadata.uid, None)
            woken.pods.add(pod.metadata.uid)
            # Only now: if the first touch fails, the retry begins as this one did.
            self._woken[pod.line] = woken
            self._go_on(namespace)
        return closed

    def _refuse(self, pod: Pod, why: ApiError) -> None:
        """Reports the pod, and has its line looked at again without it."""
        self._stand_back(pod)
        self._term.report_unwritable(pod, why)
        self.queue.add(pod.line)

    def _stand_back(self, pod: Pod) -> None:
        """Leaves the pod out for a while: the next of its line is woken."""
        times, _ = self._refused.get(pod.metadata.uid, (0, 0.0))
        seconds = AGAIN_SECONDS[min(times, len(AGAIN_SECONDS) - 1)]
        self._refused[pod.metadata.uid] = times + 1, self._term.clock() + seconds

    def _go_on(self, namespace: str) -> None:
        """Enqueues the group whose turn it is in the namespace, for when there is a place.

        A pod that is bound leaves its place at once; of one that is refused again in the same words there is no event.
        """
        if turn := self._window.turn(namespace):
            self.queue.add(turn, self._window.opens(namespace, self._term.clock()))

    def _give_up(self, name: str, but: Collection[str] = ()) -> None:
        for namespace in self._window.give_up(name, but):
            self._go_on(namespace)

    def _rest(self, name: str) -> None:
        self._woken.pop(name, None)
        self._give_up(name)

    async def _touch(self, pod: Pod) -> None:
        """Raises Conflict when the pod was written meanwhile; it may have been bound."""
        touched = await annotate(self._term.cluster, pod, {contract.WOKEN_AT: timestamps.micro_now()})
        if touched is not None:
            self._term.pods.put(touched)
            log.info("Woke pod", pod=pod.metadata.key, holder=pod.holder_name)


def _request(pod: Pod, group: Group | None) -> Request | None:
    """What the pod wants, as each pod with the same share does: also where a bind that gave up left a claim of it.

    kube-scheduler retries a pod whose bind failed by itself.
    """
    request = request_of(pod, group)
    return request._replace(holder=NOBODY) if request and request.holder.kind == POD else request


NOBODY: Final = Holder("", POD, "")


def _uids(pods: list[Pod]) -> frozenset[str]:
    return frozenset(pod.metadata.uid for pod in pods)
