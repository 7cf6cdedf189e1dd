"""Turns as people and monitoring see them: the queue of an arena, and what a waiting player waits for."""

from collections.abc import Iterator

from deviceshare.domain.objects.turn_queues import TurnHolder, TurnQueue, TurnWaiter
from deviceshare.domain.turns.arena import Arena
from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.domain.turns.standing import Waiting


def queue_of(name: ArenaName, arena: Arena, now: float) -> TurnQueue:
    """The holder and the waiting players, the next one first."""
    holding = arena.holding
    holder = None
    if holding:
        silence = round(now - holding.heartbeat, 1) if holding.connection is None else 0.0
        player = holding.player
        seconds = round(now - holding.since, 1)
        holder = TurnHolder(player.pod, seconds, priority=player.priority, asked=holding.asked, lost=silence)
    queue = [
        TurnWaiter(each.player.pod, round(now - each.since, 1), priority=each.player.priority) for each in arena.queue
    ]
    return TurnQueue(name.name, holder, queue)


def what_they_wait_for(arena: Arena) -> Iterator[tuple[Waiting, str]]:
    """What each waiting player waits for, in a line that changes only when the queue does."""
    holding = arena.holding
    if holding is None:
        what = "waiting until programs that an earlier agent gave the turn must have ended"
    elif holding.connection is None:
        what = f"waiting for the turn; {holding.player.pod} has it and has lost contact"
    else:
        what = f"waiting for the turn; {holding.player.pod} has it"
    for ahead, waiting in enumerate(arena.queue):
        yield waiting, f"{what}, and {ahead} wait in front" if ahead else what
