"""Waits out the grace period of failed pods whose containers nobody says have ended (container_states.py).

Until then such a pod lives: its devices go to nobody else. What the leader waited for it writes into the pod, so that
every replica, the next leader and the webhooks go by the same, and a leader that is replaced only begins to wait again.
"""

import time
from collections.abc import Callable

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import Cluster, Mirror, NotFound
from deviceshare.loops.queue import Later, Queue

log = structlog.get_logger(__name__)

MARGIN_SECONDS = 10.0
"""Beyond the grace period: for the kubelet to begin, and for the runtime to kill."""


class Endings:
    """The reconciler of pods whose phase says more than is known, keyed by `namespace/name`."""

    def __init__(self, cluster: Cluster, *, pods: Mirror[Pod], clock: Callable[[], float] = time.monotonic) -> None:
        self.queue: Queue[str] = Queue("endings", self._reconcile, clock=clock)
        self._cluster = cluster
        self._pods = pods
        self._clock = clock
        self._since: dict[str, tuple[str, float]] = {}
        """By key, the UID of a pod and since when we have seen it so."""

    async def _reconcile(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is None or not pod.ending:
            self._since.pop(key, None)
            return
        meta = pod.metadata
        if self._since.get(key, ("",))[0] != meta.uid:
            self._since[key] = meta.uid, self._clock()
        rest = self._since[key][1] + pod.grace_seconds + MARGIN_SECONDS - self._clock()
        if rest > 0:
            raise Later(rest)
        body = {"metadata": {"resourceVersion": meta.resource_version, "annotations": {contract.ENDED: meta.uid}}}
        try:
            self._pods.put(await self._cluster.patch(PODS, meta.name, body, namespace=meta.namespace))
        except NotFound:
            return
        log.warning("Took a failed pod for ended", pod=key, node=pod.node, phase=pod.status.phase)
