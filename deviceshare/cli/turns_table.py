"""The table of turns: which program has the turn of each group, and which ones wait, since when.

`top` shows what the agents answer now, `inspect` what they reported last in NodeDevices.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from deviceshare.cli.output import Cell, Part, Row, age, folded, group_name, in_unit, joined, natural, styled
from deviceshare.domain import contract
from deviceshare.domain.answers.picture import NodeView
from deviceshare.domain.answers.turn_views import TurnPlayer, TurnView
from deviceshare.domain.objects.hardware import RENEWED_SECONDS
from deviceshare.domain.objects.usage import TurnHolder, TurnQueue, TurnWaiter
from deviceshare.domain.wording import counted
from deviceshare.timestamps import seconds_since

_COLUMNS: Final = ("TURN OF", "NODE", "POD", "STATE", "FOR", "PRIORITY")
_NO_HOLDER: Final = "none given: a former agent's may not have ended"
STALE_SECONDS: Final = 2 * RENEWED_SECONDS
"""An agent that runs has reported again by then."""


class _Queue(NamedTuple):
    """The turns of one group or device."""

    of: str
    node: str
    holder: Row | None
    waiting: list[Row]
    in_all: int
    """Of all that wait; the list may have fewer."""


def turns_table(queues: Iterable[tuple[str, TurnQueue]], shown: int | None) -> list[Part]:
    """A line for each program in the nodes' queues; nothing where no program takes turns. Folds all but `shown`."""
    found = []
    for node, queue in queues:
        holder = _player_now(queue.holder) if queue.holder else None
        found.append(_Queue(queue.group, node, holder, [*map(_player_now, queue.waiting)], len(queue.waiting)))
    return _table(found, shown, "group")


def _player_now(player: TurnHolder | TurnWaiter) -> Row:
    state: Cell = styled("waits", "yellow")
    if isinstance(player, TurnHolder):
        state = _has_it(f"{player.lost:.0f} s" if player.lost else "", asked=player.asked)
    unit, size = in_unit(player.seconds)
    return player.pod, state, f"{player.seconds / size:.0f}{unit}", str(player.priority)


def reported_turns_table(nodes: Iterable[NodeView], shown: int | None, now: datetime) -> list[Part]:
    """The table of what agents reported, and which of them have stopped reporting."""
    with_turns = [node for node in sorted(nodes, key=lambda node: natural(node.name)) if node.turns]
    parts = _table([_reported(node.name, turn, now) for node in with_turns for turn in node.turns], shown, "queue")
    for node in with_turns:
        if node.more_turns:
            parts.append(f"{counted(node.more_turns, 'more queue')} on {node.name}: deviceshare top")
    for node in with_turns:
        reported = node.turns[0].reported
        seconds = seconds_since(reported, now)
        if seconds is None or seconds > STALE_SECONDS:
            when = f"{ago} ago" if (ago := age(reported, now)) else "at an unknown time"
            look = f"kubectl get pods -A -o wide -l app.kubernetes.io/name={contract.AGENT}"
            said = f"The agent of {node.name} reported its turns {when}, and may have stopped: {look}"
            parts.append(styled(said, "yellow"))
    return parts


def _reported(node: str, turn: TurnView, now: datetime) -> _Queue:
    holder = None
    if turn.holder:
        lost = (age(turn.holder.lost_since, now) or "some time") if turn.holder.lost_since else ""
        holder = _player_then(turn.holder, _has_it(lost, asked=turn.holder.asked), now)
    waiting = [_player_then(each, styled("waits", "yellow"), now) for each in turn.waiting]
    return _Queue(turn.of, node, holder, waiting, turn.waiting_count)


def _player_then(player: TurnPlayer, state: Cell, now: datetime) -> Row:
    gone = styled(" (no such pod)" if player.gone else "", "red")
    return player.pod, joined(state, gone), age(player.since, now), str(player.priority)


def _has_it(lost: str, *, asked: bool) -> Cell:
    """The state of a holder; `lost` is for how long it has been out of contact."""
    state = styled(f"lost contact {lost} ago", "red") if lost else styled("has it", "green")
    return joined(state, " (asked to end)" if asked else "")


def _table(queues: Iterable[_Queue], shown: int | None, noun: str) -> list[Part]:
    def rows(queue: _Queue) -> Iterator[Row]:
        nobody = styled("-", "dim"), styled(_NO_HOLDER, "yellow"), "", ""
        yield group_name(queue.of), queue.node, *(queue.holder or nobody)
        for each in queue.waiting:
            yield "", "", *each
        if rest := queue.in_all - len(queue.waiting):
            yield "", "", f"and {rest} more", styled("waits" if rest == 1 else "wait", "yellow"), "", ""

    return folded(_COLUMNS, queues, rows, shown, noun, urgency=lambda queue: -queue.in_all)
