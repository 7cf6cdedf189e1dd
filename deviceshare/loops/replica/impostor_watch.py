"""Impostors: pods that were bound with the devices of an earlier pod of their name (claims.md, bind, step 5).

Older API servers don't compare the UID of a Binding. A pod recreated while its Binding was under way is bound
with devices that its group may not hold. Every replica watches for that, so it is found even if the binder crashed.
"""

import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import PODS, subject_of
from deviceshare.loops.ports import Cluster, Mirror, NotFound, ObjectChange, Recorder
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

MESSAGE = (
    "the pod was recreated under the same name while it was being bound, and so was bound with devices meant for the"
    " earlier pod: it is deleted; its workload recreates it, or recreate it yourself"
)


class ImpostorWatch:
    """Reports and deletes impostors, for as long as `run` runs."""

    def __init__(
        self, cluster: Cluster, pods: Mirror[Pod], recorder: Recorder, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._pods = pods
        self._recorder = recorder
        self._queue: Queue[str] = Queue("impostors", self._reconcile, clock=clock)
        self.run = self._queue.run
        pods.subscribe(self._change)

    def _change(self, change: ObjectChange[Pod]) -> None:
        if change.new is not None and _to_delete(change.new):
            self._queue.add(change.key)

    async def _reconcile(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is None or not _to_delete(pod):
            return
        meta = pod.metadata
        log.error("Found pod with the devices of its namesake", pod=key, node=pod.node, uid=meta.uid)
        self._recorder.warn(subject_of(pod), "WrongDevices", MESSAGE)
        with suppress(NotFound):
            await self._cluster.delete(PODS, meta.name, meta.namespace, uid=meta.uid)


def _to_delete(pod: Pod) -> bool:
    return pod.impostor and not pod.metadata.deletion_timestamp
