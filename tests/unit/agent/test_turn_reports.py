"""The turns in the report of an agent: no write storm, and the last state in the end."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from deviceshare.agent.turns import REPORT_SECONDS, TurnReports
from deviceshare.domain.objects.hardware import RENEWED_SECONDS, Hardware, ReportedTurns
from deviceshare.domain.turns.program_queue import ProgramQueue
from tests.unit.agent.node import part, reading
from tests.unit.agent.test_monitor import MonitoredNode
from tests.unit.agent.test_turns import NodeWithTurns, on_a_node
from tests.unit.domain.test_turn_report import queue

START = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


class NodeWithTurnReports(MonitoredNode):
    """A node whose agent looks at turns; its clock began to run with the queues' at 1000 seconds."""

    def __init__(self, reported: Hardware | None = None) -> None:
        super().__init__()
        self.queues: list[ProgramQueue] | None = []
        self.seconds = 0.0
        self.skew = timedelta()
        self.begin(reported or Hardware(boot_id="boot-1", devices=[part(0)]))

    def begin(self, reported: Hardware) -> None:
        """An agent that finds this report."""
        self.set_ledger(reported)
        self.turn_reports = TurnReports(
            self.own,
            lambda: self.queues,
            now=lambda: START + timedelta(seconds=self.seconds) + self.skew,
            clock=lambda: 1000.0 + self.seconds,
        )

    def look(self, after: float = REPORT_SECONDS) -> ReportedTurns | None:
        """What is wanted in the report after a look."""
        self.seconds += after
        self.turn_reports.look()
        return self.reported.turns if self.reported else None


def holders(turns: ReportedTurns | None) -> Iterator[str]:
    for each in turns.queues if turns else ():
        yield each.holder.pod if each.holder else ""


def test_turns_are_reported_as_they_are_when_looked_at() -> None:
    """And withdrawn when the last has ended."""
    node = NodeWithTurnReports()
    node.monitor.take(reading(0))
    node.queues = [queue("a", "b", first=990.0)]
    found = node.look()
    assert found and found.time == "2026-11-21T03:00:05Z"
    assert found.queues[0].holder and found.queues[0].holder.since == "2026-11-21T02:59:50Z"
    node.queues = []
    assert node.look() is None


def test_nothing_is_written_while_nothing_changes() -> None:
    """However the clocks drift; a time that is set anew counts; and once in ten minutes, to show that an agent runs."""
    node = NodeWithTurnReports()
    node.monitor.take(reading(0))
    node.queues = [queue("a", "b")]
    first = node.look()
    for _ in range(20):
        node.skew += timedelta(seconds=0.2)
        assert node.look() == first
    node.skew = timedelta(hours=-1)
    later = node.look()
    assert (
        first and later and later.queues[0].holder and later.queues[0].holder.since < first.queues[0].waiting[0].since
    )
    renewed = node.look(after=RENEWED_SECONDS)
    assert renewed and (renewed.queues, renewed.time > later.time) == (later.queues, True)


def test_the_next_agent_reports_nothing_before_it_knows_who_has_turns() -> None:
    """Nor before it has read the last report; and where no pods are served, nobody has one."""
    before = NodeWithTurnReports()
    before.monitor.take(reading(0))
    before.queues = [queue("a")]
    before.look()
    assert before.reported

    node = NodeWithTurnReports(before.reported)
    node.queues = []
    node.look()
    assert node.reported is None
    node.queues = None
    node.monitor.take(reading(0))
    assert list(holders(node.look())) == ["ns/a"]
    node.queues = before.queues
    assert node.look() == before.reported.turns, "not even its time is another one"
    node.queues = []
    assert node.look() is None


@on_a_node
async def test_an_agent_says_nothing_of_turns_before_it_has_taken_over_and_after_it_stopped(
    node: NodeWithTurns,
) -> None:
    """Else each restart of an agent would report that nobody has a turn."""
    before = node.turns.queues()
    await node.join("a")
    taken = node.turns.queues()
    assert before is None
    assert taken is not None and [each.name.name for each in taken] == ["team"]
    await node.turns.stop()
    assert node.turns.queues() is None
