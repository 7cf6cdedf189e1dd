"""Whether the API server answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest

from deviceshare.kube.api import LOST_SECONDS, PERIOD_SECONDS, Api, Pulse
from deviceshare.loops.ports import Forbidden, Unavailable
from tests.unit.loops.virtual_time import in_virtual_time, now

Version = Callable[[], Awaitable[tuple[int, int]]]


class Asked:
    """The one question of the Api that a pulse asks."""

    def __init__(self) -> None:
        self.server_version: Version = fine


async def fine() -> tuple[int, int]:
    return 1, 20


async def hang() -> tuple[int, int]:
    await asyncio.Event().wait()
    raise AssertionError


async def away() -> tuple[int, int]:
    raise Unavailable("connection refused")


async def forbidden() -> tuple[int, int]:
    raise Forbidden("not yours to know")


@asynccontextmanager
async def pulsing() -> AsyncIterator[tuple[Asked, Pulse]]:
    """A pulse, and the API server that it asks."""
    api = Asked()
    pulse = Pulse(cast("Api", api), clock=now)
    task = asyncio.create_task(pulse.run())
    try:
        yield api, pulse
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("silence", [hang, away])
@in_virtual_time
async def test_a_server_that_is_away_or_hangs_is_noticed_and_so_is_its_return(silence: Version) -> None:
    """A watch would be silent for another minute."""
    async with pulsing() as (api, pulse):
        await asyncio.sleep(100)
        assert pulse.fault() == "" and pulse.version == await fine()
        api.server_version = silence
        await asyncio.sleep(LOST_SECONDS + PERIOD_SECONDS + 1)
        assert "has not answered" in pulse.fault()
        api.server_version = fine
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert pulse.fault() == ""


@in_virtual_time
async def test_a_hiccup_is_no_fault() -> None:
    """An API server that is restarted is back within seconds."""
    async with pulsing() as (api, pulse):
        await asyncio.sleep(100)
        api.server_version = away
        for _ in range(int(LOST_SECONDS - PERIOD_SECONDS)):
            await asyncio.sleep(1)
            assert pulse.fault() == ""


@in_virtual_time
async def test_a_refusal_is_an_answer() -> None:
    """Whether we may know the version is the cluster's business."""
    async with pulsing() as (api, pulse):
        api.server_version = forbidden
        await asyncio.sleep(100)
        assert pulse.fault() == ""
