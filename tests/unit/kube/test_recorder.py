"""Recorder: people see what happened once, and nobody waits for it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from unittest.mock import patch

from structlog.testing import capture_logs

from deviceshare.kube.recorder import LONGEST_MESSAGE, TRIES, EventRecorder
from deviceshare.loops.kinds import EVENTS, GROUPS, PODS, Event
from deviceshare.loops.ports import AlreadyExists, ApiError, Cluster, Forbidden, Kind, Subject, Unavailable
from tests.unit.kube.scripted import until
from tests.unit.loops.model import ModelCluster
from tests.unit.loops.virtual_time import in_virtual_time

T = TypeVar("T")


class EventServer(ModelCluster):
    """Refuses a create as often as it is told."""

    def __init__(self, *refusals: ApiError) -> None:
        super().__init__()
        self.refusals = list(refusals)
        self.bodies: list[Mapping[str, Any]] = []

    @property
    def events(self) -> list[Event]:
        return self.all(EVENTS)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        await asyncio.sleep(0.001)
        if self.refusals:
            raise self.refusals.pop(0)
        if self.read(kind, body["metadata"]["name"], namespace):
            raise AlreadyExists("")
        self.bodies.append(body)
        self.put(kind, body, namespace)
        return cast("T", self.read(kind, body["metadata"]["name"], namespace))

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return cast("T", self.read(kind, name, namespace))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        timeout: float | None = None,
    ) -> T:
        self.edit(kind, name, body, namespace)
        return cast("T", self.read(kind, name, namespace))


@asynccontextmanager
async def recording(server: EventServer) -> AsyncIterator[EventRecorder]:
    recorder = EventRecorder(cast("Cluster", server), "replica-1")
    running = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})


def tell(recorder: EventRecorder, message: str = "devices 0,1", name: str = "team-a") -> None:
    recorder.note(Subject(GROUPS, name, uid="uid-1"), "Bound", message)


def dropped(logs: Sequence[Mapping[str, Any]]) -> int:
    """The number of Events that a log line says were dropped."""
    return sum(line["event"] == "Recorder dropped an Event" for line in logs)


def counts(server: EventServer, *wanted: int) -> Callable[[], bool]:
    return lambda: sorted(event.count for event in server.events) == sorted(wanted)


@in_virtual_time
async def test_an_event_is_about_an_object() -> None:
    """`kubectl describe` finds it by kind, name and UID; those of cluster-scoped objects live in `default`."""
    server = EventServer()
    async with recording(server) as recorder:
        tell(recorder)
        recorder.warn(Subject(PODS, "p", "ns", "uid-2"), "Odd", "é" * 2000)
        await until(counts(server, 1, 1))
    first, second = server.bodies
    assert first["involvedObject"] == {
        "apiVersion": "deviceshare.io/v1alpha1",
        "kind": "SharedDeviceGroup",
        "name": "team-a",
        "namespace": "",
        "uid": "uid-1",
    }
    assert (first["type"], first["reason"], first["message"]) == ("Normal", "Bound", "devices 0,1")
    assert [event.metadata.namespace for event in server.events] == ["default", "ns"]
    assert len(second["message"].encode()) == LONGEST_MESSAGE


@in_virtual_time
async def test_equal_events_are_counted() -> None:
    """In what waits, in the API server, and after a restart of ours or with another replica."""
    server = EventServer()
    for expected in (3, 6):
        async with recording(server) as recorder:
            for _ in range(3):
                tell(recorder)
            tell(recorder, "something else")
            await until(counts(server, expected, expected // 3))


@in_virtual_time
async def test_an_event_outlives_a_short_outage() -> None:
    """And what is told meanwhile is counted with it."""
    server = EventServer(*[Unavailable("no", retry_after=2.0)] * (TRIES - 1))
    with capture_logs() as logs:
        async with recording(server) as recorder:
            tell(recorder)
            await asyncio.sleep(1)
            tell(recorder)
            await until(counts(server, 2))
    assert dropped(logs) == 0


@in_virtual_time
async def test_an_event_that_cannot_be_posted_is_dropped_and_logged() -> None:
    """A namespace that is going away refuses it; a long outage loses it; the next one is posted."""
    server = EventServer(Forbidden("namespace is terminating"), *[Unavailable("no")] * TRIES)
    with capture_logs() as logs:
        async with recording(server) as recorder:
            tell(recorder, name="a")
            await until(lambda: dropped(logs) == 1)
            tell(recorder, name="b")
            await until(lambda: dropped(logs) == 2)
            tell(recorder, name="c")
            await until(counts(server, 1))


@in_virtual_time
async def test_a_full_queue_drops_instead_of_growing() -> None:
    """What records an Event never waits; each dropped one is logged."""
    server = EventServer()
    with capture_logs() as logs, patch("deviceshare.kube.recorder.CAPACITY", 2):
        async with recording(server) as recorder:
            for number in range(5):
                tell(recorder, f"message {number}")
            assert dropped(logs) == 3
            await until(counts(server, 1, 1))
