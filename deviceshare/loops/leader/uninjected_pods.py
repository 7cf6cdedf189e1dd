"""The reconciler of pods that were created past admission: it deletes them, so that their controllers recreate them.

API servers before 1.28 can't be told to refuse just the pods of groups while admission is away, so they create them
uninjected, and no environment can be added to a pod later. Such a pod is never bound, so nothing of it has run. One
without a controller is for a person to recreate; kube-scheduler's Event of it says so.
"""

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from deviceshare.domain.admission.drafts import concerns
from deviceshare.domain.objects.groups import EVERYTHING
from deviceshare.domain.objects.object_decoder import OwnerReference
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import JOBS, find, subject_of
from deviceshare.loops.leader.context import ControllerContext, UnchangedSince, WaitingEvents
from deviceshare.loops.ports import Forbidden, Kind, ObjectChange, Subject
from deviceshare.loops.queue import Backoff, Later, RateLimit

log = structlog.get_logger(__name__)

REASON: Final = "NotInjected"
DELETIONS_A_SECOND: Final = 1.0
GRACE_SECONDS: Final = 5.0
"""Between a pod's creation and its deletion: admission that was away for a moment is back then."""
APART_SECONDS: Final = (30.0, 120.0, 600.0)
"""Between the end of one controller's round and the beginning of the next. After the last there is none."""
MOST_ROUNDS: Final = len(APART_SECONDS) + 1
UNPROVEN: Final = 5
"""Deletions in a row, of one namespace, after which no injected pod came."""
TRIAL_SECONDS: Final = 300.0
"""Between deletions from then on."""
FORGOTTEN_SECONDS: Final = 3600.0
"""After so long without a deletion a controller starts again, and a namespace."""
KEPT_JOBS: Final = 1024
RUNS: Final = frozenset({"Workflow", "TaskRun", "SparkApplication"})
"""Controllers of others (argoproj.io, tekton.dev, sparkoperator.k8s.io) for which a deleted pod is a failed one,
retried only where they are told to."""
_WHY: Final = "deviceshare's admission was not called when the pod was created, so its containers could get no devices"


def uninjected(dialects: frozenset[str], pod: Pod) -> bool:
    """Whether a pod without deviceshare's label should have got it at its creation.

    `dialects`: the other systems whose resources are served here.
    """
    meta = pod.metadata
    # In namespaces that admission leaves out the next pod would be no other. A pod with a node may run: whoever may
    # change it may have annotated it since.
    return not (pod.left_out or pod.spec.node_name) and concerns(meta.labels, meta.annotations, pod.share, dialects)


