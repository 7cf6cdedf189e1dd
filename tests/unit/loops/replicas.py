"""Replicas that bind: their Binder under asyncio, where every request, timer and pause is the test's choice.

Each has an event loop of its own that runs until nothing is ready. A request waits at the API server until the test has
it take effect, whatever became of the replica that sent it meanwhile: it may have given up, be asleep, or be dead.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from deviceshare.domain.placement.fleet import Fleet
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import ApiError, Kind, Unavailable
from deviceshare.loops.protocol.bind import BINDING_SECONDS, QUEUE_SECONDS, Refused
from deviceshare.loops.replica.binder import Binder
from deviceshare.loops.replica.feed import Feed
from tests.unit.loops.live import LiveCluster, MemoryMirror
from tests.unit.loops.model import ModelCluster

T = TypeVar("T")

MOMENT = 0.2
"""Seconds that a replica may sleep between two tries without the test's doing."""
KINDS: tuple[Kind[Any], ...] = (NODES, PODS, NODE_DEVICES, GROUPS)
"""Groups last: what is concluded from an unbound group depends on the others."""


@dataclass
class Clock:
    now: float = 0.0


class Loop(asyncio.BaseEventLoop):
    """Runs what is ready and then returns; its time is the world's."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._selector = self
        self._clock = clock
        self.stood = 0.0
        """Seconds that this clock stood still while the machine was suspended, as CLOCK_MONOTONIC does."""

    def time(self) -> float:
        return self._clock.now - self.stood

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.stop()
        return []

    def _process_events(self, events: list[Any]) -> None:
        """There are none."""

    def next_timer(self) -> float:
        """When the next timer is due, or infinity."""
        return min((timer.when() for timer in self._scheduled if not timer.cancelled()), default=float("inf"))  # type: ignore[attr-defined]


@dataclass(eq=False)
class SentRequest:
    """One that the API server has and that took no effect yet."""

    what: str
    work: Coroutine[Any, Any, Any]
    answer: asyncio.Future[Any]
    until: float
    """When the server gives up on it."""

    def take_effect(self, now: float) -> None:
        """The server does it; the answer waits until the replica runs."""
        try:
            if now > self.until:
                raise Unavailable("the server gave up")
            while True:
                self.work.send(None)
        except StopIteration as end:
            if not self.answer.done():
                self.answer.set_result(end.value)
        except ApiError as error:
            if not self.answer.done():
                self.answer.set_exception(error)
        finally:
            self.work.close()


class ReplicaCluster(LiveCluster):
    """The API server as one replica reaches it. Its requests take effect on the world's objects."""

    def __init__(self, world: ModelCluster, loop: Loop, clock: Clock) -> None:
        super().__init__()
        self.objects, self.versions, self.uids = world.objects, world.versions, world.uids
        self._read = world._read
        self.compares = world.compares
        self.queue: list[SentRequest] = []
        self.dead = False
        self._loop = loop
        self._clock = clock

    async def _request(self, verb: str, kind: Kind[Any], name: str, work: Coroutine[Any, Any, T]) -> T:
        self.requests.append((verb, kind.plural, name))
        if self.dead:
            work.close()
            raise asyncio.CancelledError
        waits = BINDING_SECONDS + (0.0 if self.compares else QUEUE_SECONDS) if verb == "bind" else float("inf")
        request = SentRequest(f"{verb} {name}", work, self._loop.create_future(), self._clock.now + waits)
        self.queue.append(request)
        result: T = await request.answer
        return result

    def _tell(self, kind: Kind[Any], name: str, namespace: str) -> None:
        """Mirrors hear of it when the test says so."""


class SteppedReplica:
    """One process that binds."""

    def __init__(self, world: ModelCluster, clock: Clock, lifts: bool = False) -> None:
        self.loop = Loop(clock)
        self.loop.set_exception_handler(_fail)
        self.clock = clock
        self.cluster = ReplicaCluster(world, self.loop, clock)
        self.fleet = Fleet()
        mirrors = self.cluster.mirrors
        groups, ledgers = mirrors[GROUPS.plural], mirrors[NODE_DEVICES.plural]
        Feed(
            self.fleet,
            nodes=mirrors[NODES.plural],
            ledgers=ledgers,
            pods=mirrors[PODS.plural],
            others=MemoryMirror(),
            quotas=mirrors[DEVICE_QUOTAS.plural],
            groups=groups,
        )
        self.binder = Binder(
            self.cluster,
            self.fleet,
            groups=groups,
            ledgers=ledgers,
            quotas=mirrors[DEVICE_QUOTAS.plural],
            on_conflict=_nothing,
            lifts=lifts,
            clock=lambda: clock.now,
        )
        self.binds: list[asyncio.Task[str]] = []
        self.asleep = False
        self._slept_at = 0.0

    @property
    def requests(self) -> list[SentRequest]:
        """What it has asked and the server has not done yet."""
        return self.cluster.queue

    def hear(self, kinds: tuple[Kind[Any], ...] = KINDS) -> None:
        """Its mirrors catch up with the cluster."""
        for kind in kinds:
            mirror = self.cluster.mirrors[kind.plural]
            present = {obj.metadata.key: obj for obj in self.cluster.all(kind)}
            for key in set(mirror.objects) - set(present):
                mirror.set(key, None)
            for key, obj in present.items():
                mirror.set(key, obj)

    def begin(self, pod: str, uid: str, node: str) -> asyncio.Task[str]:
        """kube-scheduler asks for a bind."""
        task = self.loop.create_task(self._bind(pod, uid, node))
        self.binds.append(task)
        self.run()
        return task

    async def _bind(self, pod: str, uid: str, node: str) -> str:
        try:
            await self.binder.bind("ns", pod, uid, node)
        except (Refused, ApiError) as error:
            return str(error) or type(error).__name__
        return ""

    def serve(self, request: SentRequest) -> None:
        """The request takes effect, and the replica goes on unless it sleeps."""
        self.cluster.queue.remove(request)
        request.take_effect(self.clock.now)
        self.run()

    def run(self) -> None:
        """Does all that can be done without an answer, up to short sleeps."""
        if self.asleep:
            return
        self.loop.run_forever()
        while (rest := self.loop.next_timer() - self.loop.time()) <= MOMENT:
            self.clock.now += max(rest, 0.0)
            self.loop.run_forever()
        for task in [task for task in self.binds if task.done()]:
            self.binds.remove(task)
            if not task.cancelled():
                task.result()  # what is neither a refusal nor an API error is a mistake

    def sleep(self) -> None:
        """The process does nothing more until it wakes; the server still has its requests."""
        self.asleep, self._slept_at = True, self.clock.now

    def wake(self, *, suspended: bool) -> None:
        """It goes on; while the machine itself was `suspended`, its timers stood still."""
        if suspended:
            self.loop.stood += self.clock.now - self._slept_at
        self.asleep = False
        self.run()

    def finish(self, task: asyncio.Task[str]) -> str:
        """Serves all requests until the bind has ended; its refusal, or ""."""
        while not task.done():
            self.serve(self.requests[0])
        return task.result()

    def die(self) -> list[SentRequest]:
        """Stops for ever; answers with the requests that the server still has."""
        self.cluster.dead, self.asleep = True, False
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_forever()
        self.loop.close()
        left, self.cluster.queue = self.cluster.queue, []
        return left


def _nothing() -> None:
    """Nobody counts conflicts here."""


def _fail(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    raise AssertionError(context)
