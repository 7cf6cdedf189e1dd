"""The table of turns: which program has the turn of each group, and which ones wait, since when."""

from collections.abc import Iterable, Iterator

from deviceshare.cli.agents import NodeNow
from deviceshare.cli.folding import folded
from deviceshare.cli.output import Part, Row, group_name, joined, styled
from deviceshare.domain.objects.turn_queues import TurnQueue


def turns_table(nodes: Iterable[NodeNow], shown: int | None) -> list[Part]:
    """A line for each program; nothing where no program takes turns. Folds all but `shown` groups."""
    queues = [(node.node, queue) for node in nodes for queue in node.turns]
    columns = ("TURN OF", "NODE", "POD", "STATE", "FOR", "PRIORITY")
    return folded(
        columns, queues, lambda each: _rows(*each), shown, "group", urgency=lambda each: -len(each[1].waiting)
    )


def _rows(node: str, queue: TurnQueue) -> Iterator[Row]:
    first = group_name(queue.group), node
    if queue.holder is None:
        yield *first, styled("-", "dim"), styled("none given: a former agent's may not have ended", "yellow"), "", ""
    else:
        holder = queue.holder
        state = styled(f"lost contact {holder.lost:.0f} s ago", "red") if holder.lost else styled("has it", "green")
        asked = " (asked to end)" if holder.asked else ""
        yield *first, holder.pod, joined(state, asked), _for(holder.seconds), str(holder.priority)
    for each in queue.waiting:
        yield "", "", each.pod, styled("waits", "yellow"), _for(each.seconds), str(each.priority)


def _for(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
