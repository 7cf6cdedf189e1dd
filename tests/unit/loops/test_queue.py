"""The work queue, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

from structlog.testing import capture_logs

from deviceshare.loops.ports import ApiError, Conflict, NotFound, Unavailable
from deviceshare.loops.queue import FIRST_CONFLICT, FIRST_RETRY, LAST_RETRY, PERSISTENT, Later, Queue
from tests.unit.loops.virtual_time import in_virtual_time, now


class Work:
    """A reconciler that remembers when it was called and does as it is told."""

    def __init__(self, does: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.calls: list[tuple[str, float]] = []
        self.now_at: list[str] = []
        self.most = 0
        self._does = does

    async def __call__(self, key: str) -> None:
        assert key not in self.now_at, "a key is worked on twice at once"
        self.calls.append((key, now()))
        self.now_at.append(key)
        self.most = max(self.most, len(self.now_at))
        try:
            if self._does:
                await self._does(key)
        finally:
            self.now_at.remove(key)

    def times(self, key: str) -> list[float]:
        return [time for called, time in self.calls if called == key]


@asynccontextmanager
async def working(
    work: Work, workers: int = 4, lane: Callable[[str], str] = lambda key: key
) -> AsyncIterator[Queue[str]]:
    queue = Queue("test", work, workers=workers, lane=lane, clock=now)
    task = asyncio.create_task(queue.run())
    yield queue
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


def failing(*errors: Exception | None) -> Callable[[str], Awaitable[None]]:
    """Fails so, call by call; succeeds at last."""
    left = list(errors)

    async def work(key: str) -> None:
        error = left.pop(0) if left else None
        if error:
            raise error

    return work


@in_virtual_time
async def test_a_key_added_often_is_looked_at_once() -> None:
    """It says what to look at, not what happened."""
    work = Work()
    async with working(work) as queue:
        for _ in range(100):
            queue.add("a")
        queue.add("b")
        await asyncio.sleep(1)
    assert [key for key, _ in work.calls] == ["a", "b"]


@in_virtual_time
async def test_a_key_that_changes_while_it_is_looked_at_is_looked_at_again() -> None:
    """Afterwards, never by two workers at once."""
    work = Work(lambda key: asyncio.sleep(3))
    async with working(work) as queue:
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("a")
        queue.add("a", after=1.5)
        await asyncio.sleep(10)
    assert work.times("a") == [0, 3]


@in_virtual_time
async def test_no_more_keys_are_worked_on_than_there_are_workers() -> None:
    """The API server is spared."""
    work = Work(lambda key: asyncio.sleep(1))
    async with working(work, workers=3) as queue:
        for number in range(9):
            queue.add(str(number))
        await asyncio.sleep(3.5)
    assert (work.most, len(work.calls)) == (3, 9)


@in_virtual_time
async def test_a_slow_key_does_not_hold_up_another() -> None:
    """As long as a worker is free."""
    work = Work(lambda key: asyncio.sleep(100 if key == "slow" else 0))
    async with working(work) as queue:
        queue.add("slow")
        await asyncio.sleep(1)
        queue.add("quick")
        await asyncio.sleep(1)
    assert work.times("quick") == [1]


@in_virtual_time
async def test_keys_of_one_lane_follow_one_another() -> None:
    """Beside those of others; what was added meanwhile, and what failed, has its turn, too."""
    failed: list[str] = []

    async def slow(key: str) -> None:
        await asyncio.sleep(1)
        if key == "a/1" and not failed:
            failed.append(key)
            raise Conflict("lost")

    work = Work(slow)
    async with working(work, lane=lambda key: key[0]) as queue:
        for key in ("a/1", "a/2", "a/3", "b/1"):
            queue.add(key)
        await asyncio.sleep(0.5)
        assert work.now_at == ["a/1", "b/1"]
        queue.add("a/1")
        queue.add("a/2")
        await asyncio.sleep(20)
    assert [key for key, _ in work.calls] == ["a/1", "b/1", "a/2", "a/3", "a/1"]
    assert [round(time) for _, time in work.calls] == [0, 0, 1, 2, 3]


@in_virtual_time
async def test_a_key_that_waits_for_its_retry_does_not_hold_up_its_lane() -> None:
    """Also one that changed while it was looked at, before the others came."""

    async def slow(key: str) -> None:
        await asyncio.sleep(1)
        if key == "a/1" and now() < 2:
            raise Unavailable("busy", retry_after=60)

    work = Work(slow)
    async with working(work, lane=lambda key: key[0]) as queue:
        queue.add("a/1")
        await asyncio.sleep(0.5)
        for key in ("a/1", "a/2", "a/3"):
            queue.add(key)
        await asyncio.sleep(90)
    assert [key for key, _ in work.calls] == ["a/1", "a/2", "a/3", "a/1"]
    assert [round(time) for _, time in work.calls] == [0, 1, 2, 61]


@in_virtual_time
async def test_of_two_times_the_earlier_counts() -> None:
    """Whichever was asked for first; and only that one."""
    work = Work()
    async with working(work) as queue:
        queue.add("a", after=5)
        queue.add("a", after=2)
        queue.add("b", after=2)
        queue.add("b", after=5)
        await asyncio.sleep(10)
    assert work.calls == [("a", 2), ("b", 2)]


@in_virtual_time
async def test_a_failing_key_comes_back_later_and_later() -> None:
    """Its backoff doubles, with jitter, up to a bound; news don't shorten it."""
    work = Work(failing(*[Unavailable("away")] * 12))
    async with working(work) as queue:
        queue.add("a")
        for _ in range(200):
            await asyncio.sleep(0.5)
            if len(work.calls) < 13:
                queue.add("a")
    times = work.times("a")
    assert len(times) == 13
    for number, (before, after) in enumerate(pairwise(times)):
        longest = min(FIRST_RETRY * 2**number, LAST_RETRY)
        assert longest / 2 <= after - before <= longest + 0.001


