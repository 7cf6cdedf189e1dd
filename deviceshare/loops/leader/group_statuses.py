"""The reconciler of groups: writes their statuses, and records Events for what changed.

A status is written only when something in it is wrong. A transition is written at once; everything else (which pods,
what is in the way) waits for its turn before it is even looked at, so that 500 pods don't make 500 writes. A write to
an unbound group makes a bind of it that is under way retry: so a group whose pods have not been refused yet is left
alone for a moment. So is one that was just bound, until its first pod is: the bind said already what is then so.
"""

import asyncio
from typing import Final

import structlog
from msgspec import Struct, field

from deviceshare import timestamps
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.group_status import FALSE, TRUE
from deviceshare.domain.objects.groups import Group, GroupStatus
from deviceshare.domain.objects.object_decoder import Condition
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.node_choice import ruled_out
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, find, subject_of
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.protocol import repair
from deviceshare.loops.queue import RateLimit

log = structlog.get_logger(__name__)

PODS_SECONDS: Final = 1.0
"""Between two writes that only change which pods use one bound group."""
PODS_WRITES_A_SECOND: Final = 5
"""Such writes over all groups: each costs the API server as much as a third of a pod."""
WORDS_SECONDS: Final = 5.0
"""Between two writes that only change the text of an unbound group's obstacle."""
WORDS_WRITES_A_SECOND: Final = 20
"""Such writes over all groups: one change of a node may be told to a thousand."""
GATHER_SECONDS: Final = 0.05
"""Between a change of an unbound group's pods and the work on all of them: a thousand may change at once."""
UNSETTLED_SECONDS: Final = 2.0
"""How long an unbound group is left alone that a bind or a repair is probably taking just now."""
FIRST_POD_SECONDS: Final = 1.0
"""How long the Binding of the first pod is waited for, which its group's status names already."""

_CONCERNED: Final = "/concerned"
"""The key that stands for the waiting groups that a change concerns; no object has this name."""
_AT_ONCE: Final = 100
"""Groups reviewed between two turns of the event loop."""


class _GroupState(Struct):
    pods_only: bool = False
    """Whether nothing has changed since the last look but its pods."""
    written: float | None = None
    """When its status was last written in this term."""
    version: str = ""
    """The resourceVersion of that."""
    unsettled: float | None = None
    """Since when a bind or a repair is probably taking it."""
    node: str = ""
    """Its node at the last look."""
    first_pod_awaited: float | None = None
    """Since when it has had a node, but no pod there yet."""
    barred: set[str] = field(default_factory=set)
    """The UIDs of the pods with an Event that says that they wait in vain."""
    waits_for: Reason | None = None
    """What it waited for at the last look; None of a bound group."""
    choosy: bool = False
    """Whether waiting pods of it choose among nodes themselves: any node may matter to these."""