class UninjectedPods:
    """Keyed by `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("uninjected", self._reconcile, workers=1)
        self._since: UnchangedSince[str] = UnchangedSince(context)
        self._turns: RateLimit[str] = RateLimit(DELETIONS_A_SECOND)
        """Of namespaces: one with a thousand such pods has one turn at a time, as all others have."""
        self._recreations = Recreations(context.clock)
        self._events = WaitingEvents(context, REASON)
        self._failures: dict[str, int] = {}
        """How many pods of a Job have failed, by its UID, our deletions among them; the last asked about last."""

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of an uninjected pod without a node."""
        if change.new:
            self._since(change.key, change.new.metadata.uid)
        if change.old and not (change.new and change.new.metadata.uid == change.old.metadata.uid):
            self._events.forget(change.old)
        self.queue.add(change.key)

    def change_injected(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that has deviceshare's label: where a new one is injected, admission is there."""
        if change.old is None and change.new and self._recreations.unproven and change.new.injected:
            owner = change.new.metadata.controller
            self._recreations.prove(owner.uid if owner else "")
            for pod in self._context.uninjected.values():
                self.queue.add(pod.metadata.key)

    def enqueue_namespace(self, name: str) -> None:
        """Enqueues the pods of a namespace that admission may select by now."""
        for pod in self._context.uninjected.values():
            if pod.metadata.namespace == name:
                self.queue.add(pod.metadata.key)

    def _selected(self, namespace: str) -> bool:
        """Whether admission selects the namespace by its labels, as far as they are known."""
        if self._context.namespace_selector == EVERYTHING:
            return True
        found = self._context.namespaces.get(namespace)
        return found is not None and found.labels is not None and self._context.namespace_selector.matches(found.labels)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.uninjected.get(key)
        namespace = key.partition("/")[0]
        if pod is None:
            self._since.forget(key)
            if namespace not in {each.metadata.namespace for each in self._context.uninjected.values()}:
                self._turns.over(namespace)
            return
        owner = pod.metadata.controller
        if owner is None or pod.metadata.deletion_timestamp or not self._selected(namespace):
            return
        seen = self._since(key, pod.metadata.uid)
        due = self._recreations.due(namespace, owner.uid, seen)
        if math.isinf(due):
            done = f"{MOST_ROUNDS} times deviceshare deleted such pods for {owner.kind} {owner.name} to recreate"
            cure = f"see why admission isn't called for pods of namespace {namespace} (deviceshare doctor)"
            self._leave(pod, owner, f"{_WHY}; {done}, and it leaves this one: {cure}, then delete the pod")
            raise Later(FORGOTTEN_SECONDS)
        self._context.wait_until(due)
        self._context.wait_until(self._turns.at(namespace, self._context.clock()))
        self._turns.over(namespace)
        if why := await self._fails_with_it(pod, owner):
            self._leave(pod, owner, why)
            return
        await self._delete(pod, owner, seen)

    def _leave(self, pod: Pod, owner: OwnerReference, why: str) -> None:
        seen = self._context.uninjected.get(pod.metadata.key)
        if seen is None or seen.metadata.uid != pod.metadata.uid:
            return  # It went meanwhile, and nothing would end what is remembered of it.
        log.warning("Left uninjected pod", pod=pod.metadata.key, controller=f"{owner.kind} {owner.name}", reason=why)
        self._events.record(pod, why)

    async def _fails_with_it(self, pod: Pod, owner: OwnerReference) -> str:
        """Why the controller would fail with the pod, or "".

        Of a Job a deleted pod counts as a failed one from Kubernetes 1.22 on; its status says so a while later.
        https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy
        """
        if owner.kind in RUNS:
            return f"{_WHY}; {owner.kind} {owner.name} may fail if the pod is deleted: run it again"
        if owner.kind != JOBS.kind or not owner.api_version.startswith("batch/"):
            return ""  # Volcano's are called so, too
        try:
            job = await find(self._context.cluster, JOBS, owner.name, pod.metadata.namespace)
        except Forbidden:
            return f"{_WHY}; deviceshare may not read Job {owner.name}, which might fail with the pod: delete the pod"
        if job is None:
            return ""
        failures = self._failures[owner.uid] = max(job.failures, self._failures.pop(owner.uid, 0))
        if len(self._failures) > KEPT_JOBS:
            del self._failures[next(iter(self._failures))]
        if not (spent := job.spent(pod, failures)):
            return ""
        return f"{_WHY}; Job {owner.name} would fail if the pod were deleted ({spent}): recreate the Job"

    async def _delete(self, pod: Pod, owner: OwnerReference, seen: float) -> None:
        meta, who = pod.metadata, f"{owner.kind} {owner.name}"
        if not await self._context.delete_unchanged(pod):
            return
        self._recreations.delete(meta.namespace, owner.uid, seen)
        if owner.uid in self._failures:
            self._failures[owner.uid] += 1
        self._context.on_recreated()
        log.warning("Deleted uninjected pod", pod=meta.key, uid=meta.uid, controller=who, group=pod.group)
        said = f"deleted pod {meta.name}, so that {who} recreates it: {_WHY}"
        # The pod is gone; what remains are its controller and its group.
        kind: Kind[object] = Kind(owner.api_version, owner.kind, "", object, namespaced=True)
        subjects = [subject_of(pod), Subject(kind, owner.name, meta.namespace, owner.uid)]
        group = self._context.groups.get(pod.group) if pod.group else None
        for subject in [*subjects, subject_of(group)] if group else subjects:
            self._context.recorder.warn(subject, REASON, said)


class _Rounds(NamedTuple):
    number: int
    began: float
    last: float


class Recreations:
    """When the next uninjected pod may be deleted, so that an admission that stays away causes no storm.

    Pods of one controller that were seen before the first of them was deleted belong to one round and go one after the
    other. Pods that come uninjected after that belong to the next round, which begins later each time, and after some
    rounds never: whatever kept admission from them still does. Over all controllers of a namespace, some deletions in a
    row after which no injected pod came are taken as a sign that admission is still away; from then on one pod at a
    time is a trial. Each namespace by itself: whoever may write pods in one can make any number look uninjected.

    Owners are the UIDs of controllers.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._owners: dict[str, _Rounds] = {}
        self._trials: Backoff[str] = Backoff(clock, *[0.0] * (UNPROVEN - 1), TRIAL_SECONDS, forgotten=FORGOTTEN_SECONDS)
        """Of namespaces: each deletion since an injected pod came is a failure."""

    @property
    def unproven(self) -> bool:
        """Whether a pod was deleted since an injected one came."""
        return bool(self._trials)

    def prove(self, owner: str) -> None:
        """An injected pod came, of this controller if it has one: admission is there."""
        self._trials.clear()
        self._owners.pop(owner, None)

    def due(self, namespace: str, owner: str, seen: float) -> float:
        """When a pod that was first seen then may be deleted; infinite after the controller's last round."""
        trial, rounds = self._trials.until(namespace), self._rounds(owner)
        if rounds is None:
            return max(seen + GRACE_SECONDS, trial)
        if seen <= rounds.began:
            return max(rounds.began, trial)
        if rounds.number >= MOST_ROUNDS:
            return math.inf
        return max(seen + GRACE_SECONDS, rounds.last + APART_SECONDS[rounds.number - 1], trial)

    def delete(self, namespace: str, owner: str, seen: float) -> None:
        """Counts the deletion of such a pod."""
        now, rounds = self._clock(), self._rounds(owner)
        if rounds is None or seen > rounds.began:
            rounds = _Rounds(rounds.number + 1 if rounds else 1, now, now)
        lately = {who: each for who, each in self._owners.items() if now - each.last <= FORGOTTEN_SECONDS}
        self._owners = {**lately, owner: rounds._replace(last=now)}
        self._trials.fail(namespace)

    def _rounds(self, owner: str) -> _Rounds | None:
        rounds = self._owners.get(owner)
        return rounds if rounds and self._clock() - rounds.last <= FORGOTTEN_SECONDS else None
