"""Xid errors while they happen."""

import threading
from collections.abc import Iterator

import pytest

from deviceshare.domain.device_health.examination import Xid
from deviceshare.nvidia import Driver, Lost, NoDriver, Watch
from deviceshare_sandbox.nvml import Script


def xid(uuid: str, number: int) -> Xid:
    names = {
        13: "graphics engine exception",
        31: "GPU memory page fault",
        48: "double bit ECC error",
        62: "internal micro-controller halt",
        79: "GPU has fallen off the bus",
    }
    return Xid(uuid, number, f"Xid {number}: {names[number]}")


@pytest.fixture
def uuids(script: Script, driver: Driver) -> list[str]:
    """Two GPUs."""
    return script.gpus(2)


@pytest.fixture
def watch(uuids: list[str]) -> Iterator[Watch]:
    """Somebody who listens to them."""
    watch = Watch()
    yield watch
    watch.close()


def test_errors_come_in_their_order_each_once(script: Script, uuids: list[str], watch: Watch) -> None:
    """Then there is silence."""
    script.xid(uuids[1], 13)
    script.xid(uuids[0], 48)
    assert [watch.next(5), watch.next(5)] == [xid(uuids[1], 13), xid(uuids[0], 48)]
    assert watch.next(0) is None


def test_an_error_ends_the_wait(script: Script, uuids: list[str], watch: Watch) -> None:
    """It isn't told at the next round only."""
    timer = threading.Timer(0.2, script.xid, (uuids[0], 79))
    timer.start()
    assert watch.next(60) == xid(uuids[0], 79)
    timer.join()


def test_errors_from_before_the_watch_are_not_told(script: Script, uuids: list[str]) -> None:
    """So a watch begins before the inventory is read."""
    script.xid(uuids[0], 79)
    watch = Watch()
    assert watch.next(0) is None
    watch.close()


def test_the_last_words_of_a_gpu_that_fell_off_the_bus_are_its_own(
    script: Script, uuids: list[str], watch: Watch
) -> None:
    """It can't be asked for its UUID any more."""
    script.xid(uuids[1], 79)
    script.lose(uuids[1])
    assert watch.next(5) == xid(uuids[1], 79)


def test_a_lost_gpu_is_told_without_its_name(script: Script, uuids: list[str], watch: Watch) -> None:
    """And again at each call, until the driver was initialized again."""
    script.lose(uuids[0])
    for _ in range(2):
        with pytest.raises(Lost, match="lost the GPU"):
            watch.next(5)


def test_after_a_restart_the_gpus_that_are_left_are_watched(
    script: Script, driver: Driver, uuids: list[str], watch: Watch
) -> None:
    """The lost one is named by what is left of it, its index."""
    script.lose(uuids[0])
    watch.close()
    driver.__exit__()
    driver.__enter__()
    again = Watch()
    assert again.unwatched == {"0": "the driver has lost the GPU"}
    script.xid(uuids[1], 31)
    assert again.next(5) == xid(uuids[1], 31)
    again.close()


def test_a_gpu_that_reports_no_events_is_named(script: Script, driver: Driver) -> None:
    """The others are watched all the same."""
    uuids = script.gpus(2)
    script.error("nvmlDeviceRegisterEvents", 3, uuids[0])
    watch = Watch()
    assert watch.unwatched == {uuids[0]: "Not Supported (nvmlDeviceRegisterEvents)"}
    script.xid(uuids[1], 62)
    assert watch.next(5) == xid(uuids[1], 62)
    watch.close()


def test_a_watch_over_no_gpu_waits_and_tells_nothing(driver: Driver) -> None:
    """A node may be waiting for its first GPU."""
    watch = Watch()
    assert watch.next(0.01) is None
    watch.close()


def test_a_watch_without_a_driver_is_refused(script: Script) -> None:
    """NVML wasn't started."""
    with pytest.raises(NoDriver):
        Watch()


def test_an_error_that_few_have_seen_has_its_number(script: Script, uuids: list[str], watch: Watch) -> None:
    """Of the others NVIDIA's name, too."""
    script.xid(uuids[0], 7)
    assert watch.next(5) == Xid(uuids[0], 7, "Xid 7")
