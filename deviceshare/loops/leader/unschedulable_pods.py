"""The reconciler of pods that were placed where the cluster's scheduler finds no place: they lead back to a decision.

A gate that was lifted can't be put back, nor a node affinity be loosened. So a pod that is unschedulable for longer
than a moment, and that a controller would recreate, is deleted as it is: it never ran. The new one is behind a gate
again, and is kept from this node for a while. A pod whose group lives on the node with others has no other choice and
stays; one without a controller is for a person to recreate.
"""

import re
from typing import Final

import structlog

from deviceshare.domain.objects.pods import UNSCHEDULABLE, Pod
from deviceshare.loops.api_objects import subject_of
from deviceshare.loops.leader.context import ControllerContext, UnchangedSince
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.leader.waiting_events import WaitingEvents
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.queue import Backoff, Later, Queue, RateLimit

log = structlog.get_logger(__name__)

UNSCHEDULABLE_SECONDS: Final = 20.0
"""How long kube-scheduler must have found no place: it retries when something in the cluster changes."""
NOMINATED_SECONDS: Final = 300.0
"""Likewise, of a pod for which it evicts others, which may take their grace period."""
LOOK_SECONDS: Final = 30.0
"""Between two looks at a pod that is left as it is: when the others of its group end, nothing of it changes."""
DELETIONS_A_SECOND: Final = 1.0
APART_SECONDS: Final = (30.0, 60.0, 120.0, 300.0, 600.0)
"""Between deletions of one group's pods, or one controller's, the more the more often it happens; the last for ever."""
FORGOTTEN_SECONDS: Final = 3600.0
"""After so long more without a deletion it starts again."""
AVOID_SECONDS: Final = 600.0
"""How long pods are kept from the node: what kept the first of them from it may be gone then."""

_OF_THE_POD: Final = re.compile(r"0/[0-9]+ nodes are available: (?!node\(s\))[A-Za-z]")
"""kube-scheduler's words where it looked at no node, since the pod can't be scheduled yet: a volume claim isn't bound,
others of its gang are missing. Reasons of nodes follow their number, or begin with `node(s)` where plugins disagree on
which to look at (kubernetes/kubernetes, `pkg/scheduler/framework/types.go`, FitError)."""


class UnschedulablePods:
    """Keyed by `namespace/name`. Which nodes to avoid another leader would learn by one more try."""

    def __init__(self, context: ControllerContext, releaser: Releaser) -> None:
        self._context = context
        self._releaser = releaser
        self._avoided: dict[tuple[str, str], float] = {}
        """By whom a node's refusal concerns and the node, until when."""
        self.queue: Queue[str] = Queue("unschedulable", self._reconcile, workers=1, clock=context.clock)
        self._since: UnchangedSince[str] = UnchangedSince(context)
        self._turns: RateLimit[str] = RateLimit(DELETIONS_A_SECOND)
        self._deleted: Backoff[str] = Backoff(context.clock, *APART_SECONDS, forgotten=FORGOTTEN_SECONDS)
        """By whom the node's refusal concerned."""
        self._events = WaitingEvents(context, "NodeDoesNotFit")

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        if any(_refused(pod) for pod in change.sides):
            self.queue.add(change.key)
        if change.old and not (change.new and _refused(change.new)):
            self._events.forget(change.old)

    def avoided(self, pod: Pod) -> frozenset[str]:
        """The nodes that this pod is to be kept from now, since kube-scheduler found no place there for one like it."""
        who, now = _subject(pod), self._context.clock()
        return frozenset(node for (whose, node), until in self._avoided.items() if whose == who and until > now)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.pods.get(key)
        if pod is None or not _refused(pod):
            self._since.forget(key)
            self._turns.over(key)
            return
        since, nominated = self._since(key, pod.metadata.uid), bool(pod.status.nominated_node_name)
        leaving = self._releaser.displaced(pod.node, pod.holder_uid, pod.group)
        if nominated or not leaving:
            self._context.wait_until(since + (NOMINATED_SECONDS if nominated else UNSCHEDULABLE_SECONDS))
        now = self._context.clock()
        self._avoided = {unfit: until for unfit, until in self._avoided.items() if until > now}
        self._avoided[_subject(pod), pod.node] = now + AVOID_SECONDS
        if why := self._stays(pod):
            self._events.record(pod, why)
            raise Later(LOOK_SECONDS)
        if not leaving:
            self._context.wait_until(self._deleted.until(_subject(pod)))
        self._context.wait_until(self._turns.at(key, self._context.clock()))
        await self._delete(key, pod)

    def _stays(self, pod: Pod) -> str:
        """Why the pod is left as it is, and what a person can do, or ""."""
        said = pod.refusal.message if pod.refusal else ""
        where = f"kube-scheduler finds no place for it on node {pod.node}, for which deviceshare placed it: {said}"
        named = self._context.index.named(pod.group) if pod.group else []
        mine = [each for each in named if each.holds(pod.holder_uid, pod.node)]
        if any(each.spec.node_name == pod.node for each in mine):
            return f"{where}; group {pod.group} lives there with other pods, so it can't go elsewhere"
        if pod.metadata.controller is None:
            return (
                f"{where}; no controller would recreate it: delete it (kubectl delete pod) and create it again from its"
                " manifest, not from kubectl get -o yaml, which names this node"
            )
        stuck = f"{where}; group {pod.group} can't leave the node while pod"
        if alone := sorted(each.metadata.key for each in mine if each.metadata.controller is None):
            cure = "delete that one, and create it again from its manifest"
            return f"{stuck} {alone[0]} waits there, too, which no controller would recreate: {cure}"
        if others := sorted(each.metadata.key for each in mine if not _refused(each)):
            return f"{stuck} {others[0]} may yet be bound there"
        return ""

    async def _delete(self, key: str, pod: Pod) -> None:
        if pod.group:
            self._releaser.displace(pod)  # before it is recreated
        if not await self._context.delete_unchanged(pod):
            return
        self._deleted.fail(_subject(pod))
        log.warning("Deleted pod that did not fit", pod=key, node=pod.node, uid=pod.metadata.uid)
        text = f"deleted, so that its controller recreates it and it is placed elsewhere: {_said(pod)}"
        self._context.recorder.warn(subject_of(pod), "NodeDidNotFit", text)


def _refused(pod: Pod) -> bool:
    """Whether kube-scheduler tried the pod in vain on the node that its gate was lifted for.

    An error of its own (`SchedulerError`) says nothing of the node, and it retries. Nor does what the pod itself waits
    for: another node would not help, and a Job would have failed.
    """
    said = pod.refusal if pod.placed_on else None
    return said is not None and said.reason == UNSCHEDULABLE and not _OF_THE_POD.match(said.message)


def _said(pod: Pod) -> str:
    said = pod.refusal.message if pod.refusal else ""
    return f"kube-scheduler found no place for it on node {pod.placed_on}: {said}"


def _subject(pod: Pod) -> str:
    """Whom a node's refusal concerns: the pod's group, the controller that recreates it, or the pod alone."""
    controller = pod.metadata.controller
    return f"group {pod.group}" if pod.group else controller.uid if controller else f"pod {pod.metadata.key}"
