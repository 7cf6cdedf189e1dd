"""AMD's GPUs, read through sysfs without a library of AMD's, and limits of their memory by the kernel.

A device's index is the one that AMD's container runtime takes in AMD_VISIBLE_DEVICES: its place among the PCI addresses
of amdgpu, sorted, without those that KFD doesn't know, and with partitions counted one by one (ROCm/container-toolkit
1.3, `internal/amdgpu`, GetAMDGPUs). AMD's device plugin has no numbers, it names devices by PCI address
(ROCm/k8s-device-plugin, `internal/pkg/amdgpu`). So where KFD knows more or fewer GPUs, no device is reported. The UUID
is the driver's unique ID as that runtime takes it: hexadecimal, with 0x and no zeros before it.

Files of a GPU: https://docs.kernel.org/gpu/amdgpu/driver-misc.html and `thermal.html`. It was never run on one.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from deviceshare.domain.device_health.examination import DeviceUse, DriverTrouble, Inventory
from deviceshare.domain.device_health.memory_limits import MIB, UNLIMITED, GroupMemory
from deviceshare.domain.objects.hardware import DMEM, Part
from deviceshare.domain.vendors import AMD

_ADDRESS: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GPU_NODE: Final = re.compile(r"^drm_render_minor [1-9]", re.MULTILINE)
_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
"""How the classes of display controllers begin."""
_WHOLE: Final = "SPX"


def is_here(sysfs: Path) -> bool:
    """Whether the node's GPUs are AMD's. Beside one of NVIDIA's, whatever its driver does, they are a CPU's own."""
    return bool(_gpus(sysfs)) and not any(
        _text(each / "vendor") == _NVIDIA and _text(each / "class").startswith(_DISPLAY)
        for each in (sysfs / "bus/pci/devices").glob("*")
    )


def read_inventory(sysfs: Path) -> Inventory:
    """Reads the GPUs, without links. Raises DriverTrouble where their numbers aren't known."""
    gpus, parts, silent = _gpus(sysfs), list[Part](), dict[int, str]()
    for gpu in gpus:
        if (partition := _text(gpu / "current_compute_partition") or _WHOLE) != _WHOLE:
            raise DriverTrouble(f"GPU {gpu.name} is partitioned ({partition}): the agent knows whole GPUs only")
    if (known := _known_to_kfd(sysfs)) != len(gpus):
        what = f"amdgpu has {len(gpus)} GPUs and KFD {known}, so AMD's runtime may number them otherwise"
        raise DriverTrouble(f"{what}: see the node's kernel log")
    for index, gpu in enumerate(gpus):
        try:
            parts.append(_part(index, gpu))
        except (OSError, ValueError) as error:  # as while it is reset
            silent[index] = f"amdgpu refused: {error}"
    uuids = [part.uuid for part in parts if part.uuid]
    if len(set(uuids)) != len(uuids):
        raise DriverTrouble("two GPUs of amdgpu have one unique ID: see the node's kernel log")
    return Inventory(_text(sysfs / "module/amdgpu/version"), parts, [], silent)


def read_usage(sysfs: Path) -> list[DeviceUse]:
    """Reads all GPUs that answer, by index; their processes are unknown."""
    uses = []
    for index, gpu in enumerate(_gpus(sysfs)):
        with suppress(OSError, ValueError):
            part, used = _part(index, gpu), _number(gpu / "mem_info_vram_used")
            mib = None if used is None else used // MIB
            uses.append(DeviceUse(index, part.uuid, mib, part.memory_mib, _number(gpu / "gpu_busy_percent")))
    return uses


def _gpus(sysfs: Path) -> list[Path]:
    """The directory of each, by index."""
    return sorted(each for each in (sysfs / "bus/pci/drivers/amdgpu").glob("*") if _ADDRESS.fullmatch(each.name))


def _known_to_kfd(sysfs: Path) -> int:
    """How many GPUs and partitions it has. Of a GPU alone it refuses properties to who may not open its device file."""
    count = 0
    for node in (sysfs / "class/kfd/kfd/topology/nodes").glob("*/properties"):
        try:
            count += _GPU_NODE.search(node.read_text()) is not None
        except PermissionError:
            count += 1
        except OSError:
            continue  # It has gone.
    return count


def _part(index: int, gpu: Path) -> Part:
    """Raises OSError and ValueError."""
    return Part(
        AMD.resource,
        index,
        _uuid(gpu),
        model=_text(gpu / "product_name"),
        memory_mib=int((gpu / "mem_info_vram_total").read_text()) // MIB,
        pci=gpu.name,
        numa_node=_number(gpu / "numa_node"),
    )


def _uuid(gpu: Path) -> str:
    """ "" of a GPU that has none: the file isn't there, or empty. Raises OSError and ValueError."""
    try:
        number = int((gpu / "unique_id").read_text().strip() or "0", 16)
    except FileNotFoundError:
        return ""
    return f"{number:#x}" if number else ""


