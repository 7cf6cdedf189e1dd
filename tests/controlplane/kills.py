"""Kills of deviceshare, also while pods come and go, creations that outlast them, and the next leader."""

import asyncio
import os
import signal
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from deviceshare.kube.api import Api
from deviceshare.loops.ports import AlreadyExists, ApiError
from deviceshare_sandbox import Sandbox
from tests.controlplane.pool import Pool

LEASE_SECONDS = 60.0
"""A killed leader's lease runs out after 15 s; a generous bound on a busy machine."""


async def create_anyway(api: Api, kind: Any, body: dict[str, Any], namespace: str = "", seconds: float = 120) -> None:
    """Until it exists: while deviceshare is away its validating webhooks refuse what is deviceshare's."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                await api.create(kind, body, namespace)
                return
            except AlreadyExists:
                return
            except ApiError:
                await asyncio.sleep(0.3)


async def kill_meanwhile(sandbox: Sandbox, bound: Callable[[], Awaitable[int]], *, kills: int, every: int) -> None:
    """Kills deviceshare so many times, each time when `every` more pods are bound, or after a while.

    `bound` counts them; it is called all the while, and fails the test by what it finds.
    """
    for number in range(kills):
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            if await bound() >= number * every:  # The first while pods are being created.
                break
            await asyncio.sleep(0.1)
        pid = sandbox.pid("deviceshare")
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(120):
            while sandbox.pid("deviceshare") == pid or not (await asyncio.to_thread(sandbox.status)).ready:
                await bound()
                await asyncio.sleep(0.3)


def kill(sandbox: Sandbox) -> None:
    """kill -9, as the kernel does it."""
    os.kill(sandbox.pid("deviceshare"), signal.SIGKILL)


def leads(sandbox: Sandbox) -> bool:
    """Whether deviceshare runs and has the lease."""
    try:
        with urllib.request.urlopen(f"{sandbox.probe_url}/metrics", timeout=2) as answer:
            return "\ndeviceshare_leader 1.0" in answer.read().decode()
    except OSError:
        return False


def await_leader(pool: Pool) -> None:
    pool.eventually(lambda: leads(pool.sandbox), bool, LEASE_SECONDS)
