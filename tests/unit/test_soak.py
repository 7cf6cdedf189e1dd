"""The verdict of a soak: what counts as back where it began."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.soak.campaign import hurried
from tests.soak.samples import Sample
from tests.soak.verdict import Rest, grown, rss_bound, slope

NAMES = ("replica-1", "replica-2", "agent")


def sample(name: str, hours: float = 0.0, pods: int = 0, rss: float = 90.0, tasks: int = 30) -> Sample:
    return Sample(name, hours, pods, rss, 40, tasks, 15, 18)


def rest(pods: int, *, classes: dict[str, int] | None = None, **changed: Any) -> Rest:
    """All at rest; `changed` are the fields in which the first differs."""
    first, *others = [sample(name, pods=pods) for name in NAMES]
    return Rest([first._replace(**changed), *others], Counter(classes or {}), Counter({"mirror-pods": 3}))


BEFORE = rest(300, classes={"Pod": 10})


def test_what_goes_back_is_no_fault() -> None:
    """Up to the slack that kept connections and the allocator need."""
    after = rest(5000, classes={"Pod": 400}, rss_mib=98.0, tasks=40, descriptors=45)
    assert grown(BEFORE, after, []) == []


def test_a_lease_that_moves_is_no_fault() -> None:
    """The leader has more tasks; another one leads in the end."""
    before = rest(300, tasks=50)
    moved = before.samples[::-1]
    after = [new._replace(tasks=old.tasks) for old, new in zip(moved, before.samples, strict=True)]
    assert grown(before, before._replace(samples=after), []) == []


@pytest.mark.parametrize("what", ["tasks", "descriptors", "connections"])
def test_one_for_each_leader_is_found(what: str) -> None:
    """An hour has more than sixty."""
    grew = getattr(BEFORE.samples[0], what) + 60
    faults = grown(BEFORE, rest(5000, **{what: grew}), [])
    assert [fault for fault in faults if fault.startswith(f"{what}: ")]


def test_an_object_that_stays_mirrored_is_found() -> None:
    """The cluster has the same objects as before."""
    assert grown(BEFORE, rest(5000, mirrored=19), []) == ["mirrored: 54 before, 55 after"]


def test_an_object_for_each_pod_is_found_by_its_class() -> None:
    """Long before it shows as memory."""
    [fault] = grown(BEFORE, rest(5000, classes={"Pod": 10, "Claim": 4700}), [])
    assert fault.startswith("objects of Claim: 4700 more")


def test_memory_that_stays_is_found() -> None:
    """2 KiB for each pod are too many."""
    [fault] = grown(BEFORE, rest(10_300, rss_mib=90.0 + 20), [])
    assert fault == "replica-1: 90.0 MiB before, 110.0 after; 15.8 more may be"


def test_memory_that_rises_is_found_before_it_is_much() -> None:
    """By the slope of the second half, which an outlier doesn't move."""
    series = [sample("agent", number / 60, 300 + 10 * number, 90 + number) for number in range(50)]
    series[30] = series[30]._replace(rss_mib=500.0)
    assert slope([(each.hours, each.rss_mib) for each in series]) == pytest.approx(60)
    [fault] = grown(BEFORE, rest(800), series)
    assert fault == f"agent: rises by 24.0 MiB in the second half; {rss_bound(240):.1f} may be"


def test_deviceshare_in_a_hurry_makes_its_own_certificates(tmp_path: Path) -> None:
    """So that they are rotated; all else is as the sandbox has it."""
    command = ["python", "-m", "deviceshare", "run", "--tls-cert", "a.crt", "--roles", "webhook", "--tls-key", "a.key"]
    _, _, _, *flags = hurried(command, tmp_path)
    assert flags == ["run", "--roles", "webhook", "--ca-secret", "deviceshare-ca"]
