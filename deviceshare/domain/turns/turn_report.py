"""A node's turns as its agent reports them: bounded, and the same as before where nothing has changed.

Each write of the report makes a bind that is claiming on the node at the moment retry, so what changes all the time,
such as for how long somebody waits, isn't in it.
"""

from collections.abc import Callable, Iterable

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
from deviceshare.domain.turns.arena import Arena
from deviceshare.domain.turns.arena_name import ArenaName

Stamp = Callable[[float], str]
"""The RFC 3339 time of a moment of the arenas' clock. Always the same for one moment."""


def reported_turns(arenas: Iterable[tuple[ArenaName, Arena]], stamp: Stamp, time: str) -> ReportedTurns | None:
    """The queues with the most waiting programs, as many as a report may have; None where there is no queue."""
    queues = [_queue(name, arena, stamp) for name, arena in sorted(arenas, key=lambda each: each[0].key)]
    queues = [each for each in queues if each.holder or each.waiting]
    if not queues:
        return None
    longest = sorted(queues, key=lambda each: -each.waiting_count)[:MAX_QUEUES]
    return ReportedTurns(time, [each for each in queues if each in longest], len(queues))


def renewed(before: ReportedTurns | None, now: ReportedTurns | None, age: float | None) -> ReportedTurns | None:
    """What is to be reported next: `before`, while it says the same and is not old.

    `age` is how many seconds ago `before` was reported; None where that can't be told.
    """
    if before is None or now is None or replace(before, time=now.time) != now:
        return now
    return before if age is not None and 0 <= age < RENEWED_SECONDS else now


def _queue(name: ArenaName, arena: Arena, stamp: Stamp) -> ReportedQueue:
    holding, waiting = arena.holding, arena.queue
    holder = None
    if holding:
        lost = "" if holding.connection is not None else stamp(holding.heartbeat)
        player, since = holding.player, stamp(holding.since)
        holder = ReportedHolder(player.pod, since, player.priority, asked=holding.asked, lost_since=lost)
    shown = waiting[:MAX_WAITING]
    return ReportedQueue(
        group="" if name.of_strangers else name.name,
        uid=name.group_uid,
        resource=name.device.resource if name.device else "",
        index=name.device.index if name.device else None,
        holder=holder,
        waiting=[ReportedWaiter(each.player.pod, stamp(each.since), each.player.priority) for each in shown],
        waiting_count=len(waiting),
    )
