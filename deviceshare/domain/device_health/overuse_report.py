"""The over-uses of shares that an agent reports: which began and ended, and how much, without every movement.

What a program uses moves with each reading, and each write of the report makes a bind that is claiming on the node at
the moment retry. So an over-use is over only when no reading of a while has shown it, and amounts are reported again
only when they differ by much, and not often. The metrics have each reading's.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain.device_health.overuse import Exceeder, Streak, exceeder
from deviceshare.domain.device_health.share_uses import ShareUse
from deviceshare.domain.objects.hardware import MAX_OVERUSES, Overuse

READINGS: Final = 2
"""In a row, until it is an over-use: one may be of a program that is about to end."""
OVER_SECONDS: Final = 60.0
"""Without a reading that exceeds, until it has ended."""
AMOUNTS_SECONDS: Final = 60.0
"""Between two reports of other amounts."""
NOTICEABLE_PERCENT: Final = 10
"""Of the share: by less an amount doesn't count as another."""


class _Standing(Struct, frozen=True):
    row: Overuse
    """As it is reported."""
    last: float
    """When a reading exceeded, by a monotonic clock."""


class OveruseReport:
    """The list that is reported. Mutable, but pure: times are passed in."""

    def __init__(self) -> None:
        self.rows: list[Overuse] = []
        self._standing: dict[Exceeder, _Standing] = {}
        self._remembered: dict[tuple[str, str, str, int], Overuse] = {}
        self._amounts_at: float | None = None

    def remember(self, rows: Iterable[Overuse]) -> None:
        """Resumes from the report of the agent before this one: nothing in it is withdrawn before it has ended."""
        self.rows = list(rows)
        self._remembered = {(row.pod, row.container, row.resource, row.index): row for row in self.rows}

    def update(
        self, uses: Iterable[tuple[ShareUse, bool]], streaks: Mapping[Exceeder, Streak], now: float, time: str
    ) -> None:
        """Takes in the use of every share on the node and whether it exceeds what is tolerated.

        `now` is by a monotonic clock, in seconds; `time` is the same moment in RFC 3339.
        """
        uses = list(uses)
        used = {exceeder(use): use for use, _ in uses}
        self._resume(used, now)
        for use, exceeded in uses:
            key = exceeder(use)
            if exceeded and (key in self._standing or (key in streaks and streaks[key].readings >= READINGS)):
                row = self._standing[key].row if key in self._standing else _row(use, time)
                self._standing[key] = _Standing(row, now)
        shared = {_pod_and_device(key) for key in used}
        self._standing = {
            key: each
            for key, each in self._standing.items()
            if now - each.last < OVER_SECONDS and _pod_and_device(key) in shared
        }
        self._refresh_amounts({exceeder(use): use for use, exceeded in uses if exceeded}, now)
        rows = sorted(
            (each.row for each in self._standing.values()),
            key=lambda row: (row.resource, row.index, row.pod, row.container),
        )
        self.rows = rows[:MAX_OVERUSES]

    def _resume(self, used: Mapping[Exceeder, ShareUse], now: float) -> None:
        for key, use in used.items():
            row = self._remembered.get((use.pod, use.container, use.device.resource, use.device.index))
            if row:
                self._standing.setdefault(key, _Standing(row, now))
        self._remembered = {}

    def _refresh_amounts(self, exceeding: Mapping[Exceeder, ShareUse], now: float) -> None:
        if self._amounts_at is not None and now - self._amounts_at < AMOUNTS_SECONDS:
            return
        for key, each in self._standing.items():
            use = exceeding.get(key)
            if use and _differs(each.row, use):
                row = replace(each.row, used_mib=use.used_mib, limit_mib=use.limit_mib)
                self._standing[key] = _Standing(row, now)
                self._amounts_at = now


def _pod_and_device(key: Exceeder) -> tuple[str, str, int, str]:
    """The pod has a share of the device for as long as this is among the uses."""
    pod_uid, _, resource, index, uuid = key
    return pod_uid, resource, index, uuid


def _row(use: ShareUse, time: str) -> Overuse:
    device = use.device
    return Overuse(device.resource, device.index, use.pod, use.container, use.used_mib, use.limit_mib, time)


def _differs(row: Overuse, use: ShareUse) -> bool:
    much = max(use.limit_mib * NOTICEABLE_PERCENT // 100, 1)
    return row.limit_mib != use.limit_mib or abs(row.used_mib - use.used_mib) >= much
