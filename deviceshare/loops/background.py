"""The tasks of a process that are never meant to end: when one does, the process does.

Its successor starts from the API server's state, which is always safe; going on without a part never is.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)


class Background:
    """Owns the tasks: the first that ends by itself sets `stopping` and decides the exit code."""

    def __init__(self, stopping: asyncio.Event) -> None:
        self.first: BaseException | None = None
        self._stopping = stopping

    def watch(self, name: str, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Starts a task; what is returned cancels it and waits until it has ended."""
        task = asyncio.create_task(self._guard(name, work), name=name)

        async def stop() -> None:
            task.cancel()
            await asyncio.wait({task})

        return stop

    async def _guard(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            raise RuntimeError(f"{name} ended by itself")
        except Exception as error:
            log.exception("Failed in the background", task=name)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.first = self.first or error
        self._stopping.set()
