"""Mirror, against a server that breaks every promise of the watch protocol."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from deviceshare.domain.objects.nodes import Node
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import ApiMirror, MirrorPace, count_unreadable
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import Kind, ObjectChange
from tests.unit.kube.scripted import (
    Scripted,
    Step,
    after,
    event,
    hang,
    line,
    node,
    page,
    refuse,
    serving,
    status,
    stream,
    until,
)

HASTY = MirrorPace(first_pause=0.001, longest_pause=0.01)
IMPATIENT = MirrorPace(quiet=0.2, first_pause=0.001, longest_pause=0.01)
Start = Callable[..., AbstractAsyncContextManager[tuple[ApiMirror[Any], Scripted]]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a scripted server and a running Mirror of its nodes."""

    @asynccontextmanager
    async def go(
        *steps: Step, pace: MirrorPace = HASTY, timeout: float = 60.0, revision: int = 0, kind: Kind[Any] = NODES
    ) -> AsyncIterator[tuple[ApiMirror[Any], Scripted]]:
        server = Scripted(*steps)
        server.revision = revision or server.revision
        async with serving(server.handle, tmp_path) as connection:
            selector = "x=y" if kind is NODES else ""
            mirror = ApiMirror(Api(connection, timeout=timeout), kind, label_selector=selector, pace=pace)
            running = asyncio.create_task(mirror.run())
            try:
                yield mirror, server
            finally:
                assert not running.done(), running.exception()
                running.cancel()
                await asyncio.wait({running})

    return go


def holds(mirror: ApiMirror[Node], **versions: int) -> Callable[[], bool]:
    wanted = {name: str(version) for name, version in versions.items()}
    return lambda: {n.metadata.name: n.metadata.resource_version for n in mirror.values()} == wanted


