"""The turns in the agent's report: looked at every few seconds, and reported where they have changed.

A turn may change many times a second, and every write is watched by all replicas. So what lies between two looks isn't
reported, and the last state always is.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from deviceshare.domain.turns.arena import Arena
from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.domain.turns.turn_report import renewed, reported_turns
from deviceshare.loops.agent.lookout import Lookout
from deviceshare.loops.agent.referee import boottime
from deviceshare.timestamps import seconds_since, timestamp

PAUSE: Final = 5.0
"""Seconds between two looks, and so between two writes at least."""
CLOCK_STEP: Final = 5.0
"""Seconds by which the node's time has to be set for the times of turns to follow. Else they stay as they were reported
first, however the two clocks drift."""


class TurnReports:
    """Keeps the turns of a node in its agent's report."""

    def __init__(
        self,
        lookout: Lookout,
        arenas: Callable[[], list[tuple[ArenaName, Arena]] | None],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`arenas` are those with players; None while that isn't known. `clock` is theirs."""
        self._lookout = lookout
        self._arenas = arenas
        self._now = now
        self._clock = clock
        self._booted: float | None = None
        """When `clock` was 0, by `now`, in seconds since 1970."""

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(PAUSE)
            self.look()

    def look(self) -> None:
        """Reports what has changed since the last look."""
        arenas = self._arenas()
        if arenas is None:
            return
        now = self._now()
        self._follow_clock(now.timestamp() - self._clock())
        found = reported_turns(arenas, self._stamp, timestamp(now))
        before = self._lookout.turns
        self._lookout.take_turns(renewed(before, found, seconds_since(before.time, now) if before else None))

    def _follow_clock(self, booted: float) -> None:
        if self._booted is None or abs(booted - self._booted) > CLOCK_STEP:
            self._booted = booted

    def _stamp(self, moment: float) -> str:
        return timestamp(datetime.fromtimestamp((self._booted or 0.0) + moment, UTC))
