"""Whether the API server answers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import pytest

from deviceshare.kube.api import Api
from deviceshare.kube.pulse import LOST_SECONDS, PERIOD_SECONDS, Pulse
from deviceshare.loops.ports import Forbidden, Unavailable
from tests.unit.loops.virtual_time import run

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


def story(tell: Callable[[Asked, Pulse], Awaitable[None]]) -> None:
    """Runs a pulse in virtual time for as long as it is told."""

    async def told() -> None:
        api = Asked()
        pulse = Pulse(cast("Api", api), clock=asyncio.get_running_loop().time)
        task = asyncio.create_task(pulse.run())
        try:
            await tell(api, pulse)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    run(told())


@pytest.mark.parametrize("silence", [hang, away])
def test_a_server_that_is_away_or_hangs_is_noticed_and_so_is_its_return(silence: Version) -> None:
    """A watch would be silent for another minute."""

    async def tell(api: Asked, pulse: Pulse) -> None:
        await asyncio.sleep(100)
        assert pulse.fault() == ""
        api.server_version = silence
        await asyncio.sleep(LOST_SECONDS + PERIOD_SECONDS + 1)
        assert "has not answered" in pulse.fault()
        api.server_version = fine
        await asyncio.sleep(2 * PERIOD_SECONDS)
        assert pulse.fault() == ""

    story(tell)


def test_a_hiccup_is_no_fault() -> None:
    """An API server that is restarted is back within seconds."""

    async def tell(api: Asked, pulse: Pulse) -> None:
        await asyncio.sleep(100)
        api.server_version = away
        for _ in range(int(LOST_SECONDS - PERIOD_SECONDS)):
            await asyncio.sleep(1)
            assert pulse.fault() == ""

    story(tell)


def test_a_refusal_is_an_answer() -> None:
    """Whether we may know the version is the cluster's business."""

    async def tell(api: Asked, pulse: Pulse) -> None:
        api.server_version = forbidden
        await asyncio.sleep(100)
        assert pulse.fault() == ""

    story(tell)
