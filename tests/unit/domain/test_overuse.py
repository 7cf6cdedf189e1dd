"""Over-use: who is to be evicted exceeded its share in every reading of the whole grace period."""

import random
from itertools import pairwise

import pytest

from deviceshare.domain.device_health.overuse import (
    LEAST_TOLERANCE_MIB,
    LONGEST_PAUSE_SECONDS,
    OLDEST_READING_SECONDS,
    Exceeder,
    Streak,
    bound,
    exceeder,
    exceeds,
    is_over,
    streaks,
)
from deviceshare.domain.device_health.share_uses import ShareUse
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
    assert bound(use(0, limit, containers=containers), percent) == most
    assert not exceeds(use(most, limit, containers=containers), percent)
    assert exceeds(use(most + 1, limit, containers=containers), percent)


def test_one_reading_within_the_bounds_ends_a_streak() -> None:
    """And the grace period starts again."""
    mine = exceeder(use(20000))
    first = streaks({}, [mine], 0.0)
    second = streaks(first, [mine], 5.0)
    assert second == {mine: Streak(0.0, 5.0, 2)}
    assert streaks(second, [], 10.0) == {}
    assert streaks(streaks(second, [], 10.0), [mine], 15.0) == {mine: Streak(15.0, 15.0)}


def test_a_pause_between_readings_ends_a_streak() -> None:
    """Nobody knows what was used meanwhile. Nor does time that goes back count."""
    mine = exceeder(use(20000))
    for at in (LONGEST_PAUSE_SECONDS + 0.1, -1.0):
        assert streaks({mine: Streak(0.0, 0.0)}, [mine], at) == {mine: Streak(at, at)}


def test_an_old_reading_evicts_nobody() -> None:
    """It says nothing about now."""
    over = Streak(0.0, 60.0, 13)
    assert is_over(over, grace=GRACE, now=60.0 + OLDEST_READING_SECONDS)
    assert not is_over(over, grace=GRACE, now=60.1 + OLDEST_READING_SECONDS)
    assert not is_over(over, grace=GRACE, now=59.0)
    assert not is_over(Streak(0.0, 59.9, 12), grace=GRACE, now=60.0)
    assert not is_over(Streak(0.0, 0.0, 1), grace=0.0, now=0.0)


@pytest.mark.parametrize("seed", range(60))
def test_under_any_history_who_is_chosen_exceeded_in_every_reading_of_the_grace(seed: int) -> None:
    """Judged from the whole history, which the streaks don't have. Each history chooses somebody, or none could."""
    rng = random.Random(seed)
    history: list[tuple[float, dict[str, int]]] = []
    running: dict[Exceeder, Streak] = {}
    at, bad, chosen = 0.0, {"a": 0.97, "b": 0.9, "c": 0.0}, 0
    for _ in range(300):
        at += rng.choice([0.2, 5.0, 5.0, 5.0, 5.0, 14.0, 40.0 if rng.random() < 0.1 else 5.0])
        readings = {pod: rng.choice((11265, 16000)) if rng.random() < odds else 11264 for pod, odds in bad.items()}
        history.append((at, readings))
        every = [use(used, pod=pod) for pod, used in readings.items()]
        running = streaks(running, [exceeder(each) for each in every if exceeds(each, 10)], at)
        late = rng.choice([0.0, 3.0, 30.0])
        for (pod, *_), streak in running.items():
            if not is_over(streak, grace=GRACE, now=at + late):
                continue
            chosen += 1
            assert late <= OLDEST_READING_SECONDS and pod != "c"
            begun = max(i for i, (time, _) in enumerate(history) if time <= at - GRACE)
            window = history[begun:]
            assert all(seen[pod] > 11264 for _, seen in window)
            pauses = [later - earlier for (earlier, _), (later, _) in pairwise(window)]
            assert max(pauses) <= LONGEST_PAUSE_SECONDS
    assert chosen
