"""The GPUs of a node, with their models, memory, PCI addresses and links. One that doesn't answer hides no other."""

from pathlib import Path

import pynvml
from msgspec import Struct

from deviceshare.domain.objects.hardware import Link, Part
from deviceshare.domain.vendors import NVIDIA
from deviceshare.nvidia.driver import MIB, Gpu, NvmlRefused, ask_if_known, find_gpus, read_memory, read_pci
from deviceshare.nvidia.links import read_links


class Inventory(Struct, frozen=True):
    """A node's GPUs at one moment."""

    driver: str
    """The driver's version."""
    devices: list[Part]
    links: list[Link]
    silent: dict[int, str]
    """Why the GPU with this index doesn't answer; only an earlier inventory can identify it."""


def read_inventory(sysfs: Path = Path("/sys")) -> Inventory:
    """Reads the GPUs and how they are connected; needs a started Driver. `sysfs` is where Linux shows its devices.

    Raises:
        NoDriver: NVML is missing or not initialized.
        NvmlRefused: NVML doesn't report how many GPUs there are.
    """
    gpus, silent = find_gpus()
    read: list[tuple[Gpu, Part]] = []
    for gpu in gpus:
        try:
            read.append((gpu, _part(gpu, sysfs)))
        except NvmlRefused as error:
            silent[gpu.index] = str(error)
    return Inventory(
        driver=ask_if_known(pynvml.nvmlSystemGetDriverVersion) or "",
        devices=[part for _, part in read],
        links=read_links(read),
        silent=silent,
    )


def read_boot_id(proc: Path = Path("/proc")) -> str:
    """The kernel's ID of the current boot, the same in every container (random(4)). Raises OSError."""
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def _part(gpu: Gpu, sysfs: Path) -> Part:
    address = read_pci(pynvml.nvmlDeviceGetPciInfo, gpu.handle)
    memory = read_memory(gpu)
    mig = ask_if_known(pynvml.nvmlDeviceGetMigMode, gpu.handle)
    return Part(
        resource=NVIDIA.resource,
        index=gpu.index,
        uuid=gpu.uuid,
        model=ask_if_known(pynvml.nvmlDeviceGetName, gpu.handle) or "",
        memory_mib=0 if memory is None else memory.total // MIB,
        pci=address,
        numa_node=_numa_node(sysfs, address) if address else None,
        # The current mode, not the one after the next reset.
        mig=mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )


def _numa_node(sysfs: Path, address: str) -> int | None:
    """The NUMA node of the GPU's PCI slot; Linux writes -1 where there is only one or the BIOS reports none.

    nvmlDeviceGetNumaNodeId is something else: the node that the GPU's own memory is, where it is one.
    """
    try:
        node = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