class GroupStatuses:
    """Keyed by name."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("groups", self._reconcile, workers=8)
        self._known: dict[str, _GroupState] = {}
        self._turns: RateLimit[str] = RateLimit(PODS_WRITES_A_SECOND)
        self._words: RateLimit[str] = RateLimit(WORDS_WRITES_A_SECOND)

    # What enqueues a group.

    def change(self, change: ObjectChange[Group]) -> None:
        """Enqueues a changed group, unless it is as it was just written here."""
        known = self._known.get(change.key)
        if not (known and change.new and change.new.metadata.resource_version == known.version):
            self.enqueue(change.key)

    def enqueue(self, name: str, after: float = 0.0) -> None:
        """Enqueues a group of which something else has changed than its pods."""
        if known := self._known.get(name):
            known.pods_only = False
        self.queue.add(name, after)

    def enqueue_for_pods(self, name: str) -> None:
        """Enqueues the group one of whose pods changed: if it is bound, for when that may be written."""
        group, known = self._context.groups.get(name), self._known.get(name)
        if group and group.node and known and known.written is not None and not self._is_looked_at_once(group, known):
            self.queue.add(name, max(self._pods_turn(name, known) - self._context.clock(), GATHER_SECONDS))
        else:
            self.enqueue(name, GATHER_SECONDS)

    def enqueue_waiting(self) -> None:
        """Enqueues every group that pods wait for: these may be let in, or may not be any more."""
        for name in self._context.index.waiting_groups:
            self.enqueue(name, PODS_SECONDS)

    def enqueue_concerned(self) -> None:
        """Enqueues those of them that changes of nodes or quotas concern."""
        self.queue.add(_CONCERNED, PODS_SECONDS)

    async def _enqueue_concerned(self) -> None:
        """One change is answered once for all groups that want the same; see WaitingReasons."""
        for number, name in enumerate(self._context.index.waiting_groups, 1):
            group, known = self._context.groups.get(name), self._known.get(name, _GroupState())
            elsewhere = group and not group.node and known.waits_for != self._context.waits.of(group.request)
            if elsewhere or (group and known.choosy):
                self.enqueue(name)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    # What is done.

    async def _reconcile(self, name: str) -> None:
        if name == _CONCERNED:
            await self._enqueue_concerned()
            return
        group = self._context.groups.get(name)
        if group and group.metadata.unreadable:
            return
        if group is None or self._context.is_over(group):  # That meets no writes but those that end it.
            self._known.pop(name, None)
            self._end_turn(name)
            return
        known = self._known.setdefault(name, _GroupState())
        if known.pods_only and group.node and not self._is_looked_at_once(group, known):
            self._context.wait_until(self._pods_turn(name, known))
        known.pods_only = True
        if await self._repair(group):
            return
        self._note(group, known)
        self._context.wait_until(self._settled(known))
        wanted = await self._desired(group)
        patch = group_status.status_patch(group.status, wanted)
        if not patch:
            self._end_turn(name)
            return
        changes = group_status.transitions(group.status, wanted)
        if not (changes or "phase" in patch or self._begins_or_ends(group)):
            self._context.wait_until(self._due(group, known))
        body = {"metadata": group.as_read, "status": patch}
        written = await self._context.cluster.patch(GROUPS, name, body, subresource="status")
        known.written, known.version = self._context.clock(), written.metadata.resource_version
        self._context.groups.put(written)
        self._end_turn(name)
        for condition in changes:
            self._record(group, condition)

    def _begins_or_ends(self, group: Group) -> bool:
        """Whether its first pod got its devices, or its last one ended: it may be deleted while it has none."""
        return bool(self._context.fleet.pods(group.uid)) != bool(group.status.allocated_pods)

    def _is_looked_at_once(self, group: Group, known: _GroupState) -> bool:
        """Whether the look at the group needs no turn: its status names the first pod already, which was awaited."""
        return self._begins_or_ends(group) or known.first_pod_awaited is not None

    def _pods_turn(self, name: str, known: _GroupState) -> float:
        """When it may be written which pods use the bound group."""
        at = self._turns.at(name, self._context.clock())
        return at if known.written is None else max(known.written + PODS_SECONDS, at)

    def _settled(self, known: _GroupState) -> float:
        """Until when the group is left alone, whatever its status should say."""
        if known.first_pod_awaited is not None:
            return known.first_pod_awaited + FIRST_POD_SECONDS
        return 0.0 if known.unsettled is None else known.unsettled + UNSETTLED_SECONDS

    def _due(self, group: Group, known: _GroupState) -> float:
        """When a change may be written that is no transition."""
        if known.written is None:
            return 0.0
        if group.node:
            return self._pods_turn(group.name, known)
        return max(known.written + WORDS_SECONDS, self._words.at(group.name, self._context.clock()))

    def _end_turn(self, name: str) -> None:
        self._turns.over(name)
        self._words.over(name)

    # What is found.

    async def _repair(self, group: Group) -> bool:
        """Restores the node of a group whose status was lost, or which claim it is bound by; whether that is done."""
        node = group.node
        if node:
            seen = self._context.fleet.ledger(node)
            claim = seen.claims.get(group.uid) if seen else None
            unnamed = claim is not None and claim.token not in ("", group.status.claim_token)
            written = await repair.name_claim(self._context.cluster, group.name) if unnamed else None
        else:
            # Where its pods contradict each other, its ledger has to be recreated first, or only our mirror is behind,
            # a pod, a ledger or the group changes when that does.
            lost = bool(self._context.fleet.pods(group.uid))
            written = await repair.readopt(self._context.cluster, group.name) if lost else None
        if written is None:
            return False
        self._context.groups.put(written)
        if not node:
            log.warning("Repaired status of group", group=group.name, node=written.node)
            text = f"its status was lost; its pods run on node {written.node}"
            self._context.recorder.note(subject_of(group), "Repaired", text)
        return True

    def _note(self, group: Group, known: _GroupState) -> None:
        """Takes in what is so as the group is looked at."""
        fleet, now, pending = self._context.fleet, self._context.clock(), self._context.index.pending[group.name]
        node, uid = group.node, group.uid
        assumed, has_pods = fleet.assumed(uid) is not None, bool(fleet.pods(uid))
        triable = [pod for pod in pending if not pod.gates]
        untried = bool(triable) and not any(pod.refusal for pod in triable)
        if node or not (assumed or untried or has_pods):
            known.unsettled = None
        elif assumed or known.unsettled is None:
            known.unsettled = now  # While a bind is at it, however long its pods waited.
        if not node or has_pods or group.status.idle_since:
            known.first_pod_awaited = None
        elif known.node != node:
            known.first_pod_awaited = now
        known.node = node
        known.waits_for = None if node else self._context.waits.of(group.request)
        known.choosy = any(pod.spec.node_selector or pod.spec.affinity for pod in pending)
        # An Event for each pod that waits in vain, once.
        found = ruled_out(fleet, group.request, pending) if known.choosy else {}
        barred = [pod for pod in pending if pod.metadata.key in found]
        for pod in barred:
            if pod.metadata.uid not in known.barred:
                self._context.recorder.warn(subject_of(pod), "NodesRuledOut", str(found[pod.metadata.key]))
        known.barred = {pod.metadata.uid for pod in barred}

    async def _desired(self, group: Group) -> GroupStatus:
        # The mirrors of groups and ledgers are not in step: a ledger is only missing when a read says so.
        node = group.node
        ledger = self._context.fleet.ledger(node)
        claimed = ledger is not None and (group.uid in ledger.claims or bool(ledger.metadata.unreadable))
        if node and not claimed and (seen := await find(self._context.cluster, NODE_DEVICES, node)):
            self._context.ledgers.put(seen)
        fleet, pods, waits = self._context.fleet, self._context.index.named[group.name], self._context.waits
        home = fleet.node(node) if node else None
        if node and home is None:  # The mirror holds shared nodes only; one that is missing there may exist.
            home = await find(self._context.cluster, NODES, node)
        return group_status.desired_status(group, fleet, home=home, pods=pods, now=timestamps.now(), waits=waits)

    def _record(self, group: Group, now: Condition) -> None:
        """Records the Event for a transition that people should know of; Ready follows from the others."""
        if now.type == group_status.IS_BOUND:
            if now.status != TRUE and now.reason not in (ReasonKind.NO_PODS, ReasonKind.GATED, ReasonKind.RELEASED):
                self._context.recorder.warn(subject_of(group), now.reason, now.message)
        elif now.type == group_status.IS_HEALTHY:
            before = {condition.type: condition.status for condition in group.status.conditions}.get(now.type)
            if now.status == FALSE:
                log.warning("Group is degraded", group=group.name, node=group.node, reason=now.reason)
                self._context.recorder.warn(subject_of(group), "Degraded", now.message)
            elif now.status == TRUE and before == FALSE:
                log.info("Group recovered", group=group.name, node=group.node)
                self._context.recorder.note(subject_of(group), "Recovered", now.message)
