"""A daemon: connected to the API server, it runs until SIGTERM or SIGINT."""

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

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