async def test_list_then_events(start: Start) -> None:
    """The plain case: additions, changes and deletions follow the list, from its version on."""
    changes = (
        event("ADDED", node("b", 6)),
        event("MODIFIED", node("a", 7)),
        event("DELETED", node("b", 8)),
        event("ADDED", node("c", 9)),
    )
    async with start(page(5, node("a", 1)), stream(*changes)) as (mirror, server):
        synced = [mirror.synced]
        await until(holds(mirror, a=7, c=9))
        assert [*synced, mirror.synced] == [False, True]
        assert mirror.events == 4
    query = dict(server.seen[1].query)
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {"labelSelector": "x=y", "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "5"}


@pytest.mark.parametrize("then", ["end", "cut"])
async def test_a_watch_that_ends_is_opened_again_where_it_ended(start: Start, then: str) -> None:
    """The server ends each after minutes, a proxy cuts it: neither is a reason to list 10,000 pods."""
    steps = (
        page(5),
        stream(event("ADDED", node("a", 6)), event("BOOKMARK", node("", 9)), then=then),
        stream(event("ADDED", node("b", 10))),
    )
    async with start(*steps) as (mirror, server):
        await until(holds(mirror, a=6, b=10))
        assert server.seen[2].query["resourceVersion"] == "9"
        assert mirror.lists == 1


async def test_half_an_event_is_not_an_event(start: Start) -> None:
    """The connection broke within a line: the watch goes on from the last whole one."""
    cut = line(event("ADDED", node("b", 8)))[:30]
    steps = page(5), stream(event("ADDED", node("a", 6)), cut, then="end"), stream(event("ADDED", node("b", 8)))
    async with start(*steps) as (mirror, server):
        await until(holds(mirror, a=6, b=8))
        assert server.seen[2].query["resourceVersion"] == "6"


@pytest.mark.parametrize(
    "gone",
    [
        refuse(410, "Expired"),
        stream(event("ERROR", status(410, "Expired"))),
        stream(b"\x00 this is no event\n"),
        stream(event("ADDED", {"spec": {}})),
        stream(event("ERROR", "what?")),
    ],
)
async def test_a_lost_version_is_listed_anew(start: Start, gone: Step) -> None:
    """410 comes as a status and inside a 200; of a line that can't be read nobody knows what it said."""
    removed = []
    async with start(page(5, node("a", 1), node("b", 2)), gone, page(9, node("b", 2), node("c", 7))) as (mirror, _):
        mirror.subscribe(lambda change: removed.append(change.key) if change.new is None else None)
        await until(holds(mirror, b=2, c=7))
        assert removed == ["a"]
        assert mirror.lists == 2


def queries(server: Scripted) -> list[dict[str, str]]:
    """What was asked of lists."""
    return [each.query for each in server.seen if "watch" not in each.query]


async def test_custom_resources_are_listed_from_the_watch_cache_first(start: Start) -> None:
    """It spares a start the API server's decoding of each; what is listed later is a quorum read."""
    steps = page(5, node("a", 1)), refuse(410, "Expired"), page(9, node("b", 2))
    async with start(*steps, kind=NODE_DEVICES) as (mirror, server):
        await until(holds(mirror, b=2))
        assert queries(server) == [{"resourceVersion": "0"}, {"limit": "500"}]


async def test_a_cache_of_a_history_that_was_taken_back_is_not_believed(start: Start) -> None:
    """An API server that wasn't restarted when etcd was restored still has what came after the backup."""
    async with start(page(50, node("a", 45)), page(7, node("a", 1)), kind=NODE_DEVICES, revision=7) as (mirror, server):
        await until(holds(mirror, a=1))
        assert queries(server) == [{"resourceVersion": "0"}, {"limit": "500"}]


async def test_a_cache_that_has_too_much_for_one_answer_is_read_in_pages(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It isn't read in pages itself: older API servers ignore a limit there."""
    monkeypatch.setattr("deviceshare.kube.api.PAGE_BYTES", 1000)
    much = [node(f"n{number}", number) for number in range(100)]
    async with start(page(200, *much), page(200, node("a", 1)), kind=NODE_DEVICES) as (mirror, server):
        await until(holds(mirror, a=1))
        assert queries(server) == [{"resourceVersion": "0"}, {"limit": "500"}]


async def test_an_error_event_that_is_no_410_keeps_the_version(start: Start) -> None:
    """A server in trouble says 500 inside a 200; listing would only add to its trouble."""
    steps = page(5), stream(event("ERROR", status(500, "InternalError"))), stream(event("ADDED", node("a", 6)))
    async with start(*steps) as (mirror, _):
        await until(holds(mirror, a=6))
        assert mirror.lists == 1


async def test_a_hung_connection_is_noticed(start: Start) -> None:
    """A peer that vanished without a word sends neither events nor bookmarks."""
    steps = page(5), stream(then="hang"), hang(), stream(event("ADDED", node("a", 6)))
    async with start(*steps, pace=IMPATIENT, timeout=0.3) as (mirror, server):
        await until(holds(mirror, a=6))
        assert server.seen[3].query["resourceVersion"] == "5"


async def test_a_server_in_trouble_is_waited_for(start: Start) -> None:
    """Whatever it answers, list and watch go on when it is well again."""
    trouble = refuse(500), refuse(403, "Forbidden"), refuse(429, Retry_After="0")
    async with start(*trouble, page(5, node("a", 1)), *trouble, stream(event("ADDED", node("b", 6)))) as (mirror, _):
        await until(holds(mirror, a=1, b=6))
        assert mirror.lists == 1


async def test_a_refused_list_is_not_hammered(start: Start) -> None:
    """However long the mirror has lived, a server that refuses is given time."""
    pace = MirrorPace(steady=0.0, first_pause=60.0, longest_pause=60.0)
    async with start(refuse(403, "Forbidden"), page(5), pace=pace) as (_, server):
        await until(lambda: len(server.seen) == 1)
        await asyncio.sleep(0.05)
        assert len(server.seen) == 1


async def test_a_version_that_was_lost_in_an_outage_is_not_waited_for_twice(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pauses have grown while the server was away. When it says 410 it is back, and all wait for the list."""
    monkeypatch.setattr("deviceshare.kube.mirror.delays", lambda first, most: iter([first, 60.0]))
    async with start(page(5, node("a", 1)), refuse(503), refuse(410), page(9, node("b", 8)), hang) as (mirror, _):
        await until(holds(mirror, b=8))


async def test_a_mirror_whose_watch_is_lost_for_long_says_so(start: Start) -> None:
    """Readiness depends on it: decisions on old state would only be refused by the API server."""
    away, back = asyncio.Event(), asyncio.Event()
    pace = MirrorPace(lost=0.05, first_pause=0.001, longest_pause=0.01)
    first, again = stream(event("ADDED", node("a", 6)), then=away), after(back, stream())
    async with start(page(5), first, *[refuse(500)] * 3, again, pace=pace) as (mirror, _):
        await until(holds(mirror, a=6))
        assert mirror.synced
        away.set()
        await until(lambda: not mirror.synced)
        assert mirror.get("a") is not None
        back.set()
        await until(lambda: mirror.synced)


async def test_an_object_that_cannot_be_read_costs_only_itself(start: Start) -> None:
    """One odd object must not blind us for the rest, and neither stays as it was nor is missing: it is there."""
    odd, go = {**node("a", 6), "spec": 3}, asyncio.Event()
    steps = (
        page(5, {**node("o", 1), "spec": 3}, node("a", 2)),
        stream(event("MODIFIED", odd), event("ADDED", node("b", 7)), event("PATCHED?", node("c", 8)), then="end"),
        after(go, refuse(410)),
        page(9, odd, node("b", 7)),
        stream(event("DELETED", {**odd, **node("a", 10)})),
    )
    async with start(*steps) as (mirror, server):
        await until(holds(mirror, o=1, a=6, b=7))
        assert count_unreadable([mirror]) == {"Node": 2}
        seen = mirror.get("a")
        assert seen is not None
        assert seen.metadata.fault == "spec: Expected `object`, got `int`"
        go.set()
        await until(holds(mirror, b=7))
        assert count_unreadable([mirror]) == {"Node": 0}
        assert server.seen[2].query["resourceVersion"] == "8"
        assert mirror.lists == 2


async def test_an_object_that_cannot_be_read_is_logged_once_a_version(start: Start) -> None:
    """A list after each lost watch would else say it for ever."""
    odd, newer = ({**node("a", version), "spec": 3} for version in (6, 9))
    steps = page(6, odd), refuse(410), page(8, odd), refuse(410), page(9, newer), stream(event("ADDED", node("b", 10)))
    with structlog.testing.capture_logs() as logs:
        async with start(*steps) as (mirror, _):
            await until(holds(mirror, a=9, b=10))
    told = [log for log in logs if log["event"] == "Found an unreadable object"]
    assert [(log["object"], log["version"]) for log in told] == [("a", "6"), ("a", "9")]
    assert told[0]["fault"] == "spec: Expected `object`, got `int`"


async def test_a_line_of_megabytes_in_small_pieces_is_read(start: Start) -> None:
    """etcd takes objects of 1.5 MiB, more than aiohttp's readline does; two events may share a piece."""
    big = line(event("ADDED", node("a", 6, note="x" * 3 * 2**20)))
    pieces = [big[i : i + 2**16] for i in range(0, len(big), 2**16)]
    pieces[-1] += b"\n" + line(event("ADDED", node("b", 7)))
    async with start(page(5), stream(*pieces), pace=MirrorPace(quiet=10.0)) as (mirror, _):
        await until(holds(mirror, a=6, b=7))
        assert mirror.lists == 1


async def test_a_line_without_end_does_not_fill_memory(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past a bound it is no line, and everything is listed again."""
    monkeypatch.setattr("deviceshare.kube.api.LONGEST_LINE", 1000)
    async with start(page(5), stream(b"{" * 2000), page(9, node("a", 6))) as (mirror, _):
        await until(holds(mirror, a=6))


async def test_our_own_write_is_seen_before_the_watch_tells_it(start: Start) -> None:
    """And an event that was under way before it does not take it back."""
    steps = page(5, node("a", 1)), stream(event("MODIFIED", node("a", 7)), event("ADDED", node("b", 9)))
    async with start(*steps) as (mirror, server):
        await mirror.wait_listed()
        mirror.put(node_of(node("a", 8)))
        await until(holds(mirror, a=8, b=9))
        assert len(server.seen) == 2


async def test_a_history_that_went_back_is_listed_anew(start: Start) -> None:
    """etcd was restored from a backup: a watch from the version that was seen would be silent for hours.

    What the backup has at a version that was there before is another object, and our own writes are gone with the rest.
    """
    seen: list[ObjectChange[Node]] = []
    restored = asyncio.Event()
    before = stream(event("MODIFIED", node("a", 40)), event("ADDED", node("b", 50)), then=restored)
    steps = page(30, node("a", 1), node("c", 20)), before, page(20, node("a", 1), node("c", 20, back="yes")), stream()
    with structlog.testing.capture_logs() as logs:
        async with start(*steps) as (mirror, server):
            await until(holds(mirror, a=40, b=50, c=20))
            mirror.put(node_of(node("a", 60)))
            mirror.subscribe(seen.append)
            seen.clear()
            server.revision = 25
            restored.set()
            await until(holds(mirror, a=1, c=20))
            assert {change.key for change in seen} == {"a", "b", "c"}
            await until(lambda: len(server.seen) == 4)
            assert server.seen[3].query["resourceVersion"] == "20"
            assert mirror.synced
    assert [log["seen"] for log in logs if log["event"] == "API server's history went back"] == ["50"]


@pytest.mark.parametrize("type_", ["MODIFIED", "BOOKMARK"])
async def test_an_event_from_before_what_was_seen_is_of_a_restored_backup(start: Start, type_: str) -> None:
    """No API server sends one else."""
    steps = page(30, node("a", 1)), stream(event(type_, node("a", 9))), page(12, node("a", 9)), stream()
    async with start(*steps) as (mirror, server):
        await until(holds(mirror, a=9))
        await until(lambda: len(server.seen) == 4)
        assert server.seen[3].query["resourceVersion"] == "12"


async def test_who_is_told_to_start_over_ends_its_watch_and_lists(start: Start) -> None:
    """Another mirror has found that the history went back; this one's connection still stands."""
    asked, steps = [], (page(30, node("a", 1), node("b", 7)), stream(), page(12, node("a", 1)), stream())
    async with start(*steps) as (mirror, server):
        mirror.on_rewind = lambda: asked.append(mirror.version)
        await until(lambda: len(server.seen) == 2 and mirror.synced)
        mirror.start_over()
        await until(holds(mirror, a=1))
        assert asked == []


def node_of(raw: dict[str, Any]) -> Node:
    return msgspec.convert(raw, Node)
