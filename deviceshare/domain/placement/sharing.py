"""The choice of devices for shares: best fit, or most room, each container's parts on distinct devices.

All or nothing: every container of a pod gets its parts on one node, from devices of one resource, or none does.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import INIT, SIDECAR, Need, Share, ShareRequest, share_of
from deviceshare.domain.placement.rooms import Room, units, used

SPREAD: Final = "spread"
_STEPS: Final = 1_000
"""Situations looked at for one pod on one node, at most: some milliseconds. What takes more is refused, though it may
fit."""


class Effort:
    """How many more situations may be looked at, for all nodes of one call together.

    Who can create a pod can ask for dozens of parts that nearly fit, and the search for those takes long on each node.
    """

    def __init__(self, steps: int = _STEPS) -> None:
        self.left = steps


class Placed(NamedTuple):
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


def place(
    share: ShareRequest, strategy: str, rooms: Sequence[Room], effort: Effort | None = None
) -> list[Placed] | None:
    """Where each need is met, from rooms of one resource; None where they don't suffice, or `effort` is spent."""
    for resource in share.of:
        here = [position for position, room in enumerate(rooms) if room.resource == resource]
        parts = meet(share.needs, strategy, [rooms[position] for position in here], effort)
        if parts is not None:
            return [Placed(need, here[position]) for need, position in parts]
    return None


def meet(
    needs: Iterable[Need], strategy: str, rooms: Sequence[Room], effort: Effort | None = None
) -> list[Placed] | None:
    """The same for rooms that are all of one resource, whichever that is."""
    return _Search(rooms, strategy, effort or Effort()).place(needs)


class _Search:
    """One search: the rooms as they get fuller, and the steps that are left."""

    def __init__(self, rooms: Sequence[Room], strategy: str, effort: Effort) -> None:
        self._before = tuple(rooms)
        self._rooms = list(rooms)
        self._beside = [0] * len(rooms)
        """What sidecars take of each room: what they leave, an init container may have before the others start."""
        self._spread = strategy == SPREAD
        self._steps = _STEPS
        self._effort = effort
        self._inits: list[list[Need]] = []

    def place(self, needs: Iterable[Need]) -> list[Placed] | None:
        inits: dict[str, list[Need]] = {}
        running: list[Need] = []
        for need in needs:
            (inits.setdefault(need.container, []) if need.role == INIT else running).append(need)
        self._inits = [_largest_first(mine) for mine in inits.values()]
        return self._running(_largest_first(running), (), set())

    def _running(
        self, needs: Sequence[Need], placed: tuple[Placed, ...], failed: set[tuple[object, ...]]
    ) -> list[Placed] | None:
        """Meets what runs together; goes back where that, or an init container, then finds no room."""
        if not needs:
            more = self._each_init({part.place for part in placed})
            return None if more is None else [*placed, *more]
        need, *others = needs
        for position in self._candidates(self._rooms, need, ()):
            if not self._step():
                return None
            room, beside = self._rooms[position], self._beside[position]
            cost = units(need, room.size) or 0
            self._rooms[position] = room.less(cost)
            self._beside[position] += cost if need.role == SIDECAR else 0
            # One device is as good as another with the same room, so a situation is tried once.
            situation = len(others), self._situation()
            if situation not in failed:
                parts = self._running(others, (*placed, Placed(need, position)), failed)
                if parts is not None:
                    return parts
                failed.add(situation)
            self._rooms[position], self._beside[position] = room, beside
        return None

    def _each_init(self, preferred: Collection[int]) -> list[Placed] | None:
        """Where each init container has its parts beside the sidecars alone; best where others get theirs."""
        parts: list[Placed] = []
        for needs in self._inits:
            rooms = [room.less(beside) for room, beside in zip(self._before, self._beside, strict=True)]
            for need in needs:
                # Parts of one container are whole devices but for one, which comes last: the first that fits will do.
                position = next(iter(self._candidates(rooms, need, preferred)), None)
                if position is None:
                    return None
                rooms[position] = rooms[position].less(units(need, rooms[position].size) or 0)
                parts.append(Placed(need, position))
        return parts

    def _situation(self) -> tuple[tuple[int, ...], ...]:
        rooms = zip(self._rooms, self._before, self._beside, strict=True)
        return tuple(sorted((now.free, before.free, now.size, beside) for now, before, beside in rooms))

    def _step(self) -> bool:
        self._steps -= 1
        self._effort.left -= 1
        return self._steps >= 0 and self._effort.left >= 0

    def _candidates(self, rooms: Sequence[Room], need: Need, preferred: Collection[int]) -> list[int]:
        """The devices with room for it, the best first."""
        fits = [position for position, room in enumerate(rooms) if room.takes(need)]
        sign = -1 if self._spread else 1
        # In MiB, since the same part leaves less of a smaller card; a card of unknown size counts for what it has.
        return sorted(fits, key=lambda each: (each not in preferred, sign * rooms[each].free, each))


