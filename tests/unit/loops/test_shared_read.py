"""Reads that several callers share, none of which began before any of them asked."""

import asyncio
import gc
from typing import Any

import pytest

from deviceshare.loops.shared_read import SharedRead
from tests.unit.loops.virtual_time import in_virtual_time


class Source:
    """Counts reads; each takes a second and tells which it was."""

    def __init__(self) -> None:
        self.begun = 0

    async def read(self, key: str) -> int:
        self.begun += 1
        number = self.begun
        await asyncio.sleep(1)
        if key == "broken":
            raise ValueError(key)
        return number


@in_virtual_time
async def test_a_caller_never_joins_a_read_that_is_under_way() -> None:
    """Those who come during the first read share the second."""
    source = Source()
    shared = SharedRead(source.read)
    first = asyncio.create_task(shared("n1"))
    await asyncio.sleep(0.5)
    later = [asyncio.create_task(shared("n1")) for _ in range(3)]
    assert await first == 1
    assert await asyncio.gather(*later) == [2, 2, 2]
    assert await shared("n1") == 3


@in_virtual_time
async def test_reads_of_different_keys_do_not_wait_for_each_other() -> None:
    """Two nodes are read at the same time."""
    source = Source()
    shared = SharedRead(source.read)
    await asyncio.gather(shared("n1"), shared("n2"))
    assert asyncio.get_running_loop().time() == 1


@in_virtual_time
async def test_a_failed_read_fails_its_callers_and_nobody_after_them() -> None:
    """Whoever shares the read gets its exception; the key is free again."""
    shared = SharedRead(Source().read)
    first = asyncio.create_task(shared("broken"))
    await asyncio.sleep(0)
    outcomes = await asyncio.gather(first, shared("broken"), shared("broken"), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["broken"] * 3
    with pytest.raises(ValueError, match="broken"):
        await shared("broken")


@in_virtual_time
async def test_a_caller_that_gives_up_does_not_take_the_read_from_others() -> None:
    """A cancelled bind leaves the shared read to the rest."""
    shared = SharedRead(Source().read)
    impatient, patient = asyncio.create_task(shared("n1")), None
    await asyncio.sleep(0.1)
    impatient.cancel()
    patient = asyncio.create_task(shared("n1"))
    assert await patient == 2


@in_virtual_time
async def test_closing_ends_what_is_being_read() -> None:
    """Running and queued reads are cancelled, and close waits for that."""
    shared = SharedRead(Source().read)
    tasks = [asyncio.create_task(shared("n1")) for _ in range(2)]
    await asyncio.sleep(0.1)
    await shared.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert asyncio.get_running_loop().time() < 1


@in_virtual_time
async def test_an_exception_that_nobody_waits_for_any_more_is_not_reported_as_lost() -> None:
    """Every caller gave up before the read failed: asyncio would print a traceback to the log."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    shared = SharedRead(Source().read)
    callers = [asyncio.create_task(shared("broken")) for _ in range(2)]
    await asyncio.sleep(0.1)
    for caller in callers:
        caller.cancel()
    await asyncio.sleep(5)
    gc.collect()
    assert complaints == []
