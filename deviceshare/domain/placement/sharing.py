"""The choice of devices for shares: best fit, or most room, each container's parts on distinct devices.

All or nothing: every container of a pod gets its parts on one node, from devices of one resource, or none does.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import INIT, SIDECAR, WHOLE, Need, Share, ShareRequest, share_of
from deviceshare.domain.placement.rooms import Room, units

SPREAD: Final = "spread"
_STEPS: Final = 2_000
"""Devices tried for one pod, at most: a few milliseconds. What takes more is refused, though it may fit."""


class Part(NamedTuple):
    """The place of one need: a position in the rooms that were given."""

    need: Need
    place: int


def choose_shares(
    share: ShareRequest, strategy: str, devices: Sequence[tuple[Device, Room]]
) -> tuple[Share, ...] | None:
    """The parts of these devices that the pod gets; None where they have no room for all of it."""
    parts = place(share, strategy, [room for _, room in devices])
    if parts is None:
        return None
    return tuple(sorted(share_of(part.need, devices[part.place][0]) for part in parts))


def place(share: ShareRequest, strategy: str, rooms: Sequence[Room]) -> list[Part] | None:
    """Where each need is met, from rooms of one resource; None where they don't suffice."""
    for resource in share.of:
        here = [position for position, room in enumerate(rooms) if room.resource == resource]
        parts = _Search([rooms[position] for position in here], strategy).place(share.needs)
        if parts is not None:
            return [Part(need, here[position]) for need, position in parts]
    return None


class _Search:
    """One search: the rooms as they get fuller, and the steps that are left."""

    def __init__(self, rooms: Sequence[Room], strategy: str) -> None:
        self._rooms = list(rooms)
        self._spread = strategy == SPREAD
        self._steps = _STEPS

    def place(self, needs: Iterable[Need]) -> list[Part] | None:
        running = [need for need in needs if need.role != INIT]
        before = list(self._rooms)
        parts = self._place(_largest_first(running), [])
        if parts is None:
            return None
        # While an init container runs, only the sidecars do: it may use what the others get later.
        beside = Counter[int]()
        for need, position in parts:
            if need.role == SIDECAR:
                beside[position] += units(need, before[position].size) or 0
        after = self._rooms
        for container in dict.fromkeys(need.container for need in needs if need.role == INIT):
            self._rooms = [room.less(beside[position]) for position, room in enumerate(before)]
            mine = [need for need in needs if need.container == container]
            more = self._place(_largest_first(mine), [position for _, position in parts])
            if more is None:
                return None
            parts = [*parts, *more]
        self._rooms = after
        return parts

    def _place(self, needs: Sequence[Need], preferred: Sequence[int]) -> list[Part] | None:
        """Meets the needs one after the other, and goes back where one can't be met."""
        if not needs:
            return []
        need, *others = needs
        tried: set[Room] = set()
        for position in self._candidates(need, preferred):
            room = self._rooms[position]
            if room in tried and not preferred:
                continue  # one device is as good as another with the same room
            tried.add(room)
            self._steps -= 1
            if self._steps < 0:
                return None
            self._rooms[position] = room.less(units(need, room.size) or 0)
            parts = self._place(others, preferred)
            if parts is not None:
                return [Part(need, position), *parts]
            self._rooms[position] = room
        return None

    def _candidates(self, need: Need, preferred: Sequence[int]) -> list[int]:
        """The devices with room for it, the best first."""
        fits = [position for position, room in enumerate(self._rooms) if room.takes(need)]
        sign = -1 if self._spread else 1
        # In MiB, since the same part leaves less of a smaller card; a card of unknown size counts for what it has.
        return sorted(fits, key=lambda each: (each not in preferred, sign * self._rooms[each].free, each))


def _largest_first(needs: Iterable[Need]) -> list[Need]:
    return sorted(needs, key=lambda need: (-need.percent, -need.memory_mib))


def tightness(share: ShareRequest, rooms: Sequence[Room]) -> int:
    """How much room the devices have together that the share would get here: the less, the better the fit."""
    parts = place(share, "", rooms)
    return sum(rooms[position].free for position in {position for _, position in parts}) if parts else 0


def shortage(share: ShareRequest, rooms: Sequence[Room]) -> Reason | None:
    """Why the share doesn't fit on a node with these rooms, or None where it does."""
    if place(share, "", rooms) is not None:
        return None
    mine = [room for room in rooms if room.resource in share.of]
    if mine and any(need.memory_mib for need in share.needs) and not any(room.size for room in mine):
        return MEMORY_UNKNOWN
    wanted = _counted(share.needs)
    largest = max(mine, key=lambda room: room.free, default=None)
    # kube-scheduler writes the number of nodes in front of a reason, hence words like those of its own reasons.
    free = f"at most {largest} of one are free" if largest else "the node has none for shares"
    return Reason(ReasonKind.TOO_FULL, f"node(s) too full: the pod needs {wanted}; {free}")


def _counted(needs: Iterable[Need]) -> str:
    """`8 GiB of a GPU`, `2 whole GPUs and 50% of one`."""
    counts = Counter("a whole GPU" if need.percent == WHOLE else f"{need} of a GPU" for need in needs)
    return " and ".join(f"{count} x {text}" if count > 1 else text for text, count in counts.items())


MEMORY_UNKNOWN: Final = Reason(
    ReasonKind.MEMORY_UNKNOWN,
    "the memory of the node's GPUs is not known, so no share by memory can be allocated",
    "run deviceshare's agent there (agent.enabled=true) or GPU feature discovery, or ask by percent"
    " (deviceshare.io/gpu-percent)",
)
