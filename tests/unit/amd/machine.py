"""A machine with AMD's GPUs, by its files: sysfs as amdgpu writes it, and control groups as the kernel keeps them."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

MIB = 1 << 20
UNIQUE = 0x8F1E_2D3C_4B5A_6978


class Sysfs:
    """What amdgpu and KFD show (docs.kernel.org/gpu/amdgpu, `kfd_topology.c`)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.driver = root / "bus/pci/drivers/amdgpu"
        self.nodes = root / "class/kfd/kfd/topology/nodes"
        (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        self.driver.mkdir(parents=True)
        (self.driver / "bind").touch()
        self.node(0)

    def gpu(self, pci: str, **files: Any) -> Path:
        """One that is whole; None for a file that it lacks."""
        number = len(self.gpus)
        every = {
            "vendor": "0x1002",
            "class": "0x038000",
            "unique_id": f"{UNIQUE + number:016x}",
            "product_name": "AMD Instinct MI300X",
            "mem_info_vram_total": 192 * 1024 * MIB,
            "mem_info_vram_used": 300 * MIB,
            "gpu_busy_percent": 7,
            "numa_node": -1,
        } | files
        directory = self.root / "bus/pci/devices" / pci
        directory.mkdir()
        for name, value in every.items():
            if value is not None:
                (directory / name).write_text(f"{value}\n")
        (self.driver / pci).symlink_to(directory)
        self.node(128 + number)
        return directory

    @property
    def gpus(self) -> list[Path]:
        return [each for each in self.driver.iterdir() if each.is_dir()]

    def node(self, render_minor: int) -> None:
        """A node of KFD's topology: a CPU has no device file."""
        directory = self.nodes / str(len(list(self.nodes.glob("*"))))
        directory.mkdir(parents=True)
        (directory / "properties").write_text(f"cpu_cores_count 0\ndrm_render_minor {render_minor}\nhive_id 0\n")


class DmemKernel:
    """Control groups with `dmem` (`kernel/cgroup/dmem.c`): a line for each region, of which a write sets one."""

    def __init__(self, root: Path, regions: dict[str, int]) -> None:
        self.root = root
        self.regions = list(regions)
        self._mutex = threading.Lock()
        self.refused: set[str] = set()
        """Names of files that may not be written."""
        root.mkdir(exist_ok=True)
        (root / "cgroup.controllers").write_text("cpu memory dmem\n")
        (root / "cgroup.subtree_control").write_text("cpu memory\n")
        (root / "dmem.capacity").write_text("".join(f"{name} {size}\n" for name, size in regions.items()))

    def make(self, group: Path) -> None:
        """A group, and those above it: with all their files at once."""
        for each in [*reversed(group.relative_to(self.root).parents), group.relative_to(self.root)]:
            directory, draft = self.root / each, self.root.with_name("draft")
            with self._mutex:
                if not directory.exists():
                    draft.mkdir()
                    (draft / "cgroup.subtree_control").write_text("cpu memory\n")
                    if "dmem" in (directory.parent / "cgroup.subtree_control").read_text().split():
                        self._appear(draft)
                    draft.rename(directory)

    def _appear(self, group: Path) -> None:
        """The files of a group to which the controller is passed on."""
        for name, value in (("max", "max"), ("min", "0"), ("low", "0"), ("current", "0")):
            _replace(group / f"dmem.{name}", "".join(f"{region} {value}\n" for region in self.regions))

    def write(self, path: Path, text: str) -> None:
        """As write(2) to one of its files."""
        with self._mutex:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        if path.name in self.refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if path.name == "cgroup.subtree_control":
            assert text == "+dmem"
            _replace(path, f"{path.read_text().strip()} dmem\n")
            for child in path.parent.iterdir():
                if child.is_dir() and not (child / "dmem.max").exists():
                    self._appear(child)
            return
        region, _, value = text.partition(" ")
        if region not in self.regions or not (value == "max" or value.isdecimal()):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        if path.name == "dmem.max" and value != "max" and self.value(path.parent, "current", region) > int(value):
            return  # page_counter_set_max refuses, and nobody looks.
        self.set(path.parent, path.name.partition(".")[2], region, value)

    def set(self, group: Path, name: str, region: str, value: object) -> None:
        lines = dict(line.split() for line in (group / f"dmem.{name}").read_text().splitlines())
        lines[region] = str(value)
        _replace(group / f"dmem.{name}", "".join(f"{key} {each}\n" for key, each in lines.items()))

    def value(self, group: Path, name: str, region: str) -> int:
        """Of nothing that was set 0 or, of `max`, 2 to the power of 64 less 1."""
        path = group / f"dmem.{name}"
        lines = dict(line.split() for line in path.read_text().splitlines()) if path.exists() else {}
        found = lines.get(region, "max" if name == "max" else "0")
        return (1 << 64) - 1 if found == "max" else int(found)


def _replace(path: Path, text: str) -> None:
    # In one step, as the kernel does.
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)
