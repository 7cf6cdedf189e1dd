"""The lines of tables of devices in use: one for each device, and below it one for each process.

Cells are plain and may hold control characters of others' names: who prints them escapes them.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from deviceshare.domain.answers.pod_view import PodDeviceView, PodView
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage
from deviceshare.domain.wording import listed

NONE: Final = "-"
POD_COLUMNS: Final = ("DEVICE", "UTIL", "MEMORY (MiB)", "MODEL / PROCESS", "PID", "UUID / CONTAINER OR POD")
SHOWN_MATES: Final = 8

Cells = tuple[str, ...]


def numbers(device: DeviceUsage | PodDeviceView) -> tuple[str, str, str]:
    """Index, utilization and memory."""
    used = NONE if device.utilization is None else f"{device.utilization}%"
    memory = (NONE if each is None else str(each) for each in (device.memory_used_mib, device.memory_total_mib))
    return str(device.index), used, " / ".join(memory)


def processes(device: DeviceUsage | PodDeviceView) -> Iterator[tuple[str, DeviceProcess]]:
    """Processes with their memory, the largest first."""
    for process in sorted(device.processes, key=lambda each: (-each.memory_mib, each.pid)):
        # 0 means that the driver doesn't report this process's memory.
        yield str(process.memory_mib) if process.memory_mib else NONE, process


def pod_rows(devices: Iterable[PodDeviceView]) -> Iterator[Cells]:
    """The lines of one pod's devices, under POD_COLUMNS: its own processes, and the other pods' together."""
    for device in devices:
        yield *numbers(device), device.model, "", device.uuid
        for memory, process in processes(device):
            yield "", "", memory, process.name or NONE, str(process.pid), process.container
        for mate in device.mates:
            count = f"{mate.processes} process{'es' if mate.processes > 1 else ''}"
            yield "", "", str(mate.memory_mib) if mate.memory_mib else NONE, count, "", f"pod {mate.pod}"


def pod_lines(view: PodView) -> Iterator[str]:
    """The sentences above and below a pod's table."""
    alone = view.holder == f"pod {view.pod}"
    yield f"pod {view.pod}{'' if alone else f' of {view.holder}'} on node {view.node}, {view.time or 'not read yet'}"
    if view.mates:
        yield f"shares its devices with {listed([f'pod {each}' for each in view.mates], most=SHOWN_MATES)}"
    for device in view.devices:
        name = f"{device.resource} {device.index}"
        if part := _part(device.part_mib, device.part_percent):
            yield f"has {part} of {name}, of which it uses {sum(each.memory_mib for each in device.processes)} MiB"
        for each in device.parts if len(device.parts) > 1 else ():
            part = _part(each.memory_mib, each.percent)
            yield f"container {each.container} has {part} of {name}, of which it uses {each.used_mib} MiB"
        if device.former:
            yield f"{name} was replaced: restart the containers of this pod, so that they get the others"
        if device.unhealthy:
            yield f"{name} is unhealthy: {device.unhealthy}"


def _part(mib: int | None, hundredths: int | None) -> str:
    percent = "" if hundredths is None else f"{hundredths} %"
    memory = "" if mib is None else f"{mib} MiB"
    return f"{memory} ({percent})" if memory and percent else memory or percent
