"""Tasks that are never meant to end."""

import asyncio

from deviceshare.loops.background import Background


async def forever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise ValueError("broken")


async def ends() -> None:
    return


async def test_what_is_stopped_as_meant_is_no_failure() -> None:
    """And has ended when stopping returns."""
    stopping = asyncio.Event()
    background = Background(stopping)
    stop = background.watch("forever", forever)
    await asyncio.sleep(0)
    await stop()

    assert not stopping.is_set()
    assert background.first is None


async def test_the_first_that_fails_stops_all_and_is_remembered() -> None:
    """An end by itself is a failure, too."""
    stopping = asyncio.Event()
    background = Background(stopping)
    stops = [background.watch("fails", fails), background.watch("ends", ends)]
    await asyncio.wait_for(stopping.wait(), 5)
    for stop in stops:
        await stop()

    assert isinstance(background.first, ValueError)
