"""The turns in the report of an agent: no write storm, and the last state in the end."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from deviceshare.domain.objects.hardware import RENEWED_SECONDS, Hardware, ReportedTurns
from deviceshare.domain.turns.arena import Arena
from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.loops.agent.turn_reports import PAUSE, TurnReports
from tests.unit.domain.test_turn_report import TEAM, arena
from tests.unit.loops.agent.node import part, sight
from tests.unit.loops.agent.test_lookout import Tower
from tests.unit.loops.agent.test_referee import Table, at_a_table

START = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


class Desk(Tower):
    """A node whose agent looks at turns; its clock began to run with the arenas' at 1000 seconds."""

    def __init__(self, reported: Hardware | None = None) -> None:
        super().__init__()
        self.arenas: list[tuple[ArenaName, Arena]] | None = []
        self.seconds = 0.0
        self.skew = timedelta()
        self.begin(reported or Hardware(boot_id="boot-1", devices=[part(0)]))

    def begin(self, reported: Hardware) -> None:
        """An agent that finds this report."""
        self.set_ledger(reported)
        self.turn_reports = TurnReports(
            self.lookout,
            lambda: self.arenas,
            now=lambda: START + timedelta(seconds=self.seconds) + self.skew,
            clock=lambda: 1000.0 + self.seconds,
        )

    def look(self, after: float = PAUSE) -> ReportedTurns | None:
        """What is wanted in the report after a look."""
        self.seconds += after
        self.turn_reports.look()
        return self.reported.turns if self.reported else None


def holders(turns: ReportedTurns | None) -> Iterator[str]:
    for queue in turns.queues if turns else ():
        yield queue.holder.pod if queue.holder else ""


def test_turns_are_reported_as_they_are_when_looked_at() -> None:
    """And withdrawn when the last has ended."""
    desk = Desk()
    desk.lookout.take(sight(0))
    desk.arenas = [(TEAM, arena("a", "b", first=990.0))]
    found = desk.look()
    assert found and found.time == "2026-11-21T03:00:05Z"
    assert found.queues[0].holder and found.queues[0].holder.since == "2026-11-21T02:59:50Z"
    desk.arenas = []
    assert desk.look() is None


def test_nothing_is_written_while_nothing_changes() -> None:
    """However the clocks drift; a time that is set anew counts; and once in ten minutes, to show that an agent runs."""
    desk = Desk()
    desk.lookout.take(sight(0))
    desk.arenas = [(TEAM, arena("a", "b"))]
    first = desk.look()
    for _ in range(20):
        desk.skew += timedelta(seconds=0.2)
        assert desk.look() == first
    desk.skew = timedelta(hours=-1)
    later = desk.look()
    assert (
        first and later and later.queues[0].holder and later.queues[0].holder.since < first.queues[0].waiting[0].since
    )
    renewed = desk.look(after=RENEWED_SECONDS)
    assert renewed and (renewed.queues, renewed.time > later.time) == (later.queues, True)


def test_the_next_agent_reports_nothing_before_it_knows_who_has_turns() -> None:
    """Nor before it has read the last report; and where no pods are served, nobody has one."""
    before = Desk()
    before.lookout.take(sight(0))
    before.arenas = [(TEAM, arena("a"))]
    before.look()
    assert before.reported

    desk = Desk(before.reported)
    desk.arenas = []
    desk.look()
    assert desk.reported is None
    desk.arenas = None
    desk.lookout.take(sight(0))
    assert list(holders(desk.look())) == ["ns/a"]
    desk.arenas = before.arenas
    assert desk.look() == before.reported.turns, "not even its time is another one"
    desk.arenas = []
    assert desk.look() is None


@at_a_table
async def test_a_referee_says_nothing_before_it_has_taken_over_and_after_it_stopped(table: Table) -> None:
    """Else each restart of an agent would report that nobody has a turn."""
    before = table.referee.arenas()
    await table.sit("a")
    taken = table.referee.arenas()
    assert before is None
    assert taken is not None and [name.name for name, _ in taken] == ["team"]
    await table.referee.stop()
    assert table.referee.arenas() is None