@in_virtual_time
async def test_success_ends_the_backoff() -> None:
    """The next failure is a first one."""
    error = Unavailable("away")
    work = Work(failing(error, error, error, None, error))
    async with working(work) as queue:
        queue.add("a")
        await asyncio.sleep(10)
        queue.add("a")
        await asyncio.sleep(10)
    times = work.times("a")
    assert len(times) == 6
    assert times[5] - times[4] <= FIRST_RETRY


@in_virtual_time
async def test_a_conflict_is_retried_soon() -> None:
    """Somebody else wrote; there is nothing to wait for."""
    work = Work(failing(Conflict("moved on")))
    async with working(work) as queue:
        queue.add("a")
        await asyncio.sleep(1)
    first, second = work.times("a")
    assert second - first <= FIRST_CONFLICT


@in_virtual_time
async def test_the_server_says_how_long_to_wait() -> None:
    """429 with Retry-After."""
    work = Work(failing(Unavailable("busy", retry_after=7)))
    async with working(work) as queue:
        queue.add("a")
        await asyncio.sleep(20)
    assert work.times("a") == [0, 7]


@in_virtual_time
async def test_later_is_no_failure() -> None:
    """The key comes back exactly then, or at its next change."""
    work = Work(failing(Later(5), Later(5)))
    with capture_logs() as logs:
        async with working(work) as queue:
            queue.add("a")
            await asyncio.sleep(2)
            queue.add("a")
            await asyncio.sleep(10)
    assert work.times("a") == [0, 2, 7]
    assert logs == []


@in_virtual_time
async def test_a_mistake_about_one_key_does_not_stop_the_others() -> None:
    """It is logged with its traceback and tried again."""
    work = Work(failing(KeyError("a bug")))
    with capture_logs() as logs:
        async with working(work) as queue:
            queue.add("a")
            queue.add("b")
            await asyncio.sleep(1)
    assert [key for key, _ in work.calls] == ["a", "b", "a"]
    assert (logs[0]["event"], logs[0]["log_level"]) == ("Reconciler raised an exception", "error")


@in_virtual_time
async def test_what_keeps_failing_is_logged_once_for_each_level() -> None:
    """A line for the first failure, one when it persists, one when it is over."""
    errors: list[ApiError] = [Unavailable("away")] * (PERSISTENT + 3)
    with capture_logs() as logs:
        async with working(Work(failing(*errors))) as queue:
            queue.add("a")
            await asyncio.sleep(200)
    assert [each["log_level"] for each in logs] == ["warning", "error", "info"]
    assert {each["key"] for each in logs} == {"a"}


@in_virtual_time
async def test_what_others_wrote_or_deleted_first_is_no_news() -> None:
    """An object may go while it is reconciled, in any cluster."""
    with capture_logs() as logs:
        async with working(Work(failing(Conflict("lost"), NotFound("gone")))) as queue:
            queue.add("a")
            await asyncio.sleep(20)
    assert logs == []


@in_virtual_time
async def test_cancelling_ends_what_is_being_worked_on() -> None:
    """Nothing stays behind."""
    work = Work(lambda key: asyncio.sleep(1000))
    async with working(work) as queue:
        queue.add("a")
        queue.add("b", after=500)
        await asyncio.sleep(1)
    assert work.now_at == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_an_idle_queue_ticks() -> None:
    """So that a stuck one can be told from an idle one."""
    async with working(Work()) as queue:
        for _ in range(5):
            await asyncio.sleep(10)
            assert now() - queue.ticked <= 1
