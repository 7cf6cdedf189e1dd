"""Tables of devices in use: a line for each device, and below it one for each of its processes."""

from collections.abc import Iterator

from deviceshare.cli.agents import DeviceNow, NodeNow
from deviceshare.cli.output import Cell, Grid, group_name, joined, styled, table
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage

NONE = "-"


def cluster_table(nodes: list[NodeNow]) -> Grid:
    """The devices of nodes whose agents answered."""
    made = table("NODE", "DEVICE", "UTIL", "MEMORY (MiB)", "GROUP / POD", "CONTAINER", "MODEL / PROCESS", "PID", "")
    for node in nodes:
        for position, device in enumerate(node.devices):
            name = styled("" if position else node.node, "bold")
            holders = joined(*map(group_name, device.groups), between=", ") if device.groups else _sharers(device)
            made.add_row(name, *_numbers(device), holders, "", device.model, "", styled(device.unhealthy, "red"))
            for memory, process in _processes(device):
                whose = styled(process.pod or "no pod", "" if process.pod else "dim")
                trespass = styled("trespass" if process.trespass else "", "red")
                row = (whose, process.container, process.name or NONE, str(process.pid), trespass)
                made.add_row("", "", "", memory, *row)
    return made


def _sharers(device: DeviceNow) -> Cell:
    """The one pod with a part of it, or how many have one."""
    if len(device.parts) == 1:
        return str(device.parts[0])
    return f"{len(device.parts)} pods share it" if device.parts else NONE


def pod_table(devices: list[DeviceUsage]) -> Grid:
    """One pod's devices, without columns for the holder."""
    made = table("DEVICE", "UTIL", "MEMORY (MiB)", "MODEL / PROCESS", "PID")
    for device in devices:
        made.add_row(*_numbers(device), device.model, "")
        for memory, process in _processes(device):
            made.add_row("", "", memory, process.name or NONE, str(process.pid))
    return made


def _numbers(device: DeviceUsage) -> tuple[str, str, str]:
    used = NONE if device.utilization is None else f"{device.utilization}%"
    return str(device.index), used, f"{device.memory_used_mib} / {device.memory_total_mib}"


def _processes(device: DeviceUsage) -> Iterator[tuple[str, DeviceProcess]]:
    """Processes by memory, the largest first."""
    for process in sorted(device.processes, key=lambda each: (-each.memory_mib, each.pid)):
        # 0 means that the driver doesn't report this process's memory.
        yield str(process.memory_mib) if process.memory_mib else NONE, process
