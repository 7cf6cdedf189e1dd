"""The table of turns: which program has the turn of each group, and which ones wait, since when.

`top` shows what the agents answer now, `inspect` what they reported last in NodeDevices.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from deviceshare.cli.agents import NodeNow
from deviceshare.cli.ages import age
from deviceshare.cli.folding import folded, natural
from deviceshare.cli.output import Cell, Part, Row, group_name, joined, styled
from deviceshare.domain import contract
from deviceshare.domain.answers.picture import NodeView
from deviceshare.domain.answers.turn_views import TurnPlayer, TurnView
from deviceshare.domain.objects.hardware import RENEWED_SECONDS
from deviceshare.domain.objects.usage import TurnQueue
from deviceshare.domain.wording import counted
from deviceshare.timestamps import seconds_since

_COLUMNS: Final = ("TURN OF", "NODE", "POD", "STATE", "FOR", "PRIORITY")
_NO_HOLDER: Final = "none given: a former agent's may not have ended"
STALE_SECONDS: Final = 2 * RENEWED_SECONDS
"""An agent that runs has reported again by then."""


def turns_table(nodes: Iterable[NodeNow], shown: int | None) -> list[Part]:
    """A line for each program; nothing where no program takes turns. Folds all but `shown` groups."""
    queues = [(node.node, queue) for node in nodes for queue in node.turns]
    return folded(
        _COLUMNS, queues, lambda each: _rows(*each), shown, "group", urgency=lambda each: -len(each[1].waiting)
    )


def reported_turns_table(nodes: Iterable[NodeView], shown: int | None, now: datetime) -> list[Part]:
    """Likewise, as agents reported it, and which of them have stopped reporting."""
    with_turns = [node for node in sorted(nodes, key=lambda node: natural(node.name)) if node.turns]
    queues = [(node.name, turn) for node in with_turns for turn in node.turns]
    parts = folded(
        _COLUMNS,
        queues,
        lambda each: _reported_rows(*each, now),
        shown,
        "queue",
        urgency=lambda each: -each[1].waiting_count,
    )
    parts += [
        f"{counted(node.more_turns, 'more queue')} on {node.name}: deviceshare top"
        for node in with_turns
        if node.more_turns
    ]
    return parts + [_stale(node.name, node.turns[0].reported, now) for node in with_turns if _is_stale(node, now)]


def _is_stale(node: NodeView, now: datetime) -> bool:
    seconds = seconds_since(node.turns[0].reported, now)
    return seconds is None or seconds > STALE_SECONDS


def _stale(node: str, reported: str, now: datetime) -> Cell:
    when = f"{ago} ago" if (ago := age(reported, now)) else "at an unknown time"
    look = f"kubectl get pods -A -o wide -l app.kubernetes.io/name={contract.AGENT}"
    return styled(f"The agent of {node} reported its turns {when}, and may have stopped: {look}", "yellow")


def _rows(node: str, queue: TurnQueue) -> Iterator[Row]:
    first = group_name(queue.group), node
    if queue.holder is None:
        yield *first, styled("-", "dim"), styled(_NO_HOLDER, "yellow"), "", ""
    else:
        holder = queue.holder
        lost = f"{holder.lost:.0f} s" if holder.lost else ""
        yield *first, holder.pod, _has_it(lost, asked=holder.asked), _for(holder.seconds), str(holder.priority)
    for each in queue.waiting:
        yield "", "", each.pod, styled("waits", "yellow"), _for(each.seconds), str(each.priority)


def _reported_rows(node: str, turn: TurnView, now: datetime) -> Iterator[Row]:
    first, holder = (group_name(turn.of), node), turn.holder
    if holder is None:
        yield *first, styled("-", "dim"), styled(_NO_HOLDER, "yellow"), "", ""
    else:
        lost = (age(holder.lost_since, now) or "some time") if holder.lost_since else ""
        state = joined(_has_it(lost, asked=holder.asked), _gone(holder))
        yield *first, holder.pod, state, age(holder.since, now), str(holder.priority)
    for each in turn.waiting:
        state = joined(styled("waits", "yellow"), _gone(each))
        yield "", "", each.pod, state, age(each.since, now), str(each.priority)
    if rest := turn.waiting_count - len(turn.waiting):
        yield "", "", f"and {rest} more", styled("waits" if rest == 1 else "wait", "yellow"), "", ""


def _has_it(lost: str, *, asked: bool) -> Cell:
    """The state of a holder; `lost` is for how long it has been out of contact."""
    state = styled(f"lost contact {lost} ago", "red") if lost else styled("has it", "green")
    return joined(state, " (asked to end)" if asked else "")


def _gone(player: TurnPlayer) -> Cell:
    return styled(" (no such pod)" if player.gone else "", "red")


def _for(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
