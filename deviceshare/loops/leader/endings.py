"""The reconciler of failed pods whose containers are not reported to have ended: waits out their grace period.

Until then such a pod lives: its devices stay reserved (pods.py). That the wait is over the leader writes
into the pod, so that every replica, the next leader and the webhooks see the same.
"""

import structlog

from deviceshare.domain import contract
from deviceshare.loops.api_objects import annotate
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

MARGIN_SECONDS = 10.0
"""Beyond the grace period: for the kubelet to begin, and for the runtime to kill."""


class Endings:
    """Keyed by `namespace/name`."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("endings", self._reconcile, clock=term.clock)
        self._since: UnchangedSince[str] = UnchangedSince(term)

    async def _reconcile(self, key: str) -> None:
        pod = self._term.pods.get(key)
        if pod is None or not pod.ending:
            self._since.forget(key)
            return
        uid = pod.metadata.uid
        self._term.wait_until(self._since(key, uid) + pod.grace_seconds + MARGIN_SECONDS)
        if marked := await annotate(self._term.cluster, pod, {contract.ENDED: uid}):
            self._term.pods.put(marked)
            log.warning("Marked failed pod as ended", pod=key, node=pod.node, phase=pod.status.phase)
