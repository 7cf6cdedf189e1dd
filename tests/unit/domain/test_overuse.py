"""Over-use: who is to be evicted exceeded its share in every reading of the whole grace period."""

import random
from itertools import pairwise

import pytest

from deviceshare.domain.device_health.violations import (
    LEAST_TOLERANCE_MIB,
    LONGEST_PAUSE_SECONDS,
    OLDEST_READING_SECONDS,
    Overuses,
    ShareUse,
    Streak,
)
from deviceshare.domain.objects.devices import Device
from tests.unit.domain.objects import GPU

GRACE = 60.0


def use(used: int, limit: int = 10240, pod: str = "a", containers: int = 1) -> ShareUse:
    return ShareUse(Device(GPU, 0, "GPU-0"), f"ns/{pod}", pod, "main", used, limit, containers)


@pytest.mark.parametrize(
    ("limit", "containers", "percent", "most"),
    [
        (10240, 1, 10, 11264),
        (1024, 1, 10, 1024 + LEAST_TOLERANCE_MIB),
        (1024, 1, 0, 1024 + LEAST_TOLERANCE_MIB),
        (3072, 3, 10, 3072 + 3 * LEAST_TOLERANCE_MIB),
        (10240, 1, 1000, 112640),
    ],
)
def test_the_tolerance_is_a_percentage_but_never_less_than_a_context(
    limit: int, containers: int, percent: int, most: int
) -> None:
    """Of each container: a framework's own limit doesn't count it."""
    overuses = Overuses(percent)
    assert overuses.bound(use(0, limit, containers=containers)) == most
    assert overuses.take([use(most, limit, containers=containers)], 0.0, 0.0, "now") == []
    above = use(most + 1, limit, containers=containers)
    assert overuses.take([above], 5.0, 5.0, "now") == [above]


def test_one_reading_within_the_bounds_ends_a_streak() -> None:
    """And the grace period starts again."""
    found, overuses = [], Overuses()
    for at, used in ((0.0, 20000), (5.0, 20000), (10.0, 100), (15.0, 20000)):
        overuses.take([use(used)], at, at, "now")
        found.append(overuses.streaks.get(use(used).key))
    assert found == [Streak(0.0, 0.0), Streak(0.0, 5.0, 2), None, Streak(15.0, 15.0)]


def test_a_pause_between_readings_ends_a_streak() -> None:
    """Nobody knows what was used meanwhile. Nor does time that goes back count."""
    for at in (LONGEST_PAUSE_SECONDS + 0.1, -1.0):
        assert Streak(0.0, 0.0).next(at) == Streak(at, at)


def test_an_old_reading_evicts_nobody() -> None:
    """It says nothing about now."""
    over = Streak(0.0, 60.0, 13)
    assert over.is_over(GRACE, now=60.0 + OLDEST_READING_SECONDS)
    assert not over.is_over(GRACE, now=60.1 + OLDEST_READING_SECONDS)
    assert not over.is_over(GRACE, now=59.0)
    assert not Streak(0.0, 59.9, 12).is_over(GRACE, now=60.0)
    assert not Streak(0.0, 0.0, 1).is_over(0.0, now=0.0)


@pytest.mark.parametrize("seed", range(60))
def test_under_any_history_who_is_chosen_exceeded_in_every_reading_of_the_grace(seed: int) -> None:
    """Judged from the whole history, which the streaks don't have. Each history chooses somebody, or none could."""
    rng = random.Random(seed)
    history: list[tuple[float, dict[str, int]]] = []
    overuses = Overuses(10)
    at, bad, chosen = 0.0, {"a": 0.97, "b": 0.9, "c": 0.0}, 0
    for _ in range(300):
        at += rng.choice([0.2, 5.0, 5.0, 5.0, 5.0, 14.0, 40.0 if rng.random() < 0.1 else 5.0])
        readings = {pod: rng.choice((11265, 16000)) if rng.random() < odds else 11264 for pod, odds in bad.items()}
        history.append((at, readings))
        overuses.take([use(used, pod=pod) for pod, used in readings.items()], at, at, "now")
        late = rng.choice([0.0, 3.0, 30.0])
        for (pod, *_), streak in overuses.streaks.items():
            if not streak.is_over(GRACE, now=at + late):
                continue
            chosen += 1
            assert late <= OLDEST_READING_SECONDS and pod != "c"
            begun = max(i for i, (time, _) in enumerate(history) if time <= at - GRACE)
            window = history[begun:]
            assert all(seen[pod] > 11264 for _, seen in window)
            pauses = [later - earlier for (earlier, _), (later, _) in pairwise(window)]
            assert max(pauses) <= LONGEST_PAUSE_SECONDS
    assert chosen
