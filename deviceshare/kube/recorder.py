"""The recorder of Kubernetes Events, which people read with `kubectl describe`.

https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/ (written as core/v1, which counts)

An Event is worth less than whatever its writer is doing: `note` and `warn` only queue it, a task posts it, and when the
API server is slow or away, queued Events are counted together and at last dropped. An Event's name is derived from what
it says, so equal Events meet in one object, whichever replica saw them and however often it was restarted.
"""

import asyncio
import hashlib
from typing import Any

import structlog
from msgspec import Struct

from deviceshare import timestamps
from deviceshare.kube.api import delays
from deviceshare.loops.kinds import EVENTS
from deviceshare.loops.ports import AlreadyExists, ApiError, Cluster, Subject, Unavailable

log = structlog.get_logger(__name__)

CAPACITY = 1000
"""Different events waiting to be posted."""
TRIES = 5
PAUSES = 0.5, 10.0
"""Seconds between them, the first and the longest."""
LONGEST_MESSAGE = 1024
"""Bytes, by the API's own rule."""


class _Note(Struct):
    """An event not posted yet, seen `count` times."""

    namespace: str
    body: dict[str, Any]
    first: str
    last: str
    count: int = 1
    tries: int = 0


class EventRecorder:
    """Implements `deviceshare.loops.ports.Recorder`. The owner runs a task with `run()`."""

    def __init__(self, cluster: Cluster, instance: str) -> None:
        """`instance` names this process."""
        self._cluster = cluster
        self._source = {"component": "deviceshare", "host": instance}
        self._notes: dict[str, _Note] = {}
        self._noted = asyncio.Event()

    def note(self, subject: Subject, reason: str, message: str) -> None:
        self._record(subject, "Normal", reason, message)

    def warn(self, subject: Subject, reason: str, message: str) -> None:
        self._record(subject, "Warning", reason, message)

    def _record(self, subject: Subject, type_: str, reason: str, message: str) -> None:
        kind, name, namespace, uid = subject
        now = timestamps.now()
        said = (name, kind.kind, namespace, uid, type_, reason, message)
        digest = hashlib.sha256("\0".join(said).encode()).hexdigest()[:16]
        key = f"{name[:200].rstrip('.-')}.{digest}"
        if note := self._notes.get(key):
            note.count += 1
            note.last = now
            return
        if len(self._notes) >= CAPACITY:
            log.warning("Recorder dropped an Event", reason=reason, error=f"{CAPACITY} Events are waiting to be posted")
            return
        about = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name, "namespace": namespace, "uid": uid}
        body = {
            "involvedObject": about,
            "type": type_,
            "reason": reason,
            "message": message.encode()[:LONGEST_MESSAGE].decode(errors="ignore"),
            "source": self._source,
            "reportingComponent": self._source["component"],
            "reportingInstance": self._source["host"],
        }
        # Events about cluster-scoped objects belong into `default`; the API server refuses them anywhere else.
        self._notes[key] = _Note(namespace or "default", body, now, now)
        self._noted.set()

    async def run(self) -> None:
        """Posts what is noted until cancelled."""
        pauses = delays(*PAUSES)
        while True:
            await self._noted.wait()
            self._noted.clear()
            while self._notes:
                key = next(iter(self._notes))
                note = self._notes.pop(key)
                try:
                    await self._post(key, note)
                    pauses = delays(*PAUSES)
                except ApiError as error:
                    self._put_back(key, note, error)
                    await asyncio.sleep(max(next(pauses), error.retry_after or 0.0))

    def _put_back(self, key: str, note: _Note, error: ApiError) -> None:
        note.tries += 1
        if note.tries >= TRIES or not isinstance(error, Unavailable):
            log.warning("Recorder dropped an Event", reason=note.body["reason"], error=str(error))
            return
        if later := self._notes.pop(key, None):
            note.count += later.count
            note.last = later.last
        self._notes[key] = note

    async def _post(self, key: str, note: _Note) -> None:
        times = {"firstTimestamp": note.first, "lastTimestamp": note.last, "count": note.count}
        try:
            await self._cluster.create(EVENTS, {"metadata": {"name": key}, **note.body, **times}, note.namespace)
        except AlreadyExists:
            count = (await self._cluster.get(EVENTS, key, note.namespace)).count + note.count
            await self._cluster.patch(
                EVENTS, key, {"count": count, "lastTimestamp": note.last}, namespace=note.namespace
            )
