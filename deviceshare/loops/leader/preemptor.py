"""The reconcilers for pods that fit nowhere: those of lower priority make room, and autoscalers are shown what lacks.

One pod after the other, in the order of kube-scheduler's queue. The node is written into the waiting pod first
(`deviceshare.io/nominated-node`), and what comes free there is kept from pods of lower priority by filter, in every
replica. Then the victims are evicted, by the Eviction API and thus by their PodDisruptionBudgets: all of them are asked
about before the first one goes. kube-scheduler retries the pod when its devices are free, as any waiting pod.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.pods import UNSCHEDULABLE, Pod
from deviceshare.domain.objects.shares import GROUP, POD
from deviceshare.domain.placement.join_obstacles import pod_obstacle, request_of
from deviceshare.domain.placement.node_choice import in_turn
from deviceshare.domain.placement.preemption import NEVER, Holders, MadeRoom, fits_somewhere, make_room, priority_of
from deviceshare.domain.placement.scaling import UnplacedPod, scaling_pods
from deviceshare.domain.wording import listed
from deviceshare.loops.api_objects import annotate, subject_of
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.context import ClaimKey, ControllerContext, UnchangedSince, in_pauses
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.ports import Conflict, NotFound, ObjectChange, Unavailable
from deviceshare.loops.queue import Backoff

log = structlog.get_logger(__name__)

ALL: Final = "all"
"""The one key: each decision depends on those before it."""
GATHER_SECONDS: Final = 0.5
"""Between a change and the decision: a pod that fits is bound meanwhile."""
LOOK_SECONDS: Final = 5.0
"""Between two looks while pods wait: nothing tells when others have ended, or a budget allows more."""
NOMINATED_SECONDS: Final = 300.0
"""How long a node is kept for a pod that doesn't get there, such as for want of CPU."""
SPARED_SECONDS: Final = (10.0, 30.0, 60.0)
"""After a budget refused an eviction, or a nomination led to nothing."""

FORGOTTEN_SECONDS: Final = 600.0


