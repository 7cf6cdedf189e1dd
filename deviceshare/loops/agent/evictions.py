"""Evictions of pods, by the eviction API: it honours PodDisruptionBudgets and grace periods."""

import time
from collections.abc import Callable
from typing import Final

import structlog
from msgspec import Struct

from deviceshare.loops.agent.ports import Writer
from deviceshare.loops.ports import Conflict, NotFound
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

SPARED: Final = "kube-system"
"""The namespace whose pods are never evicted: the cluster's own, such as device plugins."""
FRESH_SECONDS: Final = 15.0
"""For so long a request to evict holds: a pod that ceased while a budget protected it is spared."""
REST_SECONDS: Final = 60.0
"""After an eviction, until the same pod may be evicted again: it may take its time to end."""
TRESPASS: Final = "trespass"
OVERUSE: Final = "overuse"
CAUSES: Final = (TRESPASS, OVERUSE)
"""Why a pod is evicted, in the log and the metrics."""


class Intruder(Struct, frozen=True):
    """A pod that is to be evicted."""

    namespace: str
    name: str
    uid: str


class Evictions:
    """Works while `run` runs."""

    def __init__(
        self,
        writer: Writer,
        *,
        on_evicted: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_evicted` is called with the cause of each eviction."""
        self._writer = writer
        self._on_evicted = on_evicted
        self._clock = clock
        self._wanted: dict[Intruder, tuple[float, str]] = {}
        self._evicted: dict[Intruder, float] = {}
        self._queue: Queue[Intruder] = Queue("evictions", self._reconcile, workers=2, clock=clock)
        self.run = self._queue.run

    def want(self, intruder: Intruder, cause: str = TRESPASS) -> None:
        """Has the pod evicted. To be repeated for as long as it is meant."""
        now = self._clock()
        self._wanted = {each: wish for each, wish in self._wanted.items() if now - wish[0] < FRESH_SECONDS}
        self._evicted = {each: at for each, at in self._evicted.items() if now - at < REST_SECONDS}
        if intruder not in self._evicted:
            self._wanted[intruder] = now, cause
            self._queue.add(intruder)

    def withdraw(self, intruder: Intruder, cause: str) -> None:
        """Spares the pod at once, unless it is to be evicted for another cause."""
        if self._wanted.get(intruder, (0.0, ""))[1] == cause:
            del self._wanted[intruder]

    async def _reconcile(self, intruder: Intruder) -> None:
        at, cause = self._wanted.get(intruder, (-FRESH_SECONDS, TRESPASS))
        if intruder in self._evicted or self._clock() - at >= FRESH_SECONDS:
            return
        try:
            await self._writer.evict(intruder.namespace, intruder.name, uid=intruder.uid)
        except (NotFound, Conflict):
            return
        self._evicted[intruder] = self._clock()
        self._on_evicted(cause)
        log.warning("Evicted a pod", cause=cause, namespace=intruder.namespace, pod=intruder.name, uid=intruder.uid)
