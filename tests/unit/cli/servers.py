"""An API server in a thread: a command has an event loop of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from tests.unit.kube.scripted import accepted, kubeconfig


@contextmanager
def served(handle: Callable[[web.Request], Awaitable[web.StreamResponse]], directory: Path) -> Iterator[str]:
    """Answers every request by `handle`; yields the kubeconfig that leads there."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(application, shutdown_timeout=0.01)

    async def begin() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ready.set()

    async def end() -> None:
        await accepted()
        server = runner.server
        transports = [each.transport for each in server.connections] if server else []
        await runner.cleanup()
        for transport in filter(None, transports):
            transport.abort()  # With an answer that nobody reads it would stay open, and be found as garbage later.
        await asyncio.sleep(0)

    beginning = loop.create_task(begin())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert ready.wait(60), beginning
        yield kubeconfig(directory, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
