"""The reconciler of groups: writes their statuses, and records Events for what changed.

A status is written only when something in it is wrong. A transition is written at once; everything else (which pods,
what is in the way) waits a little, so that 500 pods don't make 500 writes. A write to an unbound group makes a bind of
it that is under way retry: so a group whose pods have not been refused yet is left alone for a moment. So is one that
was just bound, until its first pod is: both are written at once.
"""

import asyncio
from typing import Final

import structlog

from deviceshare import timestamps
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.group_status import FALSE, TRUE
from deviceshare.domain.objects.groups import Group, GroupStatus
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import Condition
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.barred_pods import barred
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES
from deviceshare.loops.leader.members import WAITING_GROUPS
from deviceshare.loops.leader.releaser import new_mark
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.waiting_review import WaitingReview
from deviceshare.loops.protocol import repair
from deviceshare.loops.queue import Queue
from deviceshare.loops.rate_limit import RateLimit
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

WORKERS = 8
PODS_SECONDS = 1.0
"""Between two writes that only change which pods use one bound group."""
PODS_WRITES_A_SECOND = 20
"""Such writes over all groups: each costs the API server as much as a third of a pod."""
WORDS_SECONDS = 5.0
"""Between two writes that only change the text of an unbound group's obstacle."""
WORDS_WRITES_A_SECOND = 20
"""Such writes over all groups: one change of a node may be told to a thousand."""
GATHER_SECONDS = 0.05
"""Between a change of an unbound group's pods and the work on all of them: a thousand may change at once."""
UNSETTLED_SECONDS = 2.0
"""How long an unbound group is left alone that a bind or a repair is probably taking just now."""
FIRST_POD_SECONDS = 1.0
"""How long the Binding of the first pod is waited for, which follows that of its group."""


_NODES_CHANGED: Final = "/nodes"
"""The key that stands for the waiting groups that changes of nodes concern; no object has this name."""
_AT_ONCE: Final = 100
"""Groups reviewed between two turns of the event loop."""


