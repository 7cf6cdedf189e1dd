"""The reconcilers of waiting pods that now fit: they wake them by touching an annotation, a few at a time.

kube-scheduler doesn't learn that our devices came free and may leave a pod for minutes; any change of a pod's
annotations has it retry the pod at once. Waiting pods that want the same have one queue key: their group, or their
namespace and share. Whom to wake is decided in *rounds* for each key:

1. Those of its pods that the scheduler refused and that fit somewhere, the longest waiting first.
2. Of an unbound group only the first: its bind chooses the node, and then the others fit there. Of equal shares as many
   as there is room for. If 500 pods were touched for one freed device, the one that gets it would be queued behind the
   rest. A pod that was refused since the extender was away is always among them: nobody has judged it.
3. A touch may be missed, or something else than devices may be lacking. So while pods wait that should fit, there are
   further rounds, less and less often, for all pods of a group and for twice as many of equal shares each time. Another
   node that fits begins anew.

When they are touched is decided for each namespace. kube-scheduler tries one pod after the other, the longest waiting
first: a thousand touched at once would stand in front of all others for many seconds. So each namespace has a few
places; a touched pod keeps its place until it is bound or gone or, since a second refusal in the same words is written
nowhere, until it must have been tried. Namespaces don't wait for each other; the keys of one take turns, pod by pod. A
pod that refuses the touch costs only its owner: it is left out for a while, and the next pod of its key is touched.
"""

import asyncio
from collections.abc import Collection
from typing import Final

import structlog
from msgspec import Struct, field

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import UNSCHEDULABLE, Pod
from deviceshare.domain.objects.shares import POD, Holder, Request, ShareRequest
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.domain.placement.node_choice import ruled_out
from deviceshare.loops.kinds import annotate
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.ports import ApiError, Conflict, ObjectChange
from deviceshare.loops.protocol.holders import REFUSALS
from deviceshare.loops.queue import Backoff

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = (5.0, 10.0, 20.0, 40.0, 60.0)
"""After a touch that changed nothing; the last for ever."""
PLACES: Final = 16
"""For each namespace. kube-scheduler places about 80 pods a second, so these are always enough to keep it busy."""
TRIED_SECONDS: Final = 2.0
"""After a touch a pod has been tried, its backoff of a second included (the scheduler's configuration)."""
GATHER_SECONDS: Final = 0.05
"""Between a change and the work on waiting pods, and between two looks for a free place: changes come in bursts, and a
thousand pods take a millisecond."""
_ALL: Final = ""
"""The key that stands for every other; no object has this name."""
_AT_ONCE: Final = 100
"""Keys looked at between two turns of the event loop."""
_NOBODY: Final = Holder("", POD, "")


class _Round(Struct):
    """One round of touches of the pods with one queue key."""

    nodes: frozenset[str]
    """The nodes that any of the pods fitted on when we last looked."""
    chosen: frozenset[str]
    """The UIDs of the pods to be touched."""
    at: float
    """When it began or, where pods wait for places, when the last one was touched."""
    number: int = 0
    """Of rounds before it that changed nothing."""
    touched: set[str] = field(default_factory=set)
    """The UIDs of the pods that were."""

    @property
    def again_at(self) -> float:
        return self.at + AGAIN_SECONDS[min(self.number, len(AGAIN_SECONDS) - 1)]

    def left(self, pods: list[Pod]) -> list[Pod]:
        """The pods that have yet to be touched, in their order."""
        return [pod for pod in pods if pod.metadata.uid in self.chosen - self.touched]


