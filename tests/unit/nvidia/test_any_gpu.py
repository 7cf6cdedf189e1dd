"""What must hold on every machine with NVIDIA's GPUs: `tox run -e gpu` runs this on the machine's own.

Without a GPU that fails. Elsewhere the GPUs are those of deviceshare_sandbox/nvml.
"""

import os
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from deviceshare.domain.objects.hardware import NVLINK, PROXIMITY
from deviceshare.nvidia import Driver, Watch, read_inventory, read_usage
from deviceshare_sandbox.nvml import Script

REAL = os.environ.get("DEVICESHARE_GPU") == "real"


@pytest.fixture
def sysfs(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where Linux shows the machine's devices."""
    if REAL:
        return Path("/sys")
    script: Script = request.getfixturevalue("script")
    script.gpus(8, nvlink_pairs=True)
    script.numa(tmp_path)
    return tmp_path


@pytest.fixture
def started(sysfs: Path) -> Iterator[Driver]:
    """NVML on those GPUs."""
    with Driver() as driver:
        yield driver


def test_each_gpu_is_told_apart_and_found_among_linuxs_devices(started: Driver, sysfs: Path) -> None:
    """By index, UUID and PCI address."""
    inventory = read_inventory(sysfs)
    assert inventory.devices
    assert inventory.silent == {}
    assert [part.index for part in inventory.devices] == list(range(len(inventory.devices)))
    assert len({part.uuid for part in inventory.devices}) == len(inventory.devices)
    for part in inventory.devices:
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", part.uuid)
        assert (sysfs / "bus/pci/devices" / part.pci).is_dir()
        assert part.model
        assert part.memory_mib > 0
    assert re.match(r"\d+\.\d+", inventory.driver)


def test_each_two_gpus_are_joined_in_one_way_at_most(started: Driver, sysfs: Path) -> None:
    """Lanes are NVLink's."""
    inventory = read_inventory(sysfs)
    pairs = [(link.a, link.b) for link in inventory.links]
    assert len(set(pairs)) == len(pairs)
    assert set(pairs) <= set(combinations(range(len(inventory.devices)), 2))
    for link in inventory.links:
        assert link.kind in PROXIMITY
        assert (link.lanes > 0) == (link.kind == NVLINK)


def test_a_second_look_and_one_after_a_restart_show_the_same(started: Driver, sysfs: Path) -> None:
    """Nothing changed meanwhile."""
    first = read_inventory(sysfs)
    assert read_inventory(sysfs) == first
    started.__exit__()
    started.__enter__()
    assert read_inventory(sysfs) == first


def test_no_gpu_uses_more_memory_than_it_has(started: Driver, sysfs: Path) -> None:
    """Usage and inventory speak of the same GPUs."""
    usage = read_usage()
    assert [(use.index, use.uuid, use.memory_total_mib) for use in usage] == [
        (part.index, part.uuid, part.memory_mib) for part in read_inventory(sysfs).devices
    ]
    for use in usage:
        assert use.memory_used_mib is not None and use.memory_total_mib is not None
        assert 0 <= use.memory_used_mib <= use.memory_total_mib
        assert use.utilization is None or 0 <= use.utilization <= 100
        assert all(process.pid > 0 for process in use.processes)


def test_every_gpu_can_be_watched(started: Driver) -> None:
    """And a wait without an event ends."""
    watch = Watch()
    assert watch.unwatched == {}
    assert watch.next(0.1) is None
    watch.close()
