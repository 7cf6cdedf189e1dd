"""Over-use: containers that use more than their share and a tolerance, and for how long without a break.

Who is to be evicted must have exceeded its share in every reading of a grace period. What wasn't read can't count
against anybody: a pause between two readings ends a streak, as does one reading within the bounds.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from deviceshare.domain.device_health.share_uses import ShareUse

LEAST_TOLERANCE_MIB: Final = 1024
"""For each container: the CUDA context and libraries, which are beside what a framework's own limit counts. PyTorch's
were 610 MiB on an H100 (docs/reliability.md)."""
DEFAULT_TOLERANCE_PERCENT: Final = 10
"""Of the share, where that is more."""
DEFAULT_GRACE_SECONDS: Final = 60
LONGEST_PAUSE_SECONDS: Final = 15.0
"""Between two readings of one streak."""
OLDEST_READING_SECONDS: Final = 10.0
"""By which somebody may be evicted."""

OVERUSE_CURE: Final = "limit what the program allocates, or ask for a larger share"

Exceeder = tuple[str, str, str, int, str]
"""The UID of a pod, a container's name or "", and the resource, index and UUID of a device."""


class Streak(NamedTuple):
    """Readings in a row that exceeded, by a monotonic clock, in seconds."""

    since: float
    until: float
    readings: int = 1


def exceeder(use: ShareUse) -> Exceeder:
    """Whose use of what it is, whatever the amount."""
    return use.pod_uid, use.container, use.device.resource, use.device.index, use.device.uuid


def bound(use: ShareUse, percent: int) -> int:
    """MiB up to which the use is tolerated."""
    return use.limit_mib + max(use.limit_mib * percent // 100, LEAST_TOLERANCE_MIB * use.containers)


def exceeds(use: ShareUse, percent: int) -> bool:
    """Whether it is more than is tolerated."""
    return use.used_mib > bound(use, percent)


def streaks(before: Mapping[Exceeder, Streak], exceeding: Iterable[Exceeder], read_at: float) -> dict[Exceeder, Streak]:
    """The streaks of those that exceed in a reading, by the streaks at the reading before it."""
    found = {}
    for each in exceeding:
        old = before.get(each)
        if old is not None and 0 <= read_at - old.until <= LONGEST_PAUSE_SECONDS:
            found[each] = Streak(old.since, read_at, old.readings + 1)
        else:
            found[each] = Streak(read_at, read_at)
    return found


def is_over(streak: Streak, *, grace: float, now: float) -> bool:
    """Whether the grace period of a streak is over, by a reading that still says something."""
    lasted = streak.until - streak.since >= grace and streak.readings > 1
    return lasted and 0 <= now - streak.until <= OLDEST_READING_SECONDS