class Waker:
    """Rounds are keyed by the pods' queue key, touches by namespace."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._deciding = context.queue("waking", self._decide, workers=8)
        self._touching = context.queue("touches", self._touch_next, workers=8)
        self._rounds: dict[str, _Round] = {}
        self._turns: dict[str, dict[str, list[str]]] = {}
        """By namespace and queue key, the keys of the pods that are to be touched; the first is next."""
        self._places: dict[str, dict[str, float]] = {}
        """By namespace and the UID of a touched pod, until when it has its place at most; the first ends first."""
        self._left_out: Backoff[str] = Backoff(context.clock, *AGAIN_SECONDS)
        """Pods that refused a touch, by UID."""

    # What enqueues a key.

    def change(self, change: ObjectChange[Pod]) -> None:
        """Enqueues the key of a changed pod that the scheduler refused."""
        _, old, new = change
        if old and not (new and new.pending):
            self._free_place(old)
            self._left_out.forget(old.metadata.uid)
        for pod in change.sides:
            if pod.bound_by_us and pod.refusal:
                self._deciding.add(pod.queue_key, GATHER_SECONDS)

    def enqueue(self, group: str) -> None:
        """Enqueues a group that came, changed or went."""
        self._deciding.add(group)

    def enqueue_waiting(self) -> None:
        """Enqueues every key of waiting pods: devices came free, or a node came or changed."""
        self._deciding.add(_ALL, GATHER_SECONDS)

    async def _enqueue_all(self) -> None:
        """But for groups that fit nowhere, as they did when they were looked at."""
        for number, key in enumerate(self._context.index.pending.names(), 1):
            group = self._context.groups.get(key)
            if group is None or group.node or key in self._rounds or self._context.waits.may_fit(group):
                self._deciding.add(key)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        if self._context.fleet.assuming:  # A bind that fails forgets what it had assumed, of which there is no event.
            self._deciding.add(_ALL, AGAIN_SECONDS[0])

    # Whom to wake.

    async def _decide(self, key: str) -> None:
        if key == _ALL:
            await self._enqueue_all()
            return
        group, now = self._context.groups.get(key), self._context.clock()
        waiting = self._waiting(key, group)
        # Where they fit now, by their shares: equal ones count once. None of one that wants what isn't there.
        requests, fitting = {pod.share: _request(pod, group) for pod in waiting}, self._context.fleet.fitting
        nodes = {share: frozenset(fitting(each)) if each else None for share, each in requests.items()}
        pods = [pod for pod in waiting if nodes[pod.share]]
        pods.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.key))
        if not pods:
            self._rounds.pop(key, None)
            self._line_up(key, [])
            if any(each is not None for each in nodes.values()):
                self._deciding.add(key, AGAIN_SECONDS[0 if self._context.fleet.assuming else -1])
            return
        fits = frozenset[str]().union(*(each or () for each in nodes.values()))
        known = self._rounds.get(key)
        begins = known is None or fits - known.nodes or not any(pod.metadata.uid in known.touched for pod in pods)
        if known is None or begins or (now >= known.again_at and not known.left(pods)):
            number = known.number + 1 if known and not begins else 0
            known = self._rounds[key] = _Round(fits, self._chosen(pods, group, fits, number), now, number)
        elif group is None or group.node:
            known.chosen = self._chosen(pods, group, fits, known.number)  # more may have come, or more room
        known.nodes = fits
        known.chosen |= {pod.metadata.uid for pod in pods if pod.refusal and pod.refusal.reason != UNSCHEDULABLE}
        left = known.left(pods)
        self._line_up(key, left)
        self._deciding.add(key, AGAIN_SECONDS[0] if left else known.again_at - now)

    def _waiting(self, key: str, group: Group | None) -> list[Pod]:
        """The pods of the key that the scheduler refused, and that could go somewhere if there were room."""
        if group is not None and (group.deleting or group.metadata.unreadable):
            return []
        pods, now, namespaces = list[Pod](), self._context.clock(), self._context.fleet.namespaces
        for pod in self._context.index.pending[key]:
            if not pod.refusal or pod.metadata.deletion_timestamp:
                continue
            if (until := self._left_out.until(pod.metadata.uid)) > now:
                self._deciding.add(key, until - now)
            elif group is None or not namespaces.obstacle(group, pod.metadata.namespace):
                pods.append(pod)
        # A pod that waits in vain would stand in front of those that don't, which may be other people's.
        wanted = group.request if group else _request(pods[0], None) if pods else None
        vain = ruled_out(self._context.fleet, wanted, pods) if wanted else {}
        return [pod for pod in pods if pod.metadata.key not in vain]

    def _chosen(self, pods: list[Pod], group: Group | None, fits: Collection[str], number: int) -> frozenset[str]:
        """The UIDs of those to be touched in the round with this number, the longest waiting first."""
        chosen, equal = list[Pod](), dict[ShareRequest, list[Pod]]()
        if group is not None and not group.node:
            chosen = pods if number else pods[:1]
        else:
            for pod in pods:
                equal.setdefault(pod.share, []).append(pod)
        for share, mine in equal.items():
            request, many = _request(mine[0], group), len(mine)
            if share and request:
                many = self._context.fleet.how_many(request, sorted(fits), many) << number
            chosen += mine[:many]
        return frozenset(pod.metadata.uid for pod in chosen)

    # When to touch them.

    def _line_up(self, key: str, pods: list[Pod]) -> None:
        """Has these pods touched in their namespaces' turns, and none else with this queue key."""
        wanted: dict[str, list[str]] = {}
        for pod in pods:
            wanted.setdefault(pod.metadata.namespace, []).append(pod.metadata.key)
        for namespace in [each for each, turns in self._turns.items() if key in turns]:
            if namespace not in wanted:
                del self._turns[namespace][key]
        for namespace, keys in wanted.items():
            self._turns.setdefault(namespace, {})[key] = keys  # where it stood, if it did
            self._touching.add(namespace)

    async def _touch_next(self, namespace: str) -> None:
        """Touches the pods whose turn it is, as long as there are places."""
        while turns := self._turns.get(namespace):
            self._context.wait_until(self._place_at(namespace))
            key = next(iter(turns))
            first, *others = turns.pop(key)
            if others:
                turns[key] = others  # behind those of other queue keys
            pod = self._context.pods.get(first)
            if pod and pod.pending and pod.refusal and not pod.metadata.deletion_timestamp:
                await self._touch(pod)
        self._turns.pop(namespace, None)

    async def _touch(self, pod: Pod) -> None:
        """Raises what may go by without the pod's doing; Conflict when it was written meanwhile, and may be bound."""
        meta, known = pod.metadata, self._rounds.get(pod.queue_key)
        if known is None or meta.uid in known.touched:
            return
        known.touched.add(meta.uid)
        self._free_place(pod)
        self._places.setdefault(meta.namespace, {})[meta.uid] = self._context.clock() + TRIED_SECONDS
        try:
            touched = await annotate(self._context.cluster, pod, {contract.WOKEN_AT: timestamps.micro_now()})
        except ApiError as error:
            known.touched.discard(meta.uid)
            self._free_place(pod)
            if not isinstance(error, Conflict):
                self._left_out.fail(meta.uid)
            self._deciding.add(pod.queue_key)  # the next one with its key, or itself
            if not isinstance(error, REFUSALS):
                raise
            self._context.report_unwritable(pod, error)
            return
        self._left_out.forget(meta.uid)
        known.at = self._context.clock()
        if touched is not None:
            self._context.pods.put(touched)
            log.info("Woke pod", pod=meta.key, holder=pod.holder_name)

    def _place_at(self, namespace: str) -> float:
        """When the namespace has a free place at the latest; a pod that is bound leaves its own at once."""
        places, now = self._places.get(namespace, {}), self._context.clock()
        while places and next(iter(places.values())) <= now:
            del places[next(iter(places))]
        return max(next(iter(places.values())), now + GATHER_SECONDS) if len(places) >= PLACES else now

    def _free_place(self, pod: Pod) -> None:
        """Ends the pod's place, if it has one: it was bound, is gone, or could not be touched."""
        namespace = pod.metadata.namespace
        places = self._places.get(namespace, {})
        if places.pop(pod.metadata.uid, None) is not None:
            self._touching.add(namespace)
        if not places:
            self._places.pop(namespace, None)


def _request(pod: Pod, group: Group | None) -> Request | None:
    """What the pod wants, as each pod with the same share does: also where a bind that gave up left a claim of it.

    kube-scheduler retries a pod whose bind failed by itself.
    """
    request = request_of(pod, group)
    return request._replace(holder=_NOBODY) if request and request.holder.kind == POD else request
