"""Turns for people: who has the turn of a group or of a device, and which programs wait, as the node's agent reported.

An agent that stopped says nothing more, so each view has the time of its report, and says which of its pods are gone.
"""

from collections.abc import Container

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.objects.hardware import ReportedHolder, ReportedQueue, ReportedTurns, ReportedWaiter


class TurnPlayer(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A program that has the turn or waits for it. Times are RFC 3339, "" where they aren't known."""

    pod: str
    """`namespace/name`"""
    since: str = ""
    priority: int = 0
    gone: bool = False
    """Whether there is no such pod any more: its node's agent hasn't reported that."""
    asked: bool = False
    """Whether the holder was asked to end, since its slice is over."""
    lost_since: str = ""
    """When the agent last heard of the holder, where it has lost contact."""


class TurnView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The turns of one group, or of pods with shares of one device. Without a holder none is given at present."""

    group: str = ""
    resource: str = ""
    index: int | None = None
    """With the resource: the device, where it isn't a group's."""
    reported: str = ""
    """When the agent reported this, RFC 3339. While there are turns it does so every ten minutes at least."""
    holder: TurnPlayer | None = None
    waiting: list[TurnPlayer] = field(default_factory=list)
    """The next one first."""
    waiting_count: int = 0
    """Of all that wait; the list may have fewer."""

    @property
    def of(self) -> str:
        """Whose turns: the group's name, or the device as `nvidia.com/gpu 0`."""
        return self.group or f"{self.resource} {'' if self.index is None else self.index}".strip()


def turn_views(turns: ReportedTurns | None, pods: Container[str], group_uid: str = "") -> list[TurnView]:
    """A view of each reported queue, or of those of one group; `pods` are those that there are, as `namespace/name`."""
    if turns is None:
        return []
    return [_view(each, turns.time, pods) for each in turns.queues if group_uid in ("", each.uid)]


def _view(queue: ReportedQueue, reported: str, pods: Container[str]) -> TurnView:
    holder, waiting = None, [_player(each, pods) for each in queue.waiting]
    if queue.holder:
        holder = replace(_player(queue.holder, pods), asked=queue.holder.asked, lost_since=queue.holder.lost_since)
    number = max(queue.waiting_count, len(waiting))
    return TurnView(queue.group, queue.resource, queue.index, reported, holder, waiting, number)


def _player(each: ReportedHolder | ReportedWaiter, pods: Container[str]) -> TurnPlayer:
    return TurnPlayer(each.pod, each.since, each.priority, gone=each.pod not in pods)


def standings(turns: ReportedTurns | None, pod: str) -> list[str]:
    """What one pod has to do with turns: which it has, which it waits for and who has those."""
    views = turn_views(turns, (pod,))
    has = [f"has that of {_since(view.of, view.holder)}" for view in views if view.holder and view.holder.pod == pod]
    waits = [
        f"waits for that of {_since(view.of, each)}; {f'pod {view.holder.pod}' if view.holder else 'nobody'} has it"
        f"{f', and {ahead} wait in front' if ahead else ''}"
        for view in views
        for ahead, each in enumerate(view.waiting)
        if each.pod == pod
    ]
    return has + waits


def _since(what: str, player: TurnPlayer) -> str:
    return f"{what} since {player.since}" if player.since else what
