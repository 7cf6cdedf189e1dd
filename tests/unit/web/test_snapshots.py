"""When a snapshot is made: for whom, how often, and what happens when it can't be."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deviceshare.web import ui as snapshots_module
from deviceshare.web.ui import Snapshots, Steps


class Counter:
    """Makes a snapshot of `state`, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.state = "first"
        self.made = 0
        self.broken = False

    def __call__(self) -> Steps:
        yield
        self.made += 1
        if self.broken:
            raise RuntimeError("no picture today")
        return self.state.encode()


@pytest.fixture
def counter() -> Counter:
    return Counter()


@asynccontextmanager
async def running(make: Callable[[], Steps], **times: Any) -> AsyncIterator[Snapshots]:
    """`pause` and `tick` are next to nothing and for ever, unless told otherwise."""
    snapshots = Snapshots(make, **{"pause": 0.0, "tick": 3600.0} | times)
    task = asyncio.create_task(snapshots.run())
    try:
        async with asyncio.timeout(10):
            yield snapshots
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_current_snapshot_shows_every_change_before_it_was_asked_for(counter: Counter) -> None:
    """Plain and packed alike."""
    async with running(counter) as snapshots:
        first = await snapshots.current()
        counter.state = "second"
        snapshots.touch()
        second = await snapshots.current()

    assert (first.number, first.body, gzip.decompress(first.packed)) == (1, b"first", b"first")
    assert (second.number, second.body, gzip.decompress(second.packed)) == (2, b"second", b"second")


async def test_others_have_the_event_loop_between_the_steps_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture of thousands of nodes takes a while, and webhooks are answered on the same loop."""
    monkeypatch.setattr(snapshots_module, "TURN", 0.0)
    turns = 0

    def steps() -> Generator[None, None, bytes]:
        begun = turns
        for _ in range(50):
            yield
        return b"%d" % (turns - begun)

    async with running(steps) as snapshots:
        looking = asyncio.create_task(snapshots.current())
        while not looking.done():
            turns += 1
            await asyncio.sleep(0)
        assert int(looking.result().body) >= 49


async def test_nothing_is_made_while_nobody_looks(counter: Counter) -> None:
    """A page that is closed costs nothing, whatever happens in the cluster."""
    async with running(counter, tick=0.0) as snapshots:
        for _ in range(20):
            snapshots.touch()
            await asyncio.sleep(0.001)

    assert counter.made == 0


async def test_many_lookers_share_one_snapshot(counter: Counter) -> None:
    """Their number must not matter to the event loop."""
    async with running(counter) as snapshots:
        with snapshots.looking():
            seen = await asyncio.gather(*(snapshots.current() for _ in range(50)))

    assert counter.made == 1
    assert len({each.number for each in seen}) == 1


async def test_a_burst_of_changes_is_one_snapshot(counter: Counter) -> None:
    """A Deployment of a hundred pods is told in one picture, not in a hundred."""
    async with running(counter, pause=0.2) as snapshots:
        with snapshots.looking():
            await snapshots.current()
            for number in range(100):
                counter.state = f"change {number}"
                snapshots.touch()
                await asyncio.sleep(0)
            assert counter.made == 1
            assert (await snapshots.current()).body == b"change 99"

    assert counter.made == 2


async def test_an_equal_state_is_no_news(counter: Counter) -> None:
    """A node's heartbeat changes nothing that is shown."""
    async with running(counter) as snapshots:
        with snapshots.looking():
            assert await snapshots.after(0, 5) == 1
            snapshots.touch()
            assert (await snapshots.current()).number == 1
            assert await snapshots.after(1, 0.05) == 1

    assert counter.made == 2


async def test_who_looks_is_told_of_the_next_change(counter: Counter) -> None:
    """At once, not at the next look of the clock."""
    async with running(counter) as snapshots:
        with snapshots.looking():
            number = await snapshots.after(0, 5)
            waiting = asyncio.create_task(snapshots.after(number, 3600))
            await asyncio.sleep(0)
            counter.state = "second"
            snapshots.touch()
            assert await waiting == 2


async def test_a_change_that_nobody_told_is_found_within_a_tick(counter: Counter) -> None:
    """A watch that is lost says nothing."""
    async with running(counter, tick=0.01) as snapshots:
        with snapshots.looking():
            number = await snapshots.after(0, 5)
            counter.state = "second"
            assert await snapshots.after(number, 5) == 2


async def test_a_failure_leaves_the_last_snapshot_and_is_tried_again(counter: Counter) -> None:
    """What draws must never stop what binds."""
    async with running(counter, pause=0.001) as snapshots:
        with snapshots.looking():
            number = await snapshots.after(0, 5)
            counter.broken, counter.state = True, "second"
            snapshots.touch()
            assert await snapshots.after(number, 0.05) == 1
            counter.broken = False
            assert (await snapshots.current()).body == b"second"


async def test_closing_ends_every_wait(counter: Counter) -> None:
    """A process that stops waits for no browser."""
    async with running(counter) as snapshots:
        with snapshots.looking():
            number = await snapshots.after(0, 5)
            waiting = asyncio.create_task(snapshots.after(number, 3600))
            await asyncio.sleep(0)
            snapshots.close()
            assert await waiting == 1
            assert await snapshots.after(number, 3600) == 1

    stopped = Snapshots(counter)
    stopped.close()
    assert (await stopped.current()).number == 0
