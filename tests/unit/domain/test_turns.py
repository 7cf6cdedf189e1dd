"""Turns: never two at once, whatever is lost, killed and restarted in between; and who is next."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deviceshare.domain.turns.program_queue import (
    LEASE_SEEN,
    LEASE_UNSEEN,
    Program,
    ProgramQueue,
    QueueName,
    TurnProcess,
    grace,
)
from deviceshare.domain.turns.turn_client import BadTurnRequest, TurnRequest, turn_request
from tests.unit.domain.turn_histories import History

STEPS = (
    "arrive",
    "connect",
    "unplug",
    "notice",
    "beat",
    "finish",
    "kill",
    "kill_watchers",
    "look",
    "settle",
    "restart",
)
WAITS = (0.5, 2.0, LEASE_UNSEEN - 1.0, LEASE_UNSEEN + 1.0, grace(LEASE_UNSEEN) - 0.5, 4000.0)
TOKEN = "2860ef5f-2969-4aab-8cea-f9880c986253"
EVENTS = st.one_of(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), st.tuples(st.just("wait"), st.sampled_from(WAITS))
)


WAITED_LONG = [("wait", 29.0), ("beat", 0), ("unplug", 0), ("notice", 0), ("wait", 29.0), ("settle", 0)]
UNWATCHED = [("kill_watchers", 0), ("notice", 0), ("wait", 4000.0), ("settle", 0)]


@settings(max_examples=600)
@example(sight=False, records=False, events=WAITED_LONG)
@example(sight=True, records=True, events=UNWATCHED)
@given(sight=st.booleans(), records=st.booleans(), events=st.lists(EVENTS, min_size=4, max_size=40))
def test_never_two_programs_have_the_turn(sight: bool, records: bool, events: list[tuple[str, float]]) -> None:
    """Over random histories, with and without sight of processes and a record of holders."""
    history = History(sight=sight, records=records)
    history.arrive(None)  # type: ignore[arg-type]
    history.arrive(None)  # type: ignore[arg-type]
    for step, number in events:
        if step == "wait":
            history.wait(number)
        else:
            getattr(history, step)(history.programs[int(number) % len(history.programs)])
        history.check()


@pytest.mark.parametrize(("sight", "records"), [(True, True), (True, False), (False, True), (False, False)])
def test_every_waiting_program_gets_the_turn_in_the_end(sight: bool, records: bool) -> None:
    """However its predecessors end: a lost turn isn't lost for the others."""
    for last in ("finish", "kill", "unplug"):
        history = History(sight=sight, records=records)
        for _ in range(3):
            history.arrive(None)  # type: ignore[arg-type]
        for expected in (2, 3):
            [works] = [each for each in history.programs if each.works]
            getattr(history, last)(works)
            for _ in range(500):
                history.wait(10)
                for step in (history.notice, history.look, history.beat):
                    step(works)
                history.check()
            assert history.given == expected


TEAM = QueueName("group/1", "team")


def program(name: str, priority: int = 0, seconds: float = 0.0, *, seen: bool = False) -> Program:
    return Program("pod", name, f"ns/{name}", priority, seconds, TurnProcess(1, 1, "pod") if seen else None)


def join(
    queue: ProgramQueue, who: Program, connection: int, now: float, *, waited: float = 0.0, held: bool = False
) -> bool:
    """Joins, and gives the turn if it can be given."""
    answer = queue.join(who, connection, now, waited=waited, held=held, lease=LEASE_UNSEEN)
    give(queue, now)
    return answer


def give(queue: ProgramQueue, now: float) -> str:
    """To whom the turn was given, by name; "" for nobody."""
    waiting = queue.next(now)
    return queue.give(waiting, now, LEASE_UNSEEN).program.token if waiting else ""


def test_the_next_one_has_the_highest_priority_and_then_waits_longest() -> None:
    """Also after it had to connect again."""
    queue = ProgramQueue(TEAM)
    join(queue, program("first"), 1, 0)
    join(queue, program("young"), 2, 30)
    join(queue, program("returned"), 3, 31, waited=25)
    join(queue, program("urgent", 5), 4, 40)
    for gone, then in (("first", "urgent"), ("urgent", "returned"), ("returned", "young")):
        queue.release(("pod", gone))
        assert give(queue, 50) == then


def test_a_lost_turn_that_nobody_sees_is_given_after_its_grace_and_not_before() -> None:
    """Counted from the last heartbeat."""
    queue = ProgramQueue(TEAM)
    join(queue, program("lost"), 1, 0)
    join(queue, program("next"), 2, 0)
    queue.beat(100)
    queue.leave(("pod", "lost"), 1)

    assert give(queue, 100 + grace(LEASE_UNSEEN)) == ""
    assert give(queue, 100.1 + grace(LEASE_UNSEEN)) == "next"


