"""What the page's picture and the metrics of a large cluster take, drawn in memory as `deviceshare run` draws them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from msgspec import Struct

from deviceshare import timestamps
from deviceshare.domain.answers.census import measure, of_groups
from deviceshare.domain.answers.picture import draw_in_steps
from deviceshare.loops.kinds import GROUPS, PODS
from deviceshare.metrics import Metrics
from deviceshare.web import ui
from deviceshare.web.probes import Scrapes
from deviceshare.web.ui import Snapshots
from tests.benchmarks.large_cluster import Size
from tests.benchmarks.leader_in_memory import HeldLeader, Holds

MOST_GROUPS = 100
"""As `--group-metrics` has it by default."""


class Moment(Struct):
    """What one answer took."""

    what: str
    cpu_ms: float
    longest_ms: float
    """That it had the event loop at a time."""


async def moments(size: Size) -> list[Moment]:
    """Of each answer, once what was imported and cached for the first is there."""
    leader = HeldLeader(size)
    mirrors, fleet = leader.cluster.mirrors, leader.fleet
    groups, pods, metrics = mirrors[GROUPS.plural], mirrors[PODS.plural], Metrics()
    metrics.watch(lambda: measure(fleet, groups.values(), pods.values(), [], leads=False, most_groups=0, now=""))

    def drawn() -> Generator[None, None, bytes]:
        picture = yield from draw_in_steps(fleet, groups.values(), pods.values())
        yield
        return ui.encode(ui.Replica("benchmark", "0", True, {}), picture)

    async def picture() -> None:
        snapshots = Snapshots(drawn)
        running = asyncio.create_task(snapshots.run())
        await snapshots.current()
        running.cancel()

    async def each_group() -> None:
        list(of_groups(fleet, groups.values(), pods.values(), MOST_GROUPS, timestamps.now()))

    async def scrape() -> None:
        await Scrapes(metrics).answer("")

    return [
        await _timed("the page's picture, drawn, encoded and packed", picture),
        await _timed("metrics of each group", each_group),
        await _timed("a scrape of the other metrics", scrape),
    ]


async def _timed(what: str, work: Callable[[], Awaitable[Any]]) -> Moment:
    await work()
    holds, cpu = Holds(), time.process_time()
    with holds.measured():
        await asyncio.create_task(work())  # type: ignore[arg-type]
    return Moment(what, (time.process_time() - cpu) * 1000, holds.longest * 1000)