class Preemptor:
    """Decides for all waiting pods in turn."""

    def __init__(self, context: ControllerContext, releaser: Releaser) -> None:
        self._context = context
        self._releaser = releaser
        self.queue = context.queue("preemption", self._reconcile, workers=1)
        self._waiting: set[str] = set()
        """The keys of pods for which others may have to go."""
        self._sharing: dict[str, int] = {}
        """The priority of each pod with a share that has a node."""
        self._since: UnchangedSince[str] = UnchangedSince(context)
        self._spared: Backoff[str] = Backoff(context.clock, *SPARED_SECONDS, forgotten=FORGOTTEN_SECONDS)
        """Victims that may not go now, and pods for which none did, by UID."""

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        key, old, new = change
        self._waiting.discard(key)
        self._sharing.pop(key, None)
        if new and new.share and new.lives:
            self._sharing[key] = priority_of(new)
        waits = new and new.pending and new.bound_by_us and (new.refusal or new.awaits_placement)
        if new and waits and new.spec.preemption_policy != NEVER:
            self._waiting.add(key)
            self.queue.add(ALL, GATHER_SECONDS)
        if old and not (new and new.pending):
            self._since.forget(key)
            self._spared.forget(old.metadata.uid)

    async def _reconcile(self, _: str) -> None:
        lowest = min([0, *self._sharing.values()])
        pods = [pod for key in self._waiting if (pod := self._context.pods.get(key)) and priority_of(pod) > lowest]
        for pod in in_turn(pods):
            await asyncio.sleep(0)
            if self._context.pods.get(pod.metadata.key) is pod and not pod.metadata.deletion_timestamp:
                await self._make_room(pod)
        if pods:
            self.queue.add(ALL, LOOK_SECONDS)

    async def _make_room(self, pod: Pod) -> None:
        fleet, now, uid = self._context.fleet, self._context.clock(), pod.metadata.uid
        group = self._context.groups.get(pod.group) if pod.group else None
        request = request_of(pod, group)
        if request is None or pod_obstacle(pod, group, fleet.namespaces) or self._spared.until(uid) > now:
            return
        if fits_somewhere(fleet, pod, request):
            return
        nominated = self._since(pod.metadata.key, pod.nominated_node)
        sharing = (self._context.pods.get(key) for key in self._sharing)
        # Not to be evicted, when that was asked lately.
        protected = {each.metadata.uid for each in sharing if each and self._spared.until(each.metadata.uid) > now}
        holders = Holders(self._context.pods.get, self._is_idle, protected)
        room = await in_pauses(make_room(fleet, pod, request, holders))
        over = bool(pod.nominated_node) and now > nominated + NOMINATED_SECONDS
        if room is None or over:
            if pod.nominated_node:
                self._spared.fail(uid)
                await self._nominate(pod, "")
        elif not room.victims:
            if not pod.nominated_node:  # Others are ending there: what they leave is kept for it.
                await self._nominate(pod, room.node)
        elif await self._may_go(pod, room) and (
            room.node == pod.nominated_node or await self._nominate(pod, room.node)
        ):
            await self._evict(pod, room)

    def _is_idle(self, claim: Claim) -> bool:
        group = self._context.groups.get(claim.group)
        if group is None or group.deleting or group.metadata.unreadable or claim.releasing:
            return False
        fleet = self._context.fleet
        used = fleet.pods(group.uid) or fleet.assumed(group.uid) or self._context.index.pending[group.name]
        ledger = fleet.ledger(group.node)
        return not used and ledger is not None and all(each.within != group.uid for each in ledger.claims.values())

    async def _may_go(self, pod: Pod, room: MadeRoom) -> bool:
        for victim in room.victims:
            if victim.kind == POD and (why := await self._refusal(victim.name, victim.uid, dry_run=True)):
                text = f"room could be made on node {room.node}, but {victim} may not be evicted now: {why}"
                self._context.recorder.warn(subject_of(pod), "PreemptionBlocked", text)
                return False
        return True

    async def _nominate(self, pod: Pod, node: str) -> bool:
        try:
            written = await annotate(self._context.cluster, pod, {contract.NOMINATED_NODE: node or None})
        except Conflict:
            return False  # It was written meanwhile, and is looked at as it is then.
        if written is not None:
            self._context.pods.put(written)
        return written is not None

    async def _evict(self, pod: Pod, room: MadeRoom) -> None:
        gone = []
        for victim in room.victims:
            why = f"for pod {pod.metadata.key} of priority {priority_of(pod)}"
            if victim.kind == GROUP:
                self._releaser.preempt(ClaimKey(room.node, victim.uid, victim.name), why)
                gone.append(str(victim))
                continue
            seen = self._context.pods.get(victim.name)
            if seen and not await self._refusal(victim.name, victim.uid):
                self._context.recorder.warn(subject_of(seen), "Preempted", f"evicted from node {room.node} {why}")
                gone.append(str(victim))
        log.info("Made room for pod", pod=pod.metadata.key, node=room.node, victims=gone)
        if gone:
            text = f"{listed(gone)} made to leave node {room.node}, whose devices the pod gets next"
            self._context.recorder.note(subject_of(pod), "Preempting", text)

    async def _refusal(self, key: str, uid: str, *, dry_run: bool = False) -> str:
        """Asks for the pod's eviction, or about it; why it may not go now, as by its disruption budget, or ""."""
        namespace, _, name = key.partition("/")
        try:
            await self._context.cluster.evict(namespace, name, uid=uid, dry_run=dry_run)
        except NotFound:
            return ""
        except (Conflict, Unavailable) as error:
            self._spared.fail(uid)
            return error.said or str(error)
        return ""


# The reconciler of scaling pods, by which autoscalers add nodes for waiting pods (domain/placement/scaling.py).
# Off by default. A scaling pod stays as it was created: were today's nodes ruled out anew at each look, a node that has
# come, but whose devices aren't known yet, would not count, and the autoscaler would add another. After a while it is
# replaced, since the node may have been filled by others.