def test_a_lost_turn_whose_processes_are_seen_waits_for_their_end() -> None:
    """However long that takes: a program that was stopped may go on."""
    queue = ProgramQueue(TEAM)
    join(queue, program("lost", seen=True), 1, 0)
    join(queue, program("next"), 2, 0)
    queue.leave(("pod", "lost"), 1)

    assert give(queue, 10**6) == ""
    queue.ended(("pod", "lost"))
    assert give(queue, 10**6) == "next"


def test_a_holder_that_comes_back_still_has_the_turn() -> None:
    """On a second connection, too, before the first is known to be lost; the end of the first then means nothing."""
    queue = ProgramQueue(TEAM)
    join(queue, program("holder"), 1, 0)
    assert join(queue, program("holder"), 2, 5, held=True)
    queue.leave(("pod", "holder"), 1)
    join(queue, program("next"), 3, 6)

    assert queue.turn is not None and queue.turn.connection == 2
    assert give(queue, 10**6) == ""


def test_who_says_it_has_a_turn_that_another_has_is_told_to_end() -> None:
    """And one that nobody has: it was given up for lost."""
    queue = ProgramQueue(TEAM)
    assert not join(queue, program("late"), 1, 0, held=True)
    join(queue, program("holder"), 2, 0)
    assert not join(queue, program("late"), 3, 1, held=True)
    assert queue.turn is not None and queue.turn.program.token == "holder"


def test_an_agent_without_a_record_waits_for_the_former_holder() -> None:
    """Until it comes back or its grace has passed."""
    queue = ProgramQueue(TEAM, closed_until=50)
    join(queue, program("next"), 1, 10)
    assert queue.waiting and not queue.turn
    assert join(queue, program("former"), 2, 20, held=True)
    assert [each.program.token for each in queue.waiting] == ["next"]
    queue.release(("pod", "former"))
    assert give(queue, 21) == "next"

    idle = ProgramQueue(TEAM, closed_until=50)
    join(idle, program("next"), 1, 10)
    assert give(idle, 49.9) == ""
    assert give(idle, 50) == "next"


def test_a_former_holder_that_comes_back_goes_on_for_the_lease_that_it_was_told() -> None:
    """By an agent that saw its processes; the next one doesn't, and has no record."""
    closed = grace(LEASE_SEEN)
    first, second = Program("pod", "first"), Program("pod", "second")
    for ended, then in ((False, closed), (True, 2.0)):
        queue = ProgramQueue(TEAM, closed)
        assert queue.join(first, 1, 1.0, waited=0, held=True, lease=LEASE_UNSEEN)
        queue.join(second, 2, 1.0, waited=0, held=False, lease=LEASE_UNSEEN)
        if ended:
            queue.release(first.key)
        else:
            queue.leave(first.key, 1)
            assert queue.next(closed - 1.0) is None
        found = queue.next(then)
        assert found is not None and found.program is second


def test_a_slice_ends_when_others_wait() -> None:
    """The holder is asked once, and not while nobody waits."""
    queue = ProgramQueue(TEAM)
    join(queue, program("long", seconds=10), 1, 0)
    assert queue.ask(60) is None
    join(queue, program("next"), 2, 60)
    assert queue.ask(60) is not None
    assert queue.ask(61) is None

    eager = ProgramQueue(TEAM)
    join(eager, program("short", seconds=10), 1, 0)
    join(eager, program("next"), 2, 0)
    assert eager.ask(9.9) is None
    assert eager.ask(10) is not None


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({}, "token"),
        ({"token": "x"}, "token"),
        ({"token": TOKEN, "priority": "1001"}, "priority"),
        ({"token": TOKEN, "priority": "high"}, "priority"),
        ({"token": TOKEN, "slice": "-1"}, "slice"),
        ({"token": TOKEN, "pid": "99999999999"}, "pid"),
        ({"token": TOKEN, "held": "2"}, "held"),
        ({"token": TOKEN, "waited": "9" * 40}, "waited"),
        ({"token": TOKEN, "pod": "another"}, "pod"),
    ],
)
def test_a_bad_request_is_refused_with_the_parameter(query: dict[str, str], named: str) -> None:
    """And what it may be."""
    with pytest.raises(BadTurnRequest, match=named):
        turn_request(query)


def test_a_request_is_read_and_bounded() -> None:
    """A wait of years is one of a month: it only decides who is next."""
    query = {
        "token": TOKEN,
        "pid": "7",
        "started": "123",
        "priority": "-3",
        "slice": "60",
        "waited": "9" * 12,
        "held": "1",
    }
    assert turn_request(query) == TurnRequest(TOKEN, 7, 123, -3, 60.0, 30 * 86400.0, held=True)
