"""The turns in an agent's report: bounded, in order, and unchanged while nothing has changed."""

from datetime import UTC, datetime

from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import (
    MAX_QUEUES,
    MAX_WAITING,
    RENEWED_SECONDS,
    ReportedProgram,
    ReportedQueue,
    ReportedTurns,
)
from deviceshare.domain.turns.program_queue import Program, ProgramQueue, QueueName, renewed, reported_turns
from deviceshare.timestamps import timestamp

TEAM = QueueName("group/uid-of-team", "team")
DEVICE = QueueName("device/NVIDIA_VISIBLE_DEVICES/0", "nvidia.com/gpu 0", Device("nvidia.com/gpu", 0))


def stamp(moment: float) -> str:
    return timestamp(datetime.fromtimestamp(moment, UTC))


def program(name: str, priority: int = 0) -> Program:
    return Program(f"uid-of-{name}", f"token-of-{name}", f"ns/{name}", priority)


def queue(*names: str, name: QueueName = TEAM, first: float = 100.0) -> ProgramQueue:
    """The first has the turn, each of the others has waited for a second less than the one before it."""
    made = ProgramQueue(name)
    for number, each in enumerate(names):
        made.join(program(each), number, first + number, waited=0.0, held=False, lease=30.0)
        if number == 0 and (waiting := made.next(first)):
            made.give(waiting, first, 30.0)
    return made


def test_the_holder_and_the_queue_are_reported_with_times_that_do_not_move() -> None:
    """Of a group by its name and UID, of a device by its number; heartbeats change nothing."""
    team, device = queue("a", "b", "c"), queue("x", name=DEVICE)
    team.join(program("urgent", 7), 9, 105.0, waited=0.0, held=False, lease=30.0)
    found = reported_turns([team, device], stamp, "now")
    assert found == ReportedTurns(
        "now",
        [
            ReportedQueue(
                resource="nvidia.com/gpu", index=0, holder=ReportedProgram("ns/x", "1970-01-01T00:01:40Z"), waiting=[]
            ),
            ReportedQueue(
                group="team",
                uid="uid-of-team",
                holder=ReportedProgram("ns/a", "1970-01-01T00:01:40Z"),
                waiting=[
                    ReportedProgram("ns/urgent", "1970-01-01T00:01:45Z", 7),
                    ReportedProgram("ns/b", "1970-01-01T00:01:41Z"),
                    ReportedProgram("ns/c", "1970-01-01T00:01:42Z"),
                ],
                waiting_count=3,
            ),
        ],
        2,
    )
    team.beat(500.0)
    assert reported_turns([team, device], stamp, "now") == found


def test_a_lost_holder_has_the_turn_and_is_said_to_be_lost() -> None:
    """Since its last heartbeat."""
    team = queue("a")
    team.beat(130.0)
    team.leave(program("a").key, 0)
    found = reported_turns([team], stamp, "now")
    assert found and found.queues[0].holder == ReportedProgram(
        "ns/a", "1970-01-01T00:01:40Z", lost_since="1970-01-01T00:02:10Z"
    )


def test_while_nobody_may_have_the_turn_the_waiting_ones_are_reported() -> None:
    """After an agent that left no record."""
    closed = ProgramQueue(TEAM, closed_until=1000.0)
    closed.join(program("a"), 1, 100.0, waited=0.0, held=False, lease=30.0)
    found = reported_turns([closed], stamp, "now")
    assert found and (found.queues[0].holder, found.queues[0].waiting_count) == (None, 1)
    assert reported_turns([ProgramQueue(TEAM)], stamp, "now") is None


def test_a_report_is_bounded_and_says_how_many_there_are() -> None:
    """The queues in which most wait are in it."""
    crowded = [f"p{number}" for number in range(MAX_WAITING + 5)]
    queues = [queue("a", name=QueueName(f"group/{number}", f"g{number}")) for number in range(MAX_QUEUES + 3)]
    queues.append(queue("holder", *crowded, name=QueueName("group/zz", "crowded")))
    found = reported_turns(queues, stamp, "now")
    assert found and (len(found.queues), found.count) == (MAX_QUEUES, MAX_QUEUES + 4)
    last = found.queues[-1]
    assert (last.group, len(last.waiting), last.waiting_count) == ("crowded", MAX_WAITING, MAX_WAITING + 5)
    assert last.waiting[0].pod == "ns/p0"


def test_what_says_the_same_is_reported_again_only_when_it_is_old() -> None:
    """An agent that stopped is known by a report that it would have renewed."""
    before = reported_turns([queue("a", "b")], stamp, "then")
    same = replace(before, time="now") if before else None
    other = reported_turns([queue("b")], stamp, "now")
    assert renewed(before, same, 5.0) is before
    assert renewed(before, same, RENEWED_SECONDS) is same
    assert renewed(before, same, None) is same, "a time that can't be read is replaced"
    assert renewed(before, same, -100.0) is same, "and one that is in the future"
    assert renewed(before, other, 5.0) is other
    assert renewed(before, None, 5.0) is None
    assert renewed(None, None, None) is None
    assert renewed(None, same, None) is same
