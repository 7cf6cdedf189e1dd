"""Fresh reads, shared by callers that arrive before one begins.

claims.md lets several binds share one GET, as long as it began after each of them arrived. So a caller never joins a
read that is under way; those who arrive meanwhile share the next one, which begins when that one has ended.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRead(Generic[T]):
    """Reads by key. Its tasks are its own: `close` ends them."""

    def __init__(self, read: Callable[[str], Awaitable[T]]) -> None:
        self._read = read
        self._running: dict[str, asyncio.Task[T]] = {}
        self._next: dict[str, asyncio.Task[T]] = {}

    async def __call__(self, key: str) -> T:
        """The result of a read of `key` that begins after this call, or what it raises."""
        task = self._next.get(key)
        if task is None:
            task = asyncio.create_task(self._run(key, self._running.get(key)), name=f"read {key}")
            # Callers see the exception; when all of them have given up, asyncio must not call it never retrieved.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._next[key] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancels what is still being read."""
        tasks = [*self._running.values(), *self._next.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: str, running: asyncio.Task[T] | None) -> T:
        try:
            if running is not None:
                await asyncio.wait({running})
        finally:
            mine = self._running[key] = self._next.pop(key)
        try:
            return await self._read(key)
        finally:
            if self._running.get(key) is mine:
                del self._running[key]
