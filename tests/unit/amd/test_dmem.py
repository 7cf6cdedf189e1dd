"""Limits of AMD's GPUs' memory, over files that are kept as the kernel keeps them."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from deviceshare import amd, nvidia
from deviceshare.agent.process import _limit_driver
from deviceshare.agent.settings import AgentSettings
from deviceshare.domain.device_health.examination import DriverTrouble
from deviceshare.domain.device_health.memory_limits import UNLIMITED, GroupMemory
from tests.unit.amd.machine import MIB, UNIQUE, DmemKernel, Sysfs

GPU, OTHER = f"{UNIQUE:#x}", f"{UNIQUE + 1:#x}"
REGION, OTHER_REGION = "drm/0000:05:00.0/vram", "drm/0000:06:00.0/vram"


@pytest.fixture
def kernel(tmp_path: Path) -> DmemKernel:
    sysfs = Sysfs(tmp_path / "sys")
    sysfs.gpu("0000:05:00.0")
    sysfs.gpu("0000:06:00.0")
    return DmemKernel(tmp_path / "cgroup", {REGION: 192 << 30, OTHER_REGION: 192 << 30})


@pytest.fixture
def dmem(kernel: DmemKernel) -> amd.Dmem:
    return amd.Dmem(kernel.root.parent / "sys", kernel.root, kernel.write)


def a_group(kernel: DmemKernel, name: str) -> Path:
    kernel.make(kernel.root / "kubepods/burstable" / name)
    return kernel.root / "kubepods/burstable" / name


def limits(soft: int, hard: int) -> GroupMemory:
    return GroupMemory(soft * MIB, hard * MIB)


def test_a_limit_is_of_one_gpu_and_the_controller_is_passed_on_down_to_the_group(
    kernel: DmemKernel, dmem: amd.Dmem
) -> None:
    """Before it is, the group has none."""
    group = a_group(kernel, "pod1/main")
    assert dmem.read_limits(GPU, group) == UNLIMITED and not (group / "dmem.max").exists()
    with dmem:
        dmem.set_limits(GPU, group, limits(8192, 16384))
        dmem.set_limits(OTHER, group, limits(1024, 1024))
    assert dmem.read_limits(GPU, group) == limits(8192, 16384)
    assert dmem.read_limits(OTHER, group) == limits(1024, 1024)
    assert (group / "dmem.max").read_text() == f"{REGION} {16384 * MIB}\n{OTHER_REGION} {1024 * MIB}\n"
    dmem.set_limits(GPU, group, UNLIMITED)
    assert dmem.read_limits(GPU, group) == UNLIMITED
    assert (group / "cgroup.subtree_control").read_text() == "cpu memory\n"


def test_what_is_kept_for_a_container_is_kept_for_the_groups_above_it(kernel: DmemKernel, dmem: amd.Dmem) -> None:
    """And no more than that: the kernel divides the rest among all below."""
    for name, soft in (("pod1/a", 100), ("pod1/b", 20), ("pod2/a", 3)):
        dmem.set_limits(GPU, a_group(kernel, name), limits(soft, 200))
    top = kernel.root / "kubepods"
    kept = [kernel.value(each, "min", REGION) // MIB for each in (top, top / "burstable", top / "burstable/pod1")]
    assert kept == [123, 123, 120]
    dmem.set_limits(GPU, a_group(kernel, "pod1/a"), limits(1, 1))
    assert kernel.value(top, "min", REGION) // MIB == 24
    assert kernel.value(top, "max", REGION) == UNLIMITED.hard


def test_a_limit_below_what_is_in_use_is_refused_though_the_kernel_says_nothing(
    kernel: DmemKernel, dmem: amd.Dmem
) -> None:
    group = a_group(kernel, "pod1/main")
    dmem.set_limits(GPU, group, limits(8192, 8192))
    kernel.set(group, "current", REGION, 6000 * MIB)
    with pytest.raises(DriverTrouble, match="more is in use"):
        dmem.set_limits(GPU, group, limits(4096, 4096))
    assert dmem.read_limits(GPU, group) == GroupMemory(8192 * MIB, 8192 * MIB, 6000 * MIB)


def test_a_gpu_or_a_group_that_is_gone_is_trouble(kernel: DmemKernel, dmem: amd.Dmem) -> None:
    with pytest.raises(DriverTrouble, match="no GPU 0x1"):
        dmem.read_limits("0x1", a_group(kernel, "pod1/main"))
    with pytest.raises(DriverTrouble, match="No such file"):
        dmem.set_limits(GPU, kernel.root / "kubepods/burstable/pod2/main", limits(1, 1))


@pytest.mark.parametrize("name", ["vram", "vram0"])
def test_a_node_can_whose_kernel_counts_the_memory_of_each_gpu(tmp_path: Path, name: str) -> None:
    """The agent has the root pass the controller on before containers start, so that all they allocate is counted."""
    Sysfs(tmp_path / "sys").gpu("0000:05:00.0")
    kernel = DmemKernel(tmp_path / "cgroup", {f"drm/0000:05:00.0/{name}": 1 << 30})
    assert amd.Dmem(tmp_path / "sys", kernel.root, kernel.write).limits_obstacle() == ""
    assert (kernel.root / "cgroup.subtree_control").read_text() == "cpu memory dmem\n"


def test_a_node_that_can_not_says_why_and_what_to_do(kernel: DmemKernel, dmem: amd.Dmem) -> None:
    kernel.refused.add("cgroup.subtree_control")
    assert "doesn't pass on dmem, and the agent may not change it (Permission denied)" in dmem.limits_obstacle()
    with pytest.raises(DriverTrouble, match="doesn't pass on dmem"):
        dmem.set_limits(GPU, a_group(kernel, "pod1/main"), limits(1, 1))
    kernel.refused.clear()
    (kernel.root.parent / "sys/bus/pci/devices/0000:06:00.0/unique_id").unlink()
    assert "GPU 0000:06:00.0 has no unique ID" in dmem.limits_obstacle()
    (kernel.root / "dmem.capacity").write_text(f"{REGION} 1\n")
    assert "amdgpu doesn't have the kernel count memory of GPU 0000:06:00.0" in dmem.limits_obstacle()
    (kernel.root / "dmem.capacity").unlink()
    assert "boot 6.14 or later" in dmem.limits_obstacle()


def test_an_agent_limits_memory_by_what_its_node_has(kernel: DmemKernel, tmp_path: Path) -> None:
    for sysfs, driver in ((kernel.root.parent / "sys", amd.Dmem), (tmp_path, nvidia.Driver)):
        settings = cast("AgentSettings", SimpleNamespace(sys_root=sysfs, cgroup_root=kernel.root))
        assert isinstance(_limit_driver(settings), driver)


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """By the writer that agents have."""
    with pytest.raises(FileNotFoundError):
        amd._write(tmp_path / "dmem.max", "drm/0000:05:00.0/vram 1")
    (tmp_path / "dmem.max").touch()
    amd._write(tmp_path / "dmem.max", "drm/0000:05:00.0/vram 1")
    assert (tmp_path / "dmem.max").read_text() == "drm/0000:05:00.0/vram 1"
