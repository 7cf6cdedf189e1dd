"""A work queue of keys, with workers; a rate limit over keys, and a backoff for each.

A key says which object to reconcile; the reconciler reads the state as it is then and does what is missing. However
often an object changes, it is reconciled once more; a key that fails is retried later without holding up the others.
The idea is client-go's workqueue (https://pkg.go.dev/k8s.io/client-go/util/workqueue).
"""

import asyncio
import heapq
import itertools
import math
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from deviceshare.loops.ports import ApiError, Conflict, NotFound

log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)

TICK_SECONDS = 1.0
FIRST_RETRY, LAST_RETRY = 0.2, 15.0
FIRST_CONFLICT, LAST_CONFLICT = 0.05, 2.0
"""A conflict only means that another writer was first; the retry will most likely succeed."""
SPARE_ENTRIES = 64
"""Entries of the heap that no longer count and are kept nevertheless, besides as many as there are keys."""
PERSISTENT = 5
"""Failures in a row after which a person should know."""


class Later(Exception):
    """Raised by a reconciler that can go on only in so many seconds. It is no failure, and no worker waits."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.1f} s")
        self.seconds = seconds


class Queue(Generic[K]):
    """Calls `reconcile` with each key that was added, never twice at once for one key, nor for two of one lane.

    The owner runs a task with `run()`. Keys may be added before it runs.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[None]],
        *,
        workers: int = 4,
        lane: Callable[[K], Hashable] = lambda key: key,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`workers` is how many keys may be worked on at once; those with the same `lane` follow one another."""
        self.name = name
        self.ticked = clock()
        """When the queue last looked for work, by `clock`."""
        self._reconcile = reconcile
        self._workers = workers
        self._lane = lane
        self._clock = clock
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._busy: set[Hashable] = set()
        """The lanes that are worked on."""
        self._held: dict[Hashable, deque[K]] = {}
        """By busy lane, the keys that are due."""
        self._failures: dict[K, int] = {}
        self._not_before: dict[K, float] = {}
        self._changed = asyncio.Event()

    def add(self, key: K, after: float = 0.0) -> None:
        """Enqueues the key for in `after` seconds, or sooner where it is due already.

        A key that failed is not reconciled before its backoff is over.
        """
        due = max(self._clock() + after, self._not_before.get(key, 0.0))
        if self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        self._push(key)

    async def run(self) -> None:
        """Works until cancelled; then ends what is being worked on and returns when it has ended."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self.ticked = self._clock()
                self._changed.clear()
                for key in self._ready():
                    tasks.create_task(self._work(key), name=f"{self.name} {key}")
                try:
                    async with asyncio.timeout(self._idle()):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _push(self, key: K) -> None:
        heapq.heappush(self._heap, (self._due[key], next(self._order), key))
        if len(self._heap) > 2 * len(self._due) + SPARE_ENTRIES:
            self._sweep()
        self._changed.set()

    def _sweep(self) -> None:
        """Drops the entries that no longer count: where keys wait for days, each change would leave one for as long."""
        earliest: dict[K, tuple[float, int, K]] = {}
        for entry in sorted(self._heap):
            due, _, key = entry
            if self._due.get(key) == due:
                earliest.setdefault(key, entry)
        self._heap = list(earliest.values())  # sorted, which is a heap

    def _ready(self) -> list[K]:
        keys = []
        now = self._clock()
        while self._heap and self._heap[0][0] <= now and len(self._busy) < self._workers:
            due, _, key = heapq.heappop(self._heap)
            if self._due.get(key) != due:
                continue  # another entry counts: the key was added for an earlier time
            lane = self._lane(key)
            if lane in self._busy:
                self._held.setdefault(lane, deque()).append(key)
                continue
            del self._due[key]
            self._busy.add(lane)
            keys.append(key)
        return keys

    def _idle(self) -> float:
        if not self._heap or len(self._busy) >= self._workers:
            return TICK_SECONDS
        return min(max(self._heap[0][0] - self._clock(), 0.0), TICK_SECONDS)

    async def _work(self, key: K) -> None:
        try:
            await self._reconcile(key)
        except Later as later:
            self._succeeded(key)
            self.add(key, later.seconds)
        except Exception as error:
            if not isinstance(error, ApiError):  # A bug that one object triggers must not stop the work on all others.
                log.exception("Reconciler raised an exception", queue=self.name, key=key)
            self._failed(key, error)
        else:
            self._succeeded(key)
        finally:
            self._leave(self._lane(key))

    def _leave(self, lane: Hashable) -> None:
        """Lets the next key of the lane that is due be worked on; those behind it stay held."""
        self._busy.discard(lane)
        held = self._held.pop(lane, deque())
        while held:
            key = held.popleft()
            due = self._due.get(key)
            if due is None:
                continue  # held twice, if it failed meanwhile
            self._push(key)
            if due <= self._clock():
                break
        if held:
            self._held[lane] = held
        self._changed.set()

    def _succeeded(self, key: K) -> None:
        if self._failures.pop(key, 0) >= PERSISTENT:
            log.info("Reconciler recovered", queue=self.name, key=key)
        self._not_before.pop(key, None)

    def _failed(self, key: K, error: Exception) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if failures == PERSISTENT:
            log.error("Reconciler keeps failing", queue=self.name, key=key, error=str(error))
        elif failures == 1 and not isinstance(error, Conflict | NotFound):  # others were first, or deleted it
            log.warning("Reconciler failed and will retry", queue=self.name, key=key, error=str(error))
        first, last = (FIRST_CONFLICT, LAST_CONFLICT) if isinstance(error, Conflict) else (FIRST_RETRY, LAST_RETRY)
        delay = min(first * 2 ** min(failures - 1, 10), last) * random.uniform(0.5, 1.0)
        if isinstance(error, ApiError) and error.retry_after:
            delay = max(delay, error.retry_after)
        self._not_before[key] = self._clock() + delay
        self._due.pop(key, None)
        self.add(key)