WAITS_SECONDS: Final = 10.0
"""Before a pod counts: others may be ending."""
UNPLACED_SECONDS: Final = 30.0
"""Between two looks while pods wait."""
BOUND_SECONDS: Final = 2.0
"""Between a change and a look: many pods may be bound in a row."""
MOST_PODS: Final = 500
"""Waiting pods that are looked at, in turn: more than so few scaling pods stand for."""
AT_ONCE: Final = 20
"""Of them between two turns of the event loop."""
REPLACED_SECONDS: Final = 1200.0
"""More than a node takes from its creation until its devices are known."""
MESSAGE: Final = "stands for pending pods; deviceshare deletes it when they have their devices"


class Scaler:
    """One key: what one node will serve depends on all that wait."""

    def __init__(self, context: ControllerContext, namespace: str) -> None:
        self._context = context
        self._namespace = namespace
        self.queue = context.queue("scaling", self._reconcile, workers=1)
        self._waiting: dict[str, float] = {}
        """Since when each pod waits, by its key."""
        self._created: dict[str, float] = {}
        """When each scaling pod was created or found."""
        self.queue.add(ALL)  # An earlier leader may have left some.

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        key, _, new = change
        if new and new.pending and not new.metadata.deletion_timestamp and (new.refusal or new.awaits_placement):
            if key not in self._waiting:
                self._waiting[key] = self._context.clock()
                self.queue.add(ALL, WAITS_SECONDS)
        elif self._waiting.pop(key, None) is not None:
            self.queue.add(ALL, BOUND_SECONDS)

    async def _reconcile(self, _: str) -> None:
        now, fleet = self._context.clock(), self._context.fleet
        nodes = fleet.shared_nodes()
        wanted = scaling_pods(await self._unplaced(now), nodes, fleet.largest)
        there = await self._context.cluster.list(PODS, namespace=self._namespace, label_selector=contract.SCALING)
        names = {pod.metadata.name for pod in there}
        self._created = {name: self._created.get(name, now) for name in names}
        for pod in there:
            name = pod.metadata.name
            if name not in wanted or now > self._created[name] + REPLACED_SECONDS:
                log.info("Deleted scaling pod", pod=name)
                await self._context.delete_unchanged(pod)
            elif pod.refusal is None:
                await self._show(pod)
        for name in wanted.keys() - names:
            try:
                created = await self._context.cluster.create(PODS, wanted[name], self._namespace)
            except Conflict:
                continue  # The one before is still ending.
            log.info(
                "Created scaling pod", pod=name, stands_for=wanted[name]["metadata"]["annotations"][contract.SCALING]
            )
            self._created[name] = now
            await self._show(created)
        if wanted or there:
            self.queue.add(ALL, UNPLACED_SECONDS)

    async def _unplaced(self, now: float) -> list[UnplacedPod]:
        """The pods that fit nowhere for want of devices, in turn."""
        found, fleet = list[UnplacedPod](), self._context.fleet
        old = (key for key, since in self._waiting.items() if now >= since + WAITS_SECONDS)
        waiting = in_turn(pod for key in old if (pod := self._context.pods.get(key)))
        for number, pod in enumerate(waiting[:MOST_PODS]):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            group = self._context.groups.get(pod.group) if pod.group else None
            request = request_of(pod, group)
            if request is None or fleet.home(request) or pod_obstacle(pod, group, fleet.namespaces):
                continue
            if not (fleet.quotas.obstacle(request) or fits_somewhere(fleet, pod, request)):
                found.append(UnplacedPod(pod, request))
        return found

    async def _show(self, pod: Pod) -> None:
        """Writes what a scheduler would: autoscalers look for this condition."""
        condition = {"type": "PodScheduled", "status": "False", "reason": UNSCHEDULABLE, "message": MESSAGE}
        meta, status = {"resourceVersion": pod.metadata.resource_version}, {"conditions": [condition]}
        with suppress(NotFound, Conflict):  # One that was changed is seen so at the next look.
            await self._context.cluster.patch(
                PODS,
                pod.metadata.name,
                {"metadata": meta, "status": status},
                namespace=self._namespace,
                subresource="status",
            )