def _number(path: Path) -> int | None:
    """None where it isn't shown, or negative, as numa_node is where there is one only."""
    return int(text) if (text := _text(path)).isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    with path.open("r+b", buffering=0) as file:  # not created where it isn't there
        file.write(text.encode())


class Dmem:
    """Limits of GPUs' memory by the kernel, for each control group and region: https://docs.kernel.org/admin-guide/cgroup-v2.html.

    The kernel reads and writes a region a line (`kernel/cgroup/dmem.c`). amdgpu's is called `drm/ADDRESS/vram`.
    """

    mode: Final = DMEM

    def __init__(self, sysfs: Path, root: Path, write: Callable[[Path, str], object] = _write) -> None:
        """`root` is where control groups are mounted."""
        self._sysfs = sysfs
        self._root = root
        self._write = write

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""

    def limits_obstacle(self) -> str:
        """Why memory can't be limited by control groups here, with the cure; "" where it can."""
        try:
            there = (self._root / "dmem.capacity").read_text()
        except OSError:
            return "the kernel has no control of device memory: boot 6.14 or later, with CONFIG_CGROUP_DMEM"
        try:
            for gpu in _gpus(self._sysfs):
                if not _regions(there, gpu.name):
                    return f"amdgpu doesn't have the kernel count memory of GPU {gpu.name}: install a newer kernel"
                if not _uuid(gpu):
                    return f"GPU {gpu.name} has no unique ID, by which shares know it: use whole GPUs there"
            self._pass_on(self._root)
        except (OSError, ValueError, DriverTrouble) as error:
            return f"{error}"
        return ""

    def read_limits(self, uuid: str, group: Path) -> GroupMemory:
        """The control group's limits on a GPU. Raises DriverTrouble."""
        region = self._region(uuid)
        try:
            if not (group / "dmem.max").exists():
                return UNLIMITED  # The controller isn't passed on to it yet.
            soft, hard, used = (
                _value((group / f"dmem.{name}").read_text(), region) for name in ("min", "max", "current")
            )
        except OSError as error:
            raise DriverTrouble(f"{error}") from error
        return GroupMemory(soft, hard, used)

    def set_limits(self, uuid: str, group: Path, limits: GroupMemory) -> None:
        """Sets the control group's limits on a GPU. Raises DriverTrouble, also where it uses more than that."""
        region = self._region(uuid)
        try:
            for above in reversed(group.relative_to(self._root).parents):
                self._pass_on(self._root / above)
            hard = "max" if limits.hard == UNLIMITED.hard else limits.hard
            self._write(group / "dmem.max", f"{region} {hard}")
            if _value((group / "dmem.max").read_text(), region) != limits.hard:
                # It refuses silently (page_counter_set_max).
                raise DriverTrouble("the kernel kept the former limit, as where more is in use")
            self._write(group / "dmem.min", f"{region} {limits.soft}")
            # What is kept for a group counts as far as the groups above it keep it; what they keep beyond that is
            # everybody's below them. What has ended is subtracted with the next write, before which nobody wants it.
            for above in group.relative_to(self._root).parents[:-1]:
                kept = sum(_value(_text(each), region) for each in (self._root / above).glob("*/dmem.min"))
                self._write(self._root / above / "dmem.min", f"{region} {kept}")
        except OSError as error:
            raise DriverTrouble(f"{error}") from error

    def _pass_on(self, group: Path) -> None:
        """Has the controller count for the groups in this one. Runtimes do it where they enable all that there are."""
        control = group / "cgroup.subtree_control"
        if "dmem" not in control.read_text().split():
            try:
                self._write(control, "+dmem")
            except OSError as error:
                why = f"control group {group} doesn't pass on dmem, and the agent may not change it ({error.strerror})"
                raise DriverTrouble(
                    f"{why}: have the node's init system enable it in cgroup.subtree_control"
                ) from error

    def _region(self, uuid: str) -> str:
        capacity = _text(self._root / "dmem.capacity")
        for gpu in _gpus(self._sysfs):
            with suppress(OSError, ValueError):
                if _uuid(gpu) == uuid and (names := _regions(capacity, gpu.name)):
                    return names[0]
        raise DriverTrouble(f"amdgpu shows no GPU {uuid}, or the kernel doesn't count its memory")


def _regions(text: str, address: str) -> list[str]:
    """The names of a GPU's memory, as other drivers of the kernel number it, too: `vram`, `vram0`."""
    return [name for name in _by_region(text) if name.startswith(f"drm/{address}/vram")]


def _value(text: str, region: str) -> int:
    """Of a region that isn't there 0."""
    found = _by_region(text).get(region, "0")
    return UNLIMITED.hard if found == "max" else int(found)


def _by_region(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.rpartition(" ") for line in text.splitlines())}
