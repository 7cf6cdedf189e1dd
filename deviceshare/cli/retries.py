"""Retries on conflict, and polls with a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from deviceshare.cli.output import waiting
from deviceshare.loops.ports import Conflict

T = TypeVar("T")

TRIES = 8
LOOK_SECONDS = 0.3
"""Between two attempts, and between two polls."""


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` returns, which reads an object and writes it with the resourceVersion that it read.

    Raises:
        ClickException: every attempt met a conflict.
    """
    for _ in range(TRIES):
        try:
            return await attempt()
        except Conflict:
            await asyncio.sleep(LOOK_SECONDS)
    raise click.ClickException("The object was changed by others at each attempt; run the command again")


async def poll(look: Callable[[], Awaitable[T | None]], *, doing: str, seconds: float) -> T | None:
    """What `look` returns as soon as it isn't None; None when `seconds` have passed. A terminal shows `doing`."""
    with waiting(doing):
        try:
            async with asyncio.timeout(seconds):
                while True:
                    if (seen := await look()) is not None:
                        return seen
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return None
