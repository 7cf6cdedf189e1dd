"""Failed pods whose containers are not reported to have ended: their grace period is waited out (container_states.py).

Until then such a pod lives: its devices stay reserved. That the wait is over the leader writes into the pod, so that
every replica, the next leader and the webhooks see the same, and a new leader only has to wait once more.
"""

import structlog

from deviceshare.domain import contract
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.term import Term
from deviceshare.loops.ports import NotFound
from deviceshare.loops.queue import Later, Queue

log = structlog.get_logger(__name__)

MARGIN_SECONDS = 10.0
"""Beyond the grace period: for the kubelet to begin, and for the runtime to kill."""


class Endings:
    """The reconciler of pods whose phase says more than is known, keyed by `namespace/name`."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("endings", self._reconcile, clock=term.clock)
        self._since: dict[str, tuple[str, float]] = {}
        """By key, the UID of a pod and since when we have seen it so."""

    async def _reconcile(self, key: str) -> None:
        pod = self._term.pods.get(key)
        if pod is None or not pod.ending:
            self._since.pop(key, None)
            return
        meta = pod.metadata
        if self._since.get(key, ("",))[0] != meta.uid:
            self._since[key] = meta.uid, self._term.clock()
        rest = self._since[key][1] + pod.grace_seconds + MARGIN_SECONDS - self._term.clock()
        if rest > 0:
            raise Later(rest)
        body = {"metadata": {"resourceVersion": meta.resource_version, "annotations": {contract.ENDED: meta.uid}}}
        try:
            self._term.pods.put(await self._term.cluster.patch(PODS, meta.name, body, namespace=meta.namespace))
        except NotFound:
            return
        log.warning("Marked failed pod as ended", pod=key, node=pod.node, phase=pod.status.phase)
