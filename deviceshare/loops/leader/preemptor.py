"""The reconciler that makes room for waiting pods of higher priority: pods with shares are evicted, idle groups freed.

One pod after the other, in the order of kube-scheduler's queue. The node is written into the waiting pod first
(`deviceshare.io/nominated-node`), and what comes free there is kept from pods of lower priority by filter, in every
replica. Then the victims are evicted, by the Eviction API and thus by their PodDisruptionBudgets: all of them are asked
about before the first one goes. kube-scheduler retries the pod when its devices are free, as any waiting pod.
"""

import asyncio
from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GROUP, POD
from deviceshare.domain.placement.join_obstacles import pod_obstacle, request_of
from deviceshare.domain.placement.node_choice import in_turn
from deviceshare.domain.placement.preemption import NEVER, Holders, MadeRoom, fits_somewhere, make_room, priority_of
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import annotate, subject_of
from deviceshare.loops.leader.context import ALL, ClaimKey, ControllerContext, UnchangedSince, in_pauses
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.ports import Conflict, NotFound, ObjectChange, Unavailable
from deviceshare.loops.protocol.holders import REFUSALS
from deviceshare.loops.queue import Backoff

log = structlog.get_logger(__name__)

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
        if self._spared.until(uid) > now:
            return
        if request is None or pod_obstacle(pod, group, fleet.namespaces):
            if pod.nominated_node:  # It doesn't wait for room any more: its group is being deleted, or so.
                await self._nominate(pod, "")
            return
        if fits_somewhere(fleet, pod, request):
            return
        nominated = self._since(pod.metadata.key, pod.nominated_node)
        # Not to be evicted, when that was asked lately.
        holders = Holders(self._context.pods.get, self._is_idle, set(self._spared.left_alone()))
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
        except REFUSALS as refusal:  # A stranger's pod may refuse any write; others' turns come nevertheless.
            self._spared.fail(pod.metadata.uid)
            self._context.report_unwritable(pod, refusal)
            return False
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
