"""Random stories under random faults, and a kill at every boundary of every write; see docs/reliability.md."""

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from deviceshare_sandbox import Options, Sandbox
from tests.controlplane.bare_cluster import bare_cluster
from tests.faults.conftest import SHORT_SECONDS, is_long
from tests.faults.faults import FAULTS, Fault, killed_at, stopped_at
from tests.faults.repertoire import SLOW, STORIES
from tests.faults.rounds import AGREED_SECONDS, FaultyRun, play_round
from tests.faults.stage import Stage, staged
from tests.faults.write_points import BOUNDARIES, POINTS

STORIES_EACH = 6
"""In one round, on nodes of their own."""

TRIES = 3
"""How often a story is played again for a boundary of a write that it didn't come to."""

KILL = "kill -9 "
"""How the names of faults begin that kill at a boundary of a write."""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    options = Options(nodes=1, devices=4)
    with bare_cluster(tmp_path_factory.mktemp("faults"), options) as started:
        yield started


class Session:
    """Rounds one after the other, and what came of them."""

    def __init__(self, stage: Stage, seed: int, stories: list[str], faults: list[Fault]) -> None:
        self._stage, self._chance = stage, random.Random(seed)
        self._stories, self._faults = stories, faults
        self.runs: list[FaultyRun] = []

    async def points(self) -> None:
        """A kill at each boundary of each write that a story is known to reach; some depend on timing."""
        for point, stories in POINTS.items():
            mine = [each for each in stories if each in self._stories]
            for boundary in BOUNDARIES if mine else ():
                for _ in range(TRIES):
                    if await self._play(killed_at(point, boundary), self._chance.choice(mine)):
                        break

    async def each_fault(self) -> None:
        """Each of the others once, whatever is drawn later."""
        for fault in self._faults:
            await self._play(fault, self._chance.choice(self._stories))

    async def random_round(self) -> None:
        """Any fault, a third of them at a boundary of a write."""
        first = self._chance.choice(self._stories)
        mine = [point for point, stories in POINTS.items() if first in stories]
        if mine and self._chance.random() < 1 / 3:
            make = self._chance.choice((killed_at, killed_at, stopped_at))
            await self._play(make(self._chance.choice(mine), self._chance.choice(BOUNDARIES)), first)
        else:
            await self._play(self._chance.choices(self._faults, [each.weight for each in self._faults])[0], first)

    @property
    def killed(self) -> set[str]:
        """The boundaries at which a replica was killed."""
        return {run.fault.removeprefix(KILL) for run in self.runs if run.met and run.fault.startswith(KILL)}

    async def _play(self, fault: Fault, first: str) -> bool:
        """Whether the fault met anything."""
        others = [each for each in self._stories if each != first and each not in SLOW]
        stories = [first, *self._chance.sample(others, min(STORIES_EACH - 1, len(others)))]
        try:
            found = await play_round(self._stage, stories, fault, len(self.runs) + 1, self._chance)
        except BaseExceptionGroup as errors:
            raise AssertionError(f"{fault.name}: {[str(each) for each in errors.exceptions]}") from errors
        except AssertionError as error:
            raise AssertionError(f"{fault.name}, {stories}: {error}") from error
        self.runs += found
        return found[0].met


def table(runs: list[FaultyRun]) -> list[str]:
    """By fault: how many runs, and how long they took to recover."""
    by_fault: dict[str, list[FaultyRun]] = defaultdict(list)
    for run in runs:
        by_fault[run.fault if " before " not in run.fault and " after " not in run.fault else _kind(run)].append(run)
    lines = ["| fault | runs | of those met | median, s | longest, s |", "|---|---|---|---|---|"]
    for fault, found in sorted(by_fault.items()):
        took = [run.seconds for run in found]
        met = sum(run.met for run in found)
        lines.append(f"| {fault} | {len(found)} | {met} | {statistics.median(took):.1f} | {max(took):.1f} |")
    return lines


def _kind(run: FaultyRun) -> str:
    return f"{run.fault.split(' before ')[0].split(' after ')[0]} at a boundary of a write"


@pytest.mark.timeout(0)  # the long mode takes an hour; each step of a story is bounded
async def test_nothing_is_claimed_twice_or_lost_whatever_fails(
    sandbox: Sandbox, request: pytest.FixtureRequest, runs: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In every state of the store; and every story reaches its end, after which nothing is left."""
    long_mode, began = is_long(request.config), time.monotonic()
    wanted = request.config.getoption("--story")
    stories = [each for each in STORIES if wanted in each and (long_mode or each not in SLOW)]
    faults = [each for each in FAULTS if request.config.getoption("--fault") in each.name]
    async with staged(sandbox, seed) as stage:
        session = Session(stage, seed, stories, faults)
        try:
            if long_mode and not request.config.getoption("--fault"):
                await session.points()
                await session.each_fault()
            while len(session.runs) < runs and (long_mode or time.monotonic() < began + SHORT_SECONDS):
                await session.random_round()
        finally:
            visited = stage.visits()
            with capsys.disabled():
                report(session, seed, stage, visited, time.monotonic() - began)
    assert session.runs
    if long_mode and len(stories) == len(STORIES) and not request.config.getoption("--fault"):
        boundaries = [f"{b} {point}" for point in POINTS for b in BOUNDARIES]
        assert [each for each in boundaries if each not in visited] == [], "no story passed these boundaries"
        assert [each for each in boundaries if each not in session.killed] == [], "nobody was killed here"


def report(session: Session, seed: int, stage: Stage, visited: dict[str, int], seconds: float) -> None:
    """What docs/reliability.md quotes."""
    history, runs, killed = stage.history, session.runs, session.killed
    print(f"\nseed {seed}: {len(runs)} runs in {seconds:.0f} s, {history.judged} states judged ({history.gaps} gaps),")
    print(f"{stage.restarts} restarts, {stage.slipped} pods slipped past the webhook and were recreated")
    print(*table(runs), sep="\n")
    late = [run for run in runs if run.seconds > AGREED_SECONDS]
    print(f"{len(late)} runs took longer than {AGREED_SECONDS:.0f} s:", *late, sep="\n  ")
    print("boundaries of writes, how often they were passed, and whether a replica was killed there:")
    for line, count in sorted(visited.items(), key=lambda each: each[0].split(" ", 1)[::-1]):
        print(f"  {count:5} {'killed' if line in killed else '      '} {line}")
