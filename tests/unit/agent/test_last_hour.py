"""The last hour of a node's devices, minute by minute."""

from deviceshare.agent.monitor import MOST_DEVICES, LastHour
from deviceshare.domain.objects.usage import MINUTES, UNKNOWN, DeviceUsage, Usage

GPU = "nvidia.com/gpu"


class HourByHand:
    """The hour of a node whose clock is set by hand."""

    def __init__(self) -> None:
        self.time = 6000.0
        self.hour = LastHour(lambda: self.time)

    def look(self, *busy: int | None, after: float = 0.0) -> None:
        self.time += after
        devices = [DeviceUsage(GPU, at, f"GPU-{at}", utilization=each) for at, each in enumerate(busy)]
        self.hour.take(Usage("n1", "now", devices))

    def hours(self) -> list[list[int]]:
        return [each.hour for each in self.hour.view().devices]


def test_the_looks_of_a_minute_become_its_mean() -> None:
    """The minute under way is the last; one without a look is unknown."""
    watched = HourByHand()
    for busy in (10, 20, 30):
        watched.look(busy, after=10)
    assert watched.hours() == [[20]]
    watched.look(80, after=60)
    assert watched.hours() == [[20, 80]]
    watched.look(50, after=120)
    assert watched.hours() == [[20, 80, UNKNOWN, 50]]


def test_an_hour_is_kept() -> None:
    """However long the agent runs."""
    watched = HourByHand()
    for minute in range(200):
        watched.look(minute % 100, 0, after=60)
    first, second = watched.hours()
    assert first == [minute % 100 for minute in range(140, 200)]
    assert second == [0] * MINUTES


def test_a_driver_that_hangs_leaves_a_gap() -> None:
    """What is shown is never older than an hour."""
    watched = HourByHand()
    watched.look(70)
    watched.time += 5 * 60
    assert watched.hours() == [[70, *[UNKNOWN] * 5]]
    watched.time += 90 * 60
    assert set(watched.hours()[0]) == {UNKNOWN} and len(watched.hours()[0]) == MINUTES


def test_a_device_without_utilization_has_no_hour() -> None:
    """Its memory is told all the same."""
    watched = HourByHand()
    watched.look(None)
    [device] = watched.hour.view().devices
    assert (device.utilization, device.hour) == (None, [])


def test_what_is_remembered_is_bounded() -> None:
    """Devices that are gone for an hour are forgotten, and no driver can name more than there may be."""
    watched = HourByHand()
    watched.look(*[1] * (MOST_DEVICES + 5))
    assert sum(bool(hour) for hour in watched.hours()) == MOST_DEVICES
    watched.look(after=60 * MINUTES)
    watched.look(*[2] * 3)
    assert watched.hours() == [[2]] * 3
