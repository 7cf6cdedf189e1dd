"""Whether everything is back where it began: judged on what processes held at rest before the churn and after it.

At rest nothing of the churn exists and all have had time to forget it. What each bound is derived from:

- *Mirrored objects* are as many as before: the cluster has the same objects again.
- *Tasks, descriptors, connections*: `SLACK` for each process, for connections that are kept open for a while. The
  lease was lost once for each `LEADER_SECONDS`, each watch ended twice a minute, each pod was several requests: what
  leaks one for each of any of these goes beyond it within minutes.
- *Objects of a class*: `CLASS_SLACK` for each process, and one for twenty pods that came and went. One that is left
  behind by each pod, group (three to five pods) or share shows.
- *Memory*: `RSS_SLACK_MIB` by which the allocator's own holes differ, and 1 KiB for each pod; the smallest object that
  is kept of a pod, its decoded metadata, takes more. The slope of the second half (Theil and Sen's, which one
  outlier doesn't move) keeps to the same.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

from tests.soak.samples import Sample

SLACK: Final = 5
CLASS_SLACK: Final = 300
PODS_AN_OBJECT: Final = 20
RSS_SLACK_MIB: Final = 6.0
KIB_A_POD: Final = 1.0


class Rest(NamedTuple):
    """All processes at rest."""

    samples: list[Sample]
    classes: Counter[str]
    """Objects by class, of all processes that count them."""
    tasks: Counter[str]


def rss_bound(pods: int) -> float:
    """MiB by which a process may have grown while so many pods came and went."""
    return RSS_SLACK_MIB + pods * KIB_A_POD / 1024


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's: the median of the slopes between any two points; 0 for fewer than two."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if b[0] > a[0]]
    return median(slopes) if slopes else 0.0


def second_half(series: Sequence[Sample]) -> Sequence[Sample]:
    return series[len(series) // 2 :]


def grown(before: Rest, after: Rest, series: Sequence[Sample]) -> list[str]:
    """What didn't go back; `series` are the samples between the two. Empty when all did."""
    pods = after.samples[0].pods - before.samples[0].pods
    return [*_numbers(before, after), *_classes(before, after, pods), *_memory(before, after, series, pods)]


def _numbers(before: Rest, after: Rest) -> list[str]:
    faults = []
    slack = SLACK * len(before.samples)
    for what in ("mirrored", "tasks", "descriptors", "connections"):
        # Of all processes together, since another one may lead now.
        old, new = (sum(getattr(each, what) for each in rest.samples) for rest in (before, after))
        if new > old + (0 if what == "mirrored" else slack):
            faults.append(f"{what}: {old} before, {new} after")
    return [*faults, *(f"  {name}: {number} more" for name, number in (after.tasks - before.tasks).items() if faults)]


def _classes(before: Rest, after: Rest, pods: int) -> list[str]:
    bound = CLASS_SLACK * len(before.samples) + pods // PODS_AN_OBJECT
    more = (after.classes - before.classes).most_common()
    return [f"objects of {name}: {number} more, at most {bound} may be" for name, number in more if number > bound]


def _memory(before: Rest, after: Rest, series: Sequence[Sample], pods: int) -> list[str]:
    faults = []
    for old, new in zip(before.samples, after.samples, strict=True):
        if new.rss_mib > old.rss_mib + rss_bound(pods):
            sizes = f"{old.rss_mib:.1f} MiB before, {new.rss_mib:.1f} after"
            faults.append(f"{new.process}: {sizes}; {rss_bound(pods):.1f} more may be")
        half = second_half([each for each in series if each.process == new.process])
        if len(half) < 2:
            continue
        rise = slope([(each.hours, each.rss_mib) for each in half]) * (half[-1].hours - half[0].hours)
        bound = rss_bound(half[-1].pods - half[0].pods)
        if rise > bound:
            faults.append(f"{new.process}: rises by {rise:.1f} MiB in the second half; {bound:.1f} may be")
    return faults
