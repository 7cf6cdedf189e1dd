"""The GPUs' current memory use, utilization and processes."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pynvml
from msgspec import Struct

from deviceshare.nvidia.driver import MIB, Gpu, NvmlRefused, ask_if_known, find_gpus, read_memory

_LISTS: Final = (
    (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2),
    (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
    (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
)
"""Each list's function, and the one that drivers before R510 have."""


class ProcessUse(Struct, frozen=True):
    """A process with a context on a GPU."""

    pid: int
    memory_mib: int | None
    """None where the driver doesn't report it, as inside some virtual machines."""


class DeviceUse(Struct, frozen=True):
    """One GPU. None stands for what this driver or this GPU doesn't report."""

    index: int
    uuid: str
    memory_used_mib: int | None
    """Without what the driver reserves, where it reports that separately."""
    memory_total_mib: int | None
    utilization: int | None
    """Percent of the driver's last sample period in which a kernel ran; GPUs split by MIG have none."""
    processes: list[ProcessUse]
    """By PID, of compute, graphics and MPS, each process once."""


def read_usage() -> list[DeviceUse]:
    """Reads all GPUs that answer, by index; needs a started Driver. Raises NoDriver and NvmlRefused."""
    uses = []
    for gpu in find_gpus()[0]:
        try:
            uses.append(_use(gpu))
        except NvmlRefused:
            continue  # Lost meanwhile; the inventory reports it.
    return uses


def _use(gpu: Gpu) -> DeviceUse:
    memory = read_memory(gpu)
    rates = ask_if_known(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
    return DeviceUse(
        index=gpu.index,
        uuid=gpu.uuid,
        memory_used_mib=None if memory is None else memory.used // MIB,
        memory_total_mib=None if memory is None else memory.total // MIB,
        utilization=None if rates is None else rates.gpu,
        processes=_processes(gpu),
    )


def _processes(gpu: Gpu) -> list[ProcessUse]:
    """A process in two lists has the same memory in both; one list has it once for each MIG instance it uses."""
    found: dict[int, int | None] = {}
    for present, former in _LISTS:
        for pid, used in _listed(gpu, present, former).items():
            known = found.get(pid)
            found[pid] = known if used is None else max(used, known or 0)
    return [ProcessUse(pid, None if used is None else used // MIB) for pid, used in sorted(found.items())]


def _listed(gpu: Gpu, present: Callable[..., Any], former: Callable[..., Any]) -> dict[int, int | None]:
    """PID → bytes."""
    entries = ask_if_known(present, gpu.handle)
    if entries is None:
        entries = ask_if_known(former, gpu.handle) or []
    sums = Counter[int]()
    for entry in entries:
        sums[entry.pid] += entry.usedGpuMemory or 0
    known = {entry.pid for entry in entries if entry.usedGpuMemory is not None}
    return {pid: used if pid in known else None for pid, used in sums.items()}