def _largest_first(needs: Iterable[Need]) -> list[Need]:
    return sorted(needs, key=lambda need: (-need.percent, -need.memory_mib))


def how_many(share: ShareRequest, rooms: Sequence[Room], most: int, effort: Effort | None = None) -> int:
    """How many pods with this share have room here together; counts no further than `most`, or `effort` lasts."""
    left = list(rooms)
    for number in range(most):
        parts = place(share, "", left, effort)
        if not parts:
            return number
        for position in {part.place for part in parts}:
            mine = [part.need for part in parts if part.place == position]
            left[position] = left[position].less(used(mine, left[position].size))
    return most


def tightness(share: ShareRequest, rooms: Sequence[Room], effort: Effort | None = None) -> int:
    """How much room the devices have together that the share would get here: the less, the better the fit."""
    if len(share.needs) == 1:
        [need] = share.needs
        fits = ([room.free for room in rooms if room.resource == each and room.takes(need)] for each in share.of)
        return min(next(filter(None, fits), (0,)))
    parts = place(share, "", rooms, effort)
    return sum(rooms[position].free for position in {position for _, position in parts}) if parts else 0


def shortage(share: ShareRequest, rooms: Sequence[Room], effort: Effort | None = None) -> Reason | None:
    """Why the share doesn't fit on a node with these rooms, or None where it does."""
    if _fits(share, rooms, effort):
        return None
    if effort and effort.left <= 0 and len(share.needs) > 1:
        return NOT_COMPARED
    mine = [room for room in rooms if room.resource in share.of]
    if mine and any(need.memory_mib for need in share.needs) and not any(room.size for room in mine):
        return MEMORY_UNKNOWN
    largest = max(mine, key=lambda room: room.free, default=None)
    # kube-scheduler writes the number of nodes in front of a reason, hence words like those of its own reasons.
    free = f"at most {largest} of one are free" if largest else "the node has none for shares"
    return Reason(ReasonKind.TOO_FULL, f"node(s) too full: the pod needs {share.wanted}; {free}")


def _fits(share: ShareRequest, rooms: Sequence[Room], effort: Effort | None) -> bool:
    """Whether `place` finds room. A single part fits where any device takes it, which needs no search."""
    if len(share.needs) != 1:
        return place(share, "", rooms, effort) is not None
    [need] = share.needs
    # Of sorted rooms the last ones have the most left.
    return any(room.takes(need) and room.resource in share.of for room in reversed(rooms))


NOT_COMPARED: Final = Reason(
    ReasonKind.TOO_FULL,
    "the pod's parts are so many that not every node has been looked at yet; the others follow",
    "ask for fewer parts in one pod",
)
"""Where the effort of a call is spent: no answer, and never kept as one."""

MEMORY_UNKNOWN: Final = Reason(
    ReasonKind.MEMORY_UNKNOWN,
    "the memory of the node's GPUs is not known, so no share by memory can be allocated",
    "run deviceshare's agent there (agent.enabled=true) or GPU feature discovery, or ask by percent"
    " (deviceshare.io/gpu-percent)",
)
