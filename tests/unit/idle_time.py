"""An event loop whose clock runs while nothing is to do, and hardly at all meanwhile.

Timers wait as long as they say, but what a busy machine takes for the work in between isn't counted: a request that is
to be answered within 0.2 s is in time however late the answer is computed, and one that is never answered is not.

A wait for another process or thread is idle and counts in full: it needs a bound that only a hang meets.
"""

import asyncio
import selectors
import time

TURN = 0.0001
"""Seconds that one turn of the loop counts at most, so that a loop that always has something to do ends, too."""


class _Patient(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = self._returned = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        took = time.monotonic() - self._returned
        self._returned += took
        self.now += timeout if timeout and not ready else min(took, TURN)
        return ready


class IdleTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._patient = _Patient()
        super().__init__(self._patient)

    def time(self) -> float:
        return self._patient.now
