"""Turns as people and monitoring see them: the queue of an arena, and what a waiting player waits for."""

from collections.abc import Iterator

from deviceshare.domain.objects.usage import TurnHolder, TurnQueue, TurnWaiter
from deviceshare.domain.turns.arena import Arena
from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.domain.turns.standing import Player, Waiting


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


def what_they_wait_for(name: ArenaName, arena: Arena, unrecorded: str = "") -> Iterator[tuple[Waiting, str]]:
    """What each waiting player waits for, in a line that changes only when the queue does.

    `unrecorded` says why no turn can be recorded, and so none be given.
    """
    holding = arena.holding
    for ahead, waiting in enumerate(arena.queue):
        if holding is None and unrecorded:
            what = f"waiting until the node's agent can write its record of turns: {unrecorded}"
        elif holding is None:
            what = "waiting until programs that an earlier agent gave the turn must have ended"
        else:
            lost = " and has lost contact" if holding.connection is None else ""
            what = f"waiting for the turn; {_told(name, holding.player, waiting.player)} has it{lost}"
        yield waiting, f"{what}, and {ahead} wait in front" if ahead else what


def _told(name: ArenaName, player: Player, other: Player) -> str:
    """Who it is, as the other may know: pods on one device may be strangers, whose names are nobody else's business."""
    namespace, theirs = (each.pod.partition("/")[0] for each in (player, other))
    return player.pod if namespace == theirs or not name.of_strangers else "a pod of another namespace"
