"""The parts of a process: started in order, stopped in reverse; when one ends unasked, the process ends.

Its successor starts from the API server's state, which is always safe; going on without a part never is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)


class Startable(Protocol):
    """A part that is started and stopped, such as a server."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Background(AsyncExitStack):
    """Owns the parts inside its `async with` block, and stops them at its end, the last started first."""

    on_stop = AsyncExitStack.push_async_callback

    def __init__(self, stopping: asyncio.Event) -> None:
        """`stopping` is set when a part ends unasked."""
        super().__init__()
        self.failure: BaseException | None = None
        """Why the first part ended that ended unasked; None while all run."""
        self._stopping = stopping

    async def start(self, part: Startable) -> None:
        await part.start()
        self.on_stop(part.stop)

    def run(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Starts a task that is never meant to end; to stop it is to cancel it and to wait until it has ended."""
        task = asyncio.create_task(self._guard(name, work), name=name)

        async def stop() -> None:
            task.cancel()
            await asyncio.wait({task})

        self.on_stop(stop)

    async def _guard(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
            raise RuntimeError(f"{name} ended unasked")
        except Exception as error:
            log.exception("Background task failed", task=name)
            self.failure = self.failure or error
            self._stopping.set()
