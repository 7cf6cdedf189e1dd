"""The over-uses that an agent reports: when they begin and end, and no write for every movement."""

from msgspec.structs import replace

from deviceshare.domain.device_health.violations import AMOUNTS_SECONDS, OVER_SECONDS, Overuses, ShareUse
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import MAX_OVERUSES, Overuse
from tests.unit.domain.objects import GPU

SHARE, OVER = 8192, 12000
"""MiB"""


def use(mib: int = OVER, pod: str = "greedy", uid: str = "", container: str = "main", index: int = 0) -> ShareUse:
    return ShareUse(Device(GPU, index, f"GPU-{index}"), f"ns/{pod}", uid or f"uid-of-{pod}", container, mib, SHARE)


class Readings:
    """An agent's readings, five seconds apart."""

    def __init__(self) -> None:
        self.report = Overuses()
        self.now = 0.0
        self.writes = 0
        self.restart()

    def restart(self) -> None:
        """The next agent, which knows only what was reported."""
        rows = self.report.rows
        self.report = Overuses(10)
        self.report.remember(rows)

    def read(self, *uses: ShareUse, times: int = 1) -> list[Overuse]:
        """What is reported after this was read so many times."""
        for _ in range(times):
            self.now += 5.0
            before = self.report.rows
            self.report.take(uses, self.now, self.now, f"at {self.now:.0f}")
            self.writes += self.report.rows != before
        return self.report.rows


def row(mib: int = OVER, since: str = "at 10", **changes: object) -> Overuse:
    return replace(Overuse(GPU, 0, "ns/greedy", "main", mib, SHARE, since), **changes)


def test_an_overuse_begins_with_the_second_reading_and_ends_a_minute_after_the_last() -> None:
    """One reading may be of a program that is about to end; one within the bounds is no end."""
    node = Readings()
    assert node.read(use()) == []
    assert node.read(use()) == [row()]
    assert node.read(use(SHARE), times=int(OVER_SECONDS / 5) - 1) == [row()]
    assert node.read(use()) == [row()], "it went on"
    assert node.read(use(SHARE), times=int(OVER_SECONDS / 5)) == []
    assert node.writes == 2


def test_amounts_are_reported_when_they_differ_by_much_and_not_often() -> None:
    """A program that grows by some MiB with each reading writes nothing."""
    node = Readings()
    node.read(use(), times=2)
    for more in range(10):
        node.read(use(OVER + more * 80))
    assert node.writes == 1
    assert node.read(use(OVER + 4000)) == [row(OVER + 4000)]
    for number in range(int(AMOUNTS_SECONDS / 5) - 1):
        node.read(use(OVER + 4000 * (number % 2)))
    assert node.writes == 2
    assert node.read(use(OVER)) == [row(OVER)]


def test_a_pod_without_its_share_is_not_reported_any_more_and_one_of_its_name_is_another() -> None:
    """At once: its claim was released."""
    node = Readings()
    node.read(use(), use(pod="other"), times=2)
    assert [each.pod for each in node.report.rows] == ["ns/greedy", "ns/other"]
    assert node.read(use(pod="other"), use(uid="uid-of-its-successor")) == [row(pod="ns/other")]


def test_the_next_agent_goes_on_with_what_was_reported() -> None:
    """Without a write, and it ends what has ended."""
    node = Readings()
    node.read(use(), times=2)
    node.restart()
    assert node.report.rows == node.read(use()) == [row()]
    assert node.writes == 1
    node.restart()
    assert node.read(use(SHARE), times=int(OVER_SECONDS / 5)) == [row()]
    assert node.read(use(SHARE)) == []
    node.read(use(), times=2)
    node.restart()
    assert node.read() == [], "its pod is gone"


def test_memory_of_a_pod_that_no_container_with_a_share_has_is_the_pods() -> None:
    """It goes with it, too."""
    node = Readings()
    both = use(SHARE), use(container="")
    assert [each.container for each in node.read(*both, times=2)] == [""]
    assert [each.container for each in node.read(use(SHARE))] == [""]
    assert node.read(use(SHARE), times=int(OVER_SECONDS / 5)) == []


def test_the_list_is_bounded() -> None:
    """The object has a size."""
    node = Readings()
    many = [use(pod=f"p{number}") for number in range(MAX_OVERUSES + 10)]
    assert len(node.read(*many, times=2)) == MAX_OVERUSES