class RateLimit(Generic[K]):
    """A key that asks gets a time and keeps it until its turn is over. No key waits while few ask."""

    def __init__(self, a_second: float) -> None:
        self._apart = 1 / a_second
        self._next = 0.0
        self._times: dict[K, float] = {}

    def at(self, key: K, now: float) -> float:
        """When the key's turn comes, in seconds of the clock of `now`."""
        if key not in self._times:
            # Keys that gave up their turns leave no gap: nobody waits for longer than those that are there take.
            longest = now + (len(self._times) + 1) * self._apart
            self._times[key] = max(min(self._next, longest), now)
            self._next = self._times[key] + self._apart
        return self._times[key]

    def over(self, key: K) -> None:
        """The key had its turn, or needs none any more."""
        self._times.pop(key, None)


class Backoff(Generic[K]):
    """How long keys are left alone, the longer the more often in a row they failed; the last of `seconds` for ever."""

    def __init__(self, clock: Callable[[], float], *seconds: float, forgotten: float = math.inf) -> None:
        """After `forgotten` seconds more without a failure a key starts again."""
        self._clock = clock
        self._seconds = seconds
        self._forgotten = forgotten
        self._failures: dict[K, tuple[int, float]] = {}
        """How often in a row, and until when the key is left alone."""

    def fail(self, key: K) -> None:
        now = self._clock()
        self._failures = {k: each for k, each in self._failures.items() if now <= each[1] + self._forgotten}
        times, _ = self._failures.get(key, (0, 0.0))
        self._failures[key] = times + 1, now + self._seconds[min(times, len(self._seconds) - 1)]

    def until(self, key: K) -> float:
        """Until when the key is left alone; 0 where it has not failed."""
        return self._failures.get(key, (0, 0.0))[1]

    def left_alone(self) -> list[K]:
        """The keys that are left alone now."""
        now = self._clock()
        return [key for key, (_, until) in self._failures.items() if until > now]

    def forget(self, key: K) -> None:
        self._failures.pop(key, None)

    def clear(self) -> None:
        self._failures.clear()

    def __bool__(self) -> bool:
        """Whether any key failed."""
        return bool(self._failures)
