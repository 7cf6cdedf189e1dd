"""AMD's GPUs, as their driver's files show them."""

from pathlib import Path

import pytest

from deviceshare import amd
from deviceshare.domain.device_health.examination import DeviceUse, DriverTrouble
from deviceshare.domain.objects.hardware import Part
from tests.unit.amd.machine import UNIQUE, Sysfs

FIRST, SECOND = f"{UNIQUE:#x}", f"{UNIQUE + 1:#x}"


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_gpus_are_numbered_by_their_addresses_as_amds_runtime_does(sysfs: Sysfs) -> None:
    """And known by their unique IDs, in its words; whatever the order in which they are listed."""
    sysfs.gpu("0000:c1:00.0", numa_node=1)
    sysfs.gpu("0000:05:00.0", unique_id="00000000000000ab")
    inventory = amd.read_inventory(sysfs.root)
    mib, name = 192 * 1024, "AMD Instinct MI300X"
    assert inventory.devices == [
        Part("amd.com/gpu", 0, "0xab", name, mib, pci="0000:05:00.0"),
        Part("amd.com/gpu", 1, FIRST, name, mib, pci="0000:c1:00.0", numa_node=1),
    ]
    assert (inventory.links, inventory.silent, inventory.driver) == ([], {}, "")


def test_memory_and_utilization_are_read_and_processes_are_not_known(sysfs: Sysfs) -> None:
    sysfs.gpu("0000:05:00.0")
    sysfs.gpu("0000:06:00.0", mem_info_vram_used=None, gpu_busy_percent=None)
    assert amd.read_usage(sysfs.root) == [
        DeviceUse(0, FIRST, 300, 192 * 1024, 7, []),
        DeviceUse(1, SECOND, None, 192 * 1024, None, []),
    ]


def test_what_the_kernel_refuses_to_show_of_a_gpu_tells_that_it_is_one(
    sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container without the device's file (`kfd_devcgroup_check_permission`)."""
    sysfs.gpu("0000:05:00.0")
    read = Path.read_text

    def refused(path: Path, *args: str, **named: str) -> str:
        text = read(path, *args, **named)
        if path.name == "properties" and "drm_render_minor 128" in text:
            raise PermissionError(1, "Operation not permitted")
        return text

    monkeypatch.setattr(Path, "read_text", refused)
    assert [part.index for part in amd.read_inventory(sysfs.root).devices] == [0]


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"current_compute_partition": "CPX"}, "GPU 0000:06:00.0 is partitioned"),
        ({"unique_id": f"{UNIQUE:016x}"}, "two GPUs of amdgpu have one unique ID"),
    ],
)
def test_where_numbers_are_not_known_no_device_is_reported(sysfs: Sysfs, extra: dict[str, str], text: str) -> None:
    sysfs.gpu("0000:05:00.0", current_compute_partition="SPX")
    assert len(amd.read_inventory(sysfs.root).devices) == 1
    sysfs.gpu("0000:06:00.0", **extra)
    with pytest.raises(DriverTrouble, match=text):
        amd.read_inventory(sysfs.root)


def test_a_gpu_that_kfd_does_not_know_makes_all_numbers_unknown(sysfs: Sysfs) -> None:
    """AMD's runtime leaves it out, and so do partitions count there that amdgpu doesn't show."""
    sysfs.gpu("0000:05:00.0")
    sysfs.node(200)
    with pytest.raises(DriverTrouble, match="amdgpu has 1 GPUs and KFD 2"):
        amd.read_inventory(sysfs.root)


def test_a_gpu_that_is_being_reset_does_not_answer(sysfs: Sysfs) -> None:
    """amdgpu then refuses its unique ID, without which nobody knows which one it is."""
    sysfs.gpu("0000:05:00.0", unique_id="not now")
    sysfs.gpu("0000:06:00.0")
    inventory = amd.read_inventory(sysfs.root)
    assert [part.index for part in inventory.devices] == [1] and "amdgpu refused" in inventory.silent[0]
    assert [use.index for use in amd.read_usage(sysfs.root)] == [1]


@pytest.mark.parametrize("unique", [None, "", "0000000000000000"])
def test_a_gpu_without_a_unique_id_is_known_by_its_number(sysfs: Sysfs, unique: str | None) -> None:
    sysfs.gpu("0000:05:00.0", unique_id=unique)
    assert [(part.index, part.uuid) for part in amd.read_inventory(sysfs.root).devices] == [(0, "")]


def test_a_node_is_amds_where_its_driver_has_gpus_and_none_is_nvidias(sysfs: Sysfs) -> None:
    """A graphics core of the CPU beside GPUs of NVIDIA's is nobody's, also while their driver is being replaced."""
    assert not amd.is_here(sysfs.root) and not amd.is_here(sysfs.root / "none")
    sysfs.gpu("0000:05:00.0")
    assert amd.is_here(sysfs.root)
    for pci, kind in (("0000:80:00.0", "0x068000"), ("0000:81:00.0", "0x030200")):
        directory = sysfs.root / "bus/pci/devices" / pci
        directory.mkdir()
        (directory / "vendor").write_text("0x10de\n")
        (directory / "class").write_text(f"{kind}\n")
        assert amd.is_here(sysfs.root) == (kind == "0x068000")
