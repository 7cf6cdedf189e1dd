"""Rooms: how much of a device is left for shares, counted exactly.

Shares of one device may be asked for by memory and by percent. With S MiB of memory a device has 100 x S units, of
which one MiB is 100, and one percent is S: so that all are whole numbers, whatever the size of the card. Where the
memory isn't known, a device has 100 units, one for each percent, and no room for a share by memory.
"""

from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.objects.shares import FIRST, INITS, SIDECAR, WHOLE, Need, Share, in_gib


class Room(NamedTuple):
    """What one device has left."""

    resource: str
    size: int
    """MiB of memory; 0 where that is unknown."""
    free: int
    """Units."""

    @property
    def capacity(self) -> int:
        """All units of the device."""
        return capacity(self.size)

    def takes(self, need: Need) -> bool:
        """Whether there is room for it."""
        cost = units(need, self.size)
        return cost is not None and cost <= self.free

    def less(self, cost: int) -> "Room":
        """The room with so many units fewer."""
        return self._replace(free=self.free - cost)

    def __str__(self) -> str:
        """What is free of it: `3 of 16 GiB`, `40 of 100%`."""
        if not self.size:
            return f"{max(self.free, 0)} of {WHOLE}%"
        return f"{in_gib(max(self.free, 0) // WHOLE).removesuffix(' GiB')} of {in_gib(self.size)}"


def capacity(size: int) -> int:
    """The units of a device with so many MiB."""
    return WHOLE * (size or 1)


def units(part: Need | Share, size: int) -> int | None:
    """What a part of a device with so many MiB costs; None where that can't be said."""
    if part.percent:
        return part.percent * (size or 1)
    return WHOLE * part.memory_mib if size else None


def used(shares: Iterable[Need | Share], size: int) -> int:
    """What the shares that one pod has, or is to get, of one device cost together: all of it, where that can't be said.

    Init containers run one after the other, beside sidecars, before the others start: so of theirs the largest counts,
    alone where it runs before every sidecar.
    """
    parts = tuple(shares)
    if len(parts) == 1:  # as most pods have; this is asked of every pod of a node at each change
        cost = units(parts[0], size)
        return capacity(size) if cost is None else cost
    running, beside, inits, firsts = 0, 0, dict[str, int](), dict[str, int]()
    for share in parts:
        cost = units(share, size)
        if cost is None:
            return capacity(size)
        if share.role in INITS:
            mine = firsts if share.role == FIRST else inits
            mine[share.container] = mine.get(share.container, 0) + cost
            continue
        running += cost
        beside += cost if share.role == SIDECAR else 0
    return max(running, beside + max(inits.values(), default=0), *firsts.values())


def mib(cost: int, size: int) -> int:
    """MiB of device memory that these units are, rounded down; 0 where the memory is unknown."""
    return cost // WHOLE if size else 0