class GroupStatuses:
    """The reconciler of groups, keyed by name."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("groups", self._reconcile, workers=WORKERS, clock=term.clock)
        self._written: dict[str, float] = {}
        self._unsettled_since: dict[str, float] = {}
        self._first_pod_awaited_since: dict[str, float] = {}
        self._barred: dict[str, set[str]] = {}
        """By group, the UIDs of the pods with an Event that says that they wait in vain."""
        self._turns: RateLimit[str] = RateLimit(PODS_WRITES_A_SECOND)
        self._words: RateLimit[str] = RateLimit(WORDS_WRITES_A_SECOND)
        self._review = WaitingReview(term)

    def enqueue_waiting(self) -> None:
        """Enqueues the groups that pods wait for: what is in their way may have changed."""
        self.queue.add(WAITING_GROUPS, PODS_SECONDS)

    def enqueue_concerned(self) -> None:
        """Enqueues those of them that changes of nodes concern."""
        self.queue.add(_NODES_CHANGED, PODS_SECONDS)

    def enqueue_for_pods(self, name: str) -> None:
        """Enqueues the group one of whose pods changed: if it is bound, for when that may be written."""
        group = self._term.groups.get(name)
        gathered = group is not None and group.node and name in self._written and not self._begins_or_ends(group)
        rest = self._written[name] + PODS_SECONDS - self._term.clock() if gathered else 0.0
        self.queue.add(name, max(rest, GATHER_SECONDS))

    def _begins_or_ends(self, group: Group) -> bool:
        """Whether its first pod got its devices, or its last one ended: by policy it can be deleted while it has none.

        So that is written at once.
        """
        return bool(self._term.fleet.pods(group.uid)) != bool(group.status.allocated_pods)

    async def _reconcile(self, name: str) -> None:
        if name == WAITING_GROUPS:
            for waiting in self._term.members.waiting():
                self.queue.add(waiting)
            return
        if name == _NODES_CHANGED:
            await self._review_waiting()
            return
        group = self._term.groups.get(name)
        if group is None:
            self._forget(name)
            return
        if group.metadata.unreadable:
            return
        if not group.node and self._term.fleet.pods(group.uid) and await self._readopt(group):
            return
        if group.node and await self._name_claim(group):
            return
        self._note_unsettled(group)
        self._note_first_pod(group)
        self._review.note(group, self._term.members.pending(name))
        self._warn_barred(group)
        wanted = await self._desired(group)
        patch = group_status.status_patch(group.status, wanted)
        if not patch:
            self._end_turn(name)
            return
        changes = group_status.transitions(group.status, wanted)
        prompt = bool(changes) or "phase" in patch or self._begins_or_ends(group)
        self._term.wait_until(self._due(group, prompt=prompt))
        body = {"metadata": {"resourceVersion": group.metadata.resource_version}, "status": patch}
        written = await self._term.cluster.patch(GROUPS, name, body, subresource="status")
        self._term.groups.put(written)
        self._written[name] = self._term.clock()
        self._end_turn(name)
        for condition in changes:
            self._record(group, condition)

    async def _review_waiting(self) -> None:
        for number, name in enumerate(self._term.members.waiting(), 1):
            if self._review.concerns(name):
                self.queue.add(name)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _forget(self, name: str) -> None:
        self._written.pop(name, None)
        self._unsettled_since.pop(name, None)
        self._first_pod_awaited_since.pop(name, None)
        self._barred.pop(name, None)
        self._review.forget(name)
        self._end_turn(name)

    def _end_turn(self, name: str) -> None:
        self._turns.over(name)
        self._words.over(name)

    async def _readopt(self, group: Group) -> bool:
        """Restores the node of a group whose status was lost; returns whether that is done."""
        written = await repair.readopt(self._term.cluster, group.name, token=new_mark())
        if written is None:
            # Its pods contradict each other, its ledger has to be recreated first, or only our mirror is behind: when
            # that changes, a pod, a ledger or the group does.
            return False
        self._term.groups.put(written)
        log.warning("Repaired status of group", group=group.name, node=written.node)
        text = f"its status was lost; its pods run on node {written.node}"
        self._term.recorder.note(subject_of(group), "Repaired", text)
        return True

    async def _name_claim(self, group: Group) -> bool:
        """Writes which claim the group is bound by, where that is missing; returns whether it was."""
        seen = self._term.fleet.ledger(group.node)
        claim = seen.claims.get(group.uid) if seen else None
        if claim is None or claim.token in ("", group.status.claim_token):
            return False
        written = await repair.name_claim(self._term.cluster, group.name)
        if written is None:
            return False
        self._term.groups.put(written)
        return True

    async def _desired(self, group: Group) -> GroupStatus:
        # The mirrors of groups and ledgers are not in step: a ledger is only missing when a read says so.
        claimed = not group.node or self._claimed(group)
        if not claimed and (seen := await find(self._term.cluster, NODE_DEVICES, group.node)):
            self._term.ledgers.put(seen)
        home = await self._home(group)
        pods = self._term.members.named(group.name)
        now, waits = timestamps.now(), self._term.waits
        return group_status.desired_status(group, self._term.fleet, home=home, pods=pods, now=now, waits=waits)

    def _claimed(self, group: Group) -> bool:
        ledger = self._term.fleet.ledger(group.node)
        return ledger is not None and (group.uid in ledger.claims or bool(ledger.metadata.unreadable))

    async def _home(self, group: Group) -> Node | None:
        """The node the group is bound to. The mirror holds shared nodes only; one that is missing there may exist."""
        if not group.node:
            return None
        if node := self._term.fleet.node(group.node):
            return node
        return await find(self._term.cluster, NODES, group.node)

    def _due(self, group: Group, *, prompt: bool) -> float:
        """When the group's status may be written."""
        if group.name in self._first_pod_awaited_since:
            return self._first_pod_awaited_since[group.name] + FIRST_POD_SECONDS
        due = self._unsettled_since[group.name] + UNSETTLED_SECONDS if group.name in self._unsettled_since else 0.0
        if prompt or group.name not in self._written:
            return due
        if not group.node:
            earliest = max(due, self._written[group.name] + WORDS_SECONDS)
            return max(earliest, self._words.at(group.name, self._term.clock()))
        earliest = max(due, self._written[group.name] + PODS_SECONDS)
        return max(earliest, self._turns.at(group.name, self._term.clock()))

    def _note_unsettled(self, group: Group) -> None:
        """Remembers since when a bind or a repair is probably taking the group."""
        triable = [pod for pod in self._term.members.pending(group.name) if not pod.gates]
        untried = bool(triable) and not any(pod.refusal for pod in triable)
        if not group.node and self._term.fleet.assumed(group.uid):
            self._unsettled_since[group.name] = self._term.clock()  # A bind is at it, however long its pods waited.
        elif not group.node and (untried or self._term.fleet.pods(group.uid)):
            self._unsettled_since.setdefault(group.name, self._term.clock())
        else:
            self._unsettled_since.pop(group.name, None)

    def _note_first_pod(self, group: Group) -> None:
        """Remembers since when the group has had a node, but neither a pod there nor a status that says so."""
        said = bool(group.status.allocated_pods or group.status.idle_since)
        if group.node and not said and not self._term.fleet.pods(group.uid):
            self._first_pod_awaited_since.setdefault(group.name, self._term.clock())
        else:
            self._first_pod_awaited_since.pop(group.name, None)

    def _warn_barred(self, group: Group) -> None:
        """Records an Event for each pod that waits in vain, once."""
        found = barred(self._term.fleet, group, self._term.members.pending(group.name))
        warned = self._barred.pop(group.name, set())
        for each in found:
            if each.pod.metadata.uid not in warned:
                self._term.recorder.warn(subject_of(each.pod), "NodesRuledOut", str(each.reason))
        if found:
            self._barred[group.name] = {each.pod.metadata.uid for each in found}

    def _record(self, group: Group, now: Condition) -> None:
        """Records the Event for a transition that people should know of."""
        if now.type == group_status.IS_READY:
            return  # it follows from the others
        if now.type == group_status.IS_BOUND:
            if now.status != TRUE and now.reason not in (ReasonKind.NO_PODS, ReasonKind.GATED, ReasonKind.RELEASED):
                self._term.recorder.warn(subject_of(group), now.reason, now.message)
            return
        before = {condition.type: condition.status for condition in group.status.conditions}.get(now.type)
        if now.status == FALSE:
            log.warning("Group is degraded", group=group.name, node=group.node, reason=now.reason)
            self._term.recorder.warn(subject_of(group), "Degraded", now.message)
        elif now.status == TRUE and before == FALSE:
            log.info("Group recovered", group=group.name, node=group.node)
            self._term.recorder.note(subject_of(group), "Recovered", now.message)
