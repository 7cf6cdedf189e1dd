"""The reconciler of failed pods whose containers are not reported to have ended: waits out their grace period.

Until then such a pod lives: its devices stay reserved (pods.py). That the wait is over the leader writes
into the pod, so that every replica, the next leader and the webhooks see the same.
"""

import structlog

from deviceshare.domain import contract
from deviceshare.loops.api_objects import annotate
from deviceshare.loops.leader.context import ControllerContext, UnchangedSince
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

MARGIN_SECONDS = 10.0
"""Beyond the grace period: for the kubelet to begin, and for the runtime to kill."""


class Endings:
    """Keyed by `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue: Queue[str] = Queue("endings", self._reconcile, clock=context.clock)
        self._since: UnchangedSince[str] = UnchangedSince(context)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.pods.get(key)
        if pod is None or not pod.ending:
            self._since.forget(key)
            return
        uid = pod.metadata.uid
        self._context.wait_until(self._since(key, uid) + pod.grace_seconds + MARGIN_SECONDS)
        if marked := await annotate(self._context.cluster, pod, {contract.ENDED: uid}):
            self._context.pods.put(marked)
            log.warning("Marked failed pod as ended", pod=key, node=pod.node, phase=pod.status.phase)
