"""The newest state of something that changes in bursts, encoded once for all its readers.

A page open on many screens costs no more than on one, and nothing while none is open: a snapshot is made only while a
reader waits for one, only after a change, and with a pause after each. Slow readers miss those in between.
"""

import asyncio
import gzip
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger(__name__)

PAUSE: Final = 0.5
"""Seconds between two snapshots, at least."""
SHARE: Final = 0.05
"""Of the event loop's time, at most, so that snapshots of a huge cluster don't delay kube-scheduler."""
LONGEST_PAUSE: Final = 3.0
"""Seconds between two snapshots, at most, even where `SHARE` would require more."""
TURN: Final = 0.005
"""Seconds after which the steps of a snapshot let others have the event loop."""
TICK: Final = 5.0
"""Seconds until the next snapshot when no change was reported: a watch may be lost without an error."""


Steps = Generator[None, None, bytes]


class EncodedState(NamedTuple):
    """One state, plain and compressed with gzip; each that differs from the one before gets the next number, from 1."""

    number: int
    body: bytes
    packed: bytes


class Snapshots:
    """The owner runs `run()` as a task and calls `touch` at each change."""

    def __init__(self, make: Callable[[], bytes | Steps], *, pause: float = PAUSE, tick: float = TICK) -> None:
        """`make` returns a state, or the steps that end in one, and may raise: the previous state stays the newest.

        It runs on the event loop, on which others have their turns between the steps.
        """
        self._make = make
        self._pause = pause
        self._tick = tick
        self._newest = EncodedState(0, b"", b"")
        self._begun = self._made = 0
        """The numbers of attempts. An attempt includes every change until it began."""
        self._looking = 0
        self._took = 0.0
        """Seconds that the latest attempt had the event loop."""
        self._wanted = asyncio.Event()
        self._stale = asyncio.Event()
        self._round = asyncio.Event()
        self.closed = False

    def touch(self, *_: object) -> None:
        """Notes a change. Takes a mirror's notification, and ignores its arguments."""
        self._stale.set()

    def close(self) -> None:
        """Ends every wait, present and future."""
        self.closed = True
        self._round.set()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Snapshots are made while a reader is inside this context."""
        if not self._looking:
            self._stale.set()  # no tick has run since the last reader left
        self._looking += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._looking -= 1
            if not self._looking:
                self._wanted.clear()

    async def current(self) -> EncodedState:
        """The current state; number 0 when closed before the first. Waits while `make` fails: bound it."""
        with self.looking():
            wanted = self._begun + self._stale.is_set()
            while self._made < wanted and not self.closed:
                await self._round.wait()
        return self._newest

    async def after(self, number: int, patience: float) -> int:
        """The newest number as soon as it is greater; the same one after `patience` seconds, or when closed.

        Call it inside `looking`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._newest.number <= number and not self.closed:
                    await self._round.wait()
        return self._newest.number

    async def run(self) -> None:
        """Makes snapshots until cancelled."""
        while True:
            await self._wanted.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick):
                    await self._stale.wait()
            self._stale.clear()
            self._begun += 1
            self._took = 0.0
            body = await self._try()
            if body is not None:
                await self._take(body)
            await asyncio.sleep(max(self._pause, min(self._took / SHARE, LONGEST_PAUSE)))

    async def _try(self) -> bytes | None:
        try:
            with self._timed():
                made = self._make()
            return made if isinstance(made, bytes) else await self._made_of(made)
        except Exception:
            # A failure here must not stop the process, which binds pods.
            log.exception("Failed to make a snapshot for the page")
            self._stale.set()
            return None

    async def _made_of(self, steps: Steps) -> bytes:
        while True:
            with self._timed():
                end = perf_counter() + TURN
                try:
                    next(steps)
                    while perf_counter() < end:
                        next(steps)
                except StopIteration as done:
                    body: bytes = done.value
                    return body
            await asyncio.sleep(0)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Adds what the block takes to what the event loop has spent on this snapshot."""
        began = perf_counter()
        try:
            yield
        finally:
            self._took += perf_counter() - began

    async def _take(self, body: bytes) -> None:
        if body != self._newest.body:
            packed = await asyncio.to_thread(gzip.compress, body, 1)
            self._newest = EncodedState(self._newest.number + 1, body, packed)
        self._made = self._begun
        ended, self._round = self._round, asyncio.Event()
        ended.set()
        if self.closed:
            self._round.set()
