"""The table of turns: which program has the turn of each group, and which ones wait, since when.

`top` shows what the agents answer now, `inspect` what they reported last in NodeDevices.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from deviceshare.cli.output import Cell, Part, Row, age, folded, group_name, in_unit, joined, natural, styled, tabled
from deviceshare.domain import contract
from deviceshare.domain.answers.picture import NodeView
from deviceshare.domain.answers.pod_view import TurnPlayer, TurnView
from deviceshare.domain.objects.hardware import RENEWED_SECONDS
from deviceshare.domain.objects.usage import TurnProgram, TurnQueue
from deviceshare.domain.wording import counted
from deviceshare.timestamps import seconds_since

_COLUMNS: Final = ("TURN OF", "NODE", "POD", "STATE", "FOR", "PRIORITY")
_WAITS: Final = styled("waits", "yellow")
_NO_HOLDER: Final = "none given: a former agent's may not have ended"
STALE_SECONDS: Final = 2 * RENEWED_SECONDS
"""An agent that runs has reported again by then."""


def turns_table(queues: Iterable[tuple[str, TurnQueue]], shown: int | None) -> list[Part]:
    """A line for each program in the nodes' queues; nothing where no program takes turns. Folds all but `shown`."""

    def rows(each: tuple[str, TurnQueue]) -> Iterator[Row]:
        node, queue = each

        def player(each: TurnProgram) -> Row:
            unit, size = in_unit(each.seconds)
            state: Cell = _WAITS
            if each is queue.holder:
                state = _has_it(f"{each.lost:.0f} s" if each.lost else "", asked=each.asked)
            return each.pod, state, f"{each.seconds / size:.0f}{unit}", str(each.priority)

        return _rows(queue.group, node, queue, player, len(queue.waiting))

    return folded(queues, tabled(_COLUMNS, rows), shown, "group", urgency=lambda each: -len(each[1].waiting))


def reported_turns_table(nodes: Iterable[NodeView], shown: int | None, now: datetime) -> list[Part]:
    """The table of what agents reported, and which of them have stopped reporting."""

    def rows(each: tuple[str, TurnView]) -> Iterator[Row]:
        node, turn = each

        def player(each: TurnPlayer) -> Row:
            lost = (age(each.lost_since, now) or "some time") if each.lost_since else ""
            state = _has_it(lost, asked=each.asked) if each is turn.holder else _WAITS
            gone = styled(" (no such pod)" if each.gone else "", "red")
            return each.pod, joined(state, gone), age(each.since, now), str(each.priority)

        return _rows(turn.of, node, turn, player, turn.waiting_count)

    with_turns = [node for node in sorted(nodes, key=lambda node: natural(node.name)) if node.turns]
    queues = [(node.name, turn) for node in with_turns for turn in node.turns]
    parts = folded(queues, tabled(_COLUMNS, rows), shown, "queue", urgency=lambda each: -each[1].waiting_count)
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


def _has_it(lost: str, *, asked: bool) -> Cell:
    """The state of a holder; `lost` is for how long it has been out of contact."""
    state = styled(f"lost contact {lost} ago", "red") if lost else styled("has it", "green")
    return joined(state, " (asked to end)" if asked else "")


def _rows(of: str, node: str, queue: TurnQueue | TurnView, player: Callable[[Any], Row], in_all: int) -> Iterator[Row]:
    nobody = styled("-", "dim"), styled(_NO_HOLDER, "yellow"), "", ""
    yield group_name(of), node, *(player(queue.holder) if queue.holder else nobody)
    for each in queue.waiting:
        yield "", "", *player(each)
    if rest := in_all - len(queue.waiting):
        yield "", "", f"and {rest} more", styled("waits" if rest == 1 else "wait", "yellow"), "", ""
