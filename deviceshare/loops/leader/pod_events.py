"""The reconciler of Events of waiting pods that neither kube-scheduler nor admission can record.

What admission warned of reaches nobody whose controller creates the pod. And a Deployment that starts its new pod
before it ends the old one waits for itself, where the old one has the share that the new one asks for.
"""

from typing import Final

from deviceshare.domain import contract
from deviceshare.domain.answers.waiting import deployment_of, rolling_update
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.leader.context import Buckets, ControllerContext, WaitingEvents
from deviceshare.loops.ports import ObjectChange

WARNED: Final = "AdmissionWarning"
WAITS_FOR_ITSELF: Final = "RollingUpdateWaits"
GATHER_SECONDS: Final = 2.0
"""Between a pod's refusal and a look: its Deployment may be ending the old pod already."""


class PodEvents:
    """Keyed by `namespace/name` of pods."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("pod-events", self._reconcile, workers=1)
        self._warnings = WaitingEvents(context, WARNED)
        self._updates = WaitingEvents(context, WAITS_FOR_ITSELF)
        self._sharing: Buckets[Pod] = Buckets(context.pods)
        """By Deployment: its pods with shares."""

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        key, old, new = change
        if old and (new is None or old.metadata.uid != new.metadata.uid):
            self._warnings.forget(old)
            self._updates.forget(old)
        # Of a bound pod, too: it has the share that the next one may wait for.
        name = deployment_of(new) if new else None
        self._sharing.put(key, name)
        if new and new.pending and contract.WARNINGS in new.metadata.annotations:
            self._warnings.record(new, new.metadata.annotations[contract.WARNINGS].replace("\n", "; "))
        if new and name and (new.refusal or new.awaits_placement) and self._sharing.count(name) > 1:
            self.queue.add(key, GATHER_SECONDS)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.pods.get(key)
        if pod is None or not pod.pending or pod.metadata.deletion_timestamp:
            return
        if found := rolling_update(self._context.fleet, pod, self._sharing[deployment_of(pod)]):
            self._updates.record(pod, found)
