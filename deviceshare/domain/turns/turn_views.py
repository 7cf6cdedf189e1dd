"""Queues of turns as others see them: `/usage`, the agent's report in NodeDevices, and a waiting program itself."""

from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from deviceshare.domain.objects.hardware import (
    MAX_QUEUES,
    MAX_WAITING,
    RENEWED_SECONDS,
    ReportedHolder,
    ReportedQueue,
    ReportedTurns,
    ReportedWaiter,
)
from deviceshare.domain.objects.usage import TurnHolder, TurnQueue, TurnWaiter
from deviceshare.domain.turns.program_queue import Program, ProgramQueue, QueueName

Stamp = Callable[[float], str]
"""The RFC 3339 time of a moment of the queues' clock. Always the same for one moment."""


def usage_of(queue: ProgramQueue, now: float) -> TurnQueue:
    """The holder and the waiting programs, the next one first."""
    holder = None
    if turn := queue.turn:
        silence = round(now - turn.heartbeat, 1) if turn.connection is None else 0.0
        program, seconds = turn.program, round(now - turn.since, 1)
        holder = TurnHolder(program.pod, seconds, priority=program.priority, asked=turn.asked, lost=silence)
    waiting = [
        TurnWaiter(each.program.pod, round(now - each.since, 1), priority=each.program.priority)
        for each in queue.waiting
    ]
    return TurnQueue(queue.name.name, holder, waiting)


def reported_turns(queues: Iterable[ProgramQueue], stamp: Stamp, time: str) -> ReportedTurns | None:
    """The queues with the most waiting programs, as many as a report may have; None where there is no queue.

    Each write of the report makes a bind that is claiming on the node at the moment retry, so what changes all the
    time, such as for how long somebody waits, isn't in it.
    """
    ordered = sorted(queues, key=lambda each: each.name.key)
    reported = [_reported(each, stamp) for each in ordered if not each.empty]
    if not reported:
        return None
    longest = sorted(reported, key=lambda each: -each.waiting_count)[:MAX_QUEUES]
    return ReportedTurns(time, [each for each in reported if each in longest], len(reported))


def renewed(before: ReportedTurns | None, now: ReportedTurns | None, age: float | None) -> ReportedTurns | None:
    """What is to be reported next: `before`, while it says the same and is not old.

    `age` is how many seconds ago `before` was reported; None where that can't be told.
    """
    if before is None or now is None or replace(before, time=now.time) != now:
        return now
    return before if age is not None and 0 <= age < RENEWED_SECONDS else now


def _reported(queue: ProgramQueue, stamp: Stamp) -> ReportedQueue:
    holder, name, waiting = None, queue.name, queue.waiting
    if turn := queue.turn:
        lost = "" if turn.connection is not None else stamp(turn.heartbeat)
        program, since = turn.program, stamp(turn.since)
        holder = ReportedHolder(program.pod, since, program.priority, asked=turn.asked, lost_since=lost)
    shown = waiting[:MAX_WAITING]
    return ReportedQueue(
        group="" if name.of_strangers else name.name,
        uid=name.group_uid,
        resource=name.device.resource if name.device else "",
        index=name.device.index if name.device else None,
        holder=holder,
        waiting=[ReportedWaiter(each.program.pod, stamp(each.since), each.program.priority) for each in shown],
        waiting_count=len(waiting),
    )


def what_they_wait_for(queue: ProgramQueue, unrecorded: str = "") -> Iterator[tuple[Program, str]]:
    """What each waiting program waits for, in a line that changes only when the queue does.

    `unrecorded` says why no turn can be recorded, and so none be given.
    """
    turn = queue.turn
    for ahead, waiting in enumerate(queue.waiting):
        if turn:
            lost = " and has lost contact" if turn.connection is None else ""
            what = f"waiting for the turn; {_told(queue.name, turn.program, waiting.program)} has it{lost}"
        elif unrecorded:
            what = f"waiting until the node's agent can write its record of turns: {unrecorded}"
        else:
            what = "waiting until programs that an earlier agent gave the turn must have ended"
        yield waiting.program, f"{what}, and {ahead} wait in front" if ahead else what


def _told(name: QueueName, program: Program, other: Program) -> str:
    """Who it is, as the other may know: pods on one device may be strangers, whose names are nobody else's business."""
    namespace, theirs = (each.pod.partition("/")[0] for each in (program, other))
    return program.pod if namespace == theirs or not name.of_strangers else "a pod of another namespace"
