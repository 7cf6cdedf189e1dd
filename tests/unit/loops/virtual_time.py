"""An event loop whose clock jumps to the next timer as soon as nothing else is to do.

Seconds pass in microseconds, in the same order on every machine, and nothing in the code under test knows.

asyncio runs timers up to its clock's resolution early. Two tasks that wait for a moment a rounding error away would
wake each other at the moment before it for ever; so after many turns of the loop at one moment, each takes the least
time that there is.
"""

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MANY = 10_000
"""Turns of the loop at one moment; no test has as many to do at once."""


class _Jumping(selectors.SelectSelector):
    now = 0.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self.turns += 1
        if self.turns > MANY:
            self.now = math.nextafter(self.now, math.inf)
        if not ready:
            assert timeout is not None, "nothing will ever happen again"
            if timeout > 0:
                self.now += timeout
                self.turns = 0
        return ready


class VirtualTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine to its end, from second 0."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(coroutine)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes a coroutine a test that begins at second 0 of a loop of its own."""

    @wraps(test)
    def started(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return started


def now() -> float:
    return asyncio.get_running_loop().time()
