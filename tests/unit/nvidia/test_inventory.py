"""The GPUs of a node, with a broken one among them, and on drivers that tell less."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from deviceshare.domain.device_health.examination import Inventory
from deviceshare.domain.objects.hardware import Part
from deviceshare.nvidia import Driver, _pci, read_inventory
from deviceshare_sandbox.nvml import Script


def test_a_gpu_is_read_with_all_that_the_driver_tells(script: Script, driver: Driver, tmp_path: Path) -> None:
    """Memory in MiB, and the PCI address as Linux writes it."""
    uuids = script.gpus(8, model="NVIDIA A100-SXM4-80GB", memory_mib=81920)
    script.numa(tmp_path)
    script.mig(uuids[5])
    inventory = read_inventory(tmp_path)
    assert inventory.driver == "550.54.15"
    assert inventory.devices[5] == Part(
        resource="nvidia.com/gpu",
        index=5,
        uuid=uuids[5],
        model="NVIDIA A100-SXM4-80GB",
        memory_mib=81920,
        pci="0000:15:00.0",
        numa_node=1,
        mig=True,
    )
    assert [part.numa_node for part in inventory.devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [part.mig for part in inventory.devices].count(True) == 1


@pytest.mark.parametrize(("code", "reason"), [(15, "lost"), (16, "needs a reset"), (999, "Unknown Error")])
def test_a_broken_gpu_keeps_nobody_from_reading_the_others(
    script: Script, driver: Driver, code: int, reason: str
) -> None:
    """The others keep their numbers."""
    uuids = script.gpus(4, nvlink_pairs=True)
    script.lose(uuids[1], code)
    inventory = read_inventory()
    assert [(part.index, part.uuid) for part in inventory.devices] == [(0, uuids[0]), (2, uuids[2]), (3, uuids[3])]
    assert list(inventory.silent) == [1]
    assert reason in inventory.silent[1]
    assert {(link.a, link.b) for link in inventory.links} == {(0, 2), (0, 3), (2, 3)}


def test_a_gpu_that_is_lost_while_it_is_read_counts_as_silent(script: Script, driver: Driver) -> None:
    """It told its UUID and then no more."""
    uuids = script.gpus(2)
    script.error("nvmlDeviceGetName", 15, uuids[0])
    inventory = read_inventory()
    assert [part.uuid for part in inventory.devices] == [uuids[1]]
    assert inventory.silent == {0: "the driver has lost the GPU"}


def test_a_gpu_that_was_reset_is_read_again(script: Script, driver: Driver) -> None:
    """NVML finds it at a new start."""
    uuids = script.gpus(2)
    script.lose(uuids[0])
    assert len(read_inventory().devices) == 1
    script.find(uuids[0])
    driver.__exit__()
    driver.__enter__()
    assert [part.uuid for part in read_inventory().devices] == uuids


def test_a_reboot_may_number_the_gpus_anew(script: Script, driver: Driver) -> None:
    """The UUIDs stay."""
    uuids = script.gpus(3)
    script.order([uuids[2], uuids[0]])
    assert [(part.index, part.uuid) for part in read_inventory().devices] == [(0, uuids[2]), (1, uuids[0])]


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlSystemGetDriverVersion",
    ],
)
@pytest.mark.parametrize("code", [3, 4, 13])
def test_what_a_driver_cannot_tell_is_left_out(script: Script, driver: Driver, function: str, code: int) -> None:
    """Not supported, not permitted, not there: the GPU can still be allocated."""
    uuids = script.gpus(1)
    script.error(function, code)
    inventory = read_inventory()
    assert [part.uuid for part in inventory.devices] == uuids
    assert inventory.silent == {}


def test_a_gpu_whose_name_is_no_text_is_read_without_it(script: Script, driver: Driver) -> None:
    """A board's memory may hold anything."""
    uuids = script.gpus(2, model="NVIDIA \udcff")
    assert [(part.uuid, part.model) for part in read_inventory().devices] == [(uuid, "") for uuid in uuids]


@pytest.mark.parametrize("bus_id", ["", "N/A", "?:?"])
def test_what_is_no_pci_address_is_none(bus_id: str) -> None:
    """Of a GPU that isn't on such a bus, or the other end of a link to something else."""
    assert _pci(lambda: SimpleNamespace(busId=bus_id)) == ""


@pytest.mark.parametrize("text", ["-1\n", "", "?\n"])
def test_a_gpu_without_a_numa_node_has_none(script: Script, driver: Driver, tmp_path: Path, text: str) -> None:
    """Linux writes -1 on a machine with one node."""
    script.gpus(1)
    script.numa(tmp_path)
    (tmp_path / "bus/pci/devices/0000:10:00.0/numa_node").write_text(text)
    assert read_inventory(tmp_path).devices[0].numa_node is None


def test_an_inventory_goes_through_json(script: Script, driver: Driver) -> None:
    """It is what an agent reports."""
    script.gpus(2, nvlink_pairs=True)
    inventory = read_inventory()
    assert msgspec.json.decode(msgspec.json.encode(inventory), type=Inventory) == inventory
