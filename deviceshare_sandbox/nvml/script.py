"""What the library answers, one fact in a line. Each change is seen by the next call of NVML, in whatever process."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from deviceshare_sandbox.nvml.library import VARIABLE

H100: Final = "NVIDIA H100 80GB HBM3"
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
SWITCHES: Final = 4

SAME_SWITCH: Final = 10
SAME_NUMA_NODE: Final = 40
OTHER_NUMA_NODE: Final = 50
"""Levels of nvmlDeviceGetTopologyCommonAncestor."""


class Script:
    """A machine's GPUs as NVML shows them, written to `path`."""

    def __init__(self, path: Path, *, driver: str = "550.54.15") -> None:
        self.path = path
        self._lines: list[tuple[str, ...]] = [("driver", driver)]
        self._write()

    def environment(self, library: Path) -> dict[str, str]:
        """What makes a process load the library and follow this script."""
        return {"LD_LIBRARY_PATH": str(library.parent), VARIABLE: str(self.path)}

    def gpus(
        self,
        count: int,
        *,
        model: str = H100,
        memory_mib: int = 81559,
        nvlink_pairs: bool = False,
        nvswitch: bool = False,
        lanes: int = 4,
        active: bool = True,
        ancestor: int | None = None,
    ) -> list[str]:
        """Gives the machine these GPUs, and takes away what it had; returns their UUIDs.

        Two neighbours share a PCIe switch, four a NUMA node (`numa` writes what Linux says of it). `nvlink_pairs` joins
        two neighbours by NVLinks, `nvswitch` joins all; the links are up while `active`. `ancestor` says how PCIe joins
        each two instead.
        """
        uuids = [uuid(i) for i in range(count)]
        self._lines = [line for line in self._lines if line[0] in ("driver", "xid", "error", "limits")]
        self._lines += [("gpu", uuids[i], address(i), str(memory_mib), model) for i in range(count)]
        for i in range(count):
            for lane in range(lanes):
                if nvlink_pairs and i ^ 1 < count:
                    self._lines.append(("nvlink", uuids[i], address(i ^ 1), "gpu" if active else "off"))
                if nvswitch:
                    self._lines.append(("nvlink", uuids[i], f"00000000:C{lane % SWITCHES:X}:00.0", "switch"))
            for j in range(i + 1, count):
                level = _ancestor(i, j) if ancestor is None else ancestor
                self._lines.append(("ancestor", uuids[i], uuids[j], str(level)))
        self._write()
        return uuids

    def order(self, uuids: Sequence[str]) -> None:
        """Numbers the GPUs anew, as a reboot may; a GPU that isn't named is gone."""
        known = {line[1]: line for line in self._lines if line[0] == "gpu"}
        self._lines = [line for line in self._lines if line[0] != "gpu"] + [known[each] for each in uuids]
        self._write()

    def numa(self, sysfs: Path) -> None:
        """Writes below `sysfs` what Linux says below /sys of the GPUs' NUMA nodes: four to a node."""
        for i, line in enumerate(line for line in self._lines if line[0] == "gpu"):
            directory = sysfs / "bus/pci/devices" / line[2].lower().removeprefix("0000")
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "numa_node").write_text(f"{i // 4}\n")

    def xid(self, uuid: str, number: int) -> None:
        """An Xid error happens, once for each event set that is there."""
        self._add("xid", uuid, str(number))

    def lose(self, uuid: str, code: int = GPU_IS_LOST) -> None:
        """From now on every call about the GPU ends in this error, until it is found."""
        self._add("lost", uuid, str(code))

    def find(self, uuid: str) -> None:
        """The GPU answers again, as after a reset."""
        self._remove("lost", uuid)

    def mig(self, uuid: str, *, on: bool = True) -> None:
        """Splits the GPU by MIG, or unites it again."""
        self._remove("mig", uuid)
        if on:
            self._add("mig", uuid)

    def use(self, uuid: str, *, used_mib: int, percent: int = 0) -> None:
        """How much of the GPU's memory and time is used."""
        self._remove("use", uuid)
        self._add("use", uuid, str(used_mib), str(percent))

    def processes(
        self, uuid: str, mib: Mapping[int, int | None] | Sequence[tuple[int, int]], *, kind: str = "compute"
    ) -> None:
        """The processes on the GPU, all that there are of this kind: PID and memory in MiB, None where it isn't known.

        `kind` is compute, graphics or mps. With MIG a PID may come several times.
        """
        entries = mib.items() if isinstance(mib, Mapping) else mib
        self._lines = [line for line in self._lines if line[:3] != ("process", uuid, kind)]
        self._lines += [("process", uuid, kind, str(pid), "-" if m is None else str(m)) for pid, m in entries]
        self._write()

    def limit_memory(self, directory: Path) -> None:
        """Gives the driver memory limits by control group (r615 and later), and keeps them in this directory."""
        self._add("limits", str(directory))

    def error(self, function: str, code: int, uuid: str = "") -> None:
        """Makes a function of NVML end in this error, for all GPUs or for one."""
        self._add("error", function, uuid, str(code))

    def _add(self, *line: str) -> None:
        self._lines.append(line)
        self._write()

    def _remove(self, verb: str, uuid: str) -> None:
        self._lines = [line for line in self._lines if line[:2] != (verb, uuid)]
        self._write()

    def _write(self) -> None:
        # In one step: who reads meanwhile finds all of the old or all of the new.
        draft = self.path.with_name(f"{self.path.name}.draft")
        draft.write_text("".join("\t".join(line) + "\n" for line in self._lines), errors="surrogateescape")
        draft.replace(self.path)


def _ancestor(one: int, other: int) -> int:
    if one // 2 == other // 2:
        return SAME_SWITCH
    return SAME_NUMA_NODE if one // 4 == other // 4 else OTHER_NUMA_NODE


def uuid(index: int) -> str:
    """The UUID of the GPU that `gpus` put here."""
    return f"GPU-{index:08x}-0000-4000-8000-{index:012x}"


def address(index: int) -> str:
    """Its PCI address, as NVML writes it."""
    return f"00000000:{0x10 + index:02X}:00.0"
