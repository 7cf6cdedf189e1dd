"""A daemon: it runs until SIGTERM or SIGINT, or until one of its parts ends; and how its memory is kept small."""

import asyncio
import ctypes
import gc
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Protocol

import structlog
import uvloop

from deviceshare.certificates.serving import UnusableCertificate
from deviceshare.kube.api import Api
from deviceshare.kube.connection import NotConfigured, connect
from deviceshare.web.server import CannotListen

log = structlog.get_logger(__name__)

Run = Callable[[Api, asyncio.Event], Awaitable[int]]
"""Runs until the event is set, which it may do itself; returns the exit code."""


def main(kubeconfig: Path | None, run: Run) -> int:
    """Runs until a signal comes; returns the exit code."""
    gc.freeze()  # What is imported stays.
    try:
        return uvloop.run(_until_signal(kubeconfig, run))
    except (NotConfigured, CannotListen, UnusableCertificate) as error:
        log.error("Failed to start", error=str(error))
        return 1


async def _until_signal(kubeconfig: Path | None, run: Run) -> int:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with connect(str(kubeconfig) if kubeconfig else None) as connection:
        return await run(Api(connection), stopping)


# The parts of a process: started in order, stopped in reverse; when one ends unasked, the process ends.
# Its successor starts from the API server's state, which is always safe; going on without a part never is.


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


# How often garbage is looked for, and when free pages go back to the system.

GARBAGE_THRESHOLD: Final = 20_000
"""Objects made and not freed, between two collections of the youngest."""
TRIM_SECONDS: Final = 60.0


def collect_less_often() -> None:
    """The mirrors' objects form no cycles: looking through them as often as Python does cost 4 to 10% of a request."""
    gc.set_threshold(GARBAGE_THRESHOLD)


async def keep_small(listed: Callable[[], Awaitable[None]]) -> None:
    """Spares the garbage collector what was listed: it would stop the loop for as long as it looks through that.

    And has the C library return its heap's free pages, first those of the lists, then each minute; only glibc keeps
    them, and has the call for it. Each TLS connection has buffers of 256 KiB. In the holes that they leave lie a few
    small blocks, and around those an hour of churn left 20 MiB (docs/reliability.md, Soak).
    https://man7.org/linux/man-pages/man3/malloc_trim.3.html
    """
    await listed()
    gc.freeze()
    while malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        malloc_trim(0)
        await asyncio.sleep(TRIM_SECONDS)
    await asyncio.Event().wait()
