"""What a command does about others: it begins again when they wrote first, and waits for them to do their part."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from deviceshare.cli.output import waiting
from deviceshare.loops.ports import Conflict

T = TypeVar("T")

TRIES = 8
LOOK_SECONDS = 0.3
"""Between two looks."""


async def insist(attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` returns, which reads and then writes on condition that nobody else wrote.

    Raises:
        ClickException: others were faster each time.
    """
    for _ in range(TRIES):
        try:
            return await attempt()
        except Conflict:
            await asyncio.sleep(LOOK_SECONDS)
    raise click.ClickException("Others changed the same object each time; try again")


async def wait_for(look: Callable[[], Awaitable[T | None]], *, doing: str, seconds: float) -> T | None:
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
