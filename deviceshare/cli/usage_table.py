"""Devices and what runs on them, drawn for people: a line for each device, and below it one for each process."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from deviceshare.cli.agents import DeviceNow, NodeNow
from deviceshare.cli.output import group_name, table
from deviceshare.domain.usage import DeviceUsage, Process

NONE = "-"


def cluster_table(nodes: list[NodeNow]) -> Table:
    """Of nodes whose agents answered."""
    made = table("NODE", "DEVICE", "UTIL", "MEMORY (MiB)", "GROUP / POD", "CONTAINER", "MODEL / PROCESS", "PID", "")
    for node in nodes:
        for position, device in enumerate(node.devices):
            name = Text("" if position else node.node, style="bold")
            holders = ", ".join(map(group_name, device.groups)) or NONE
            made.add_row(name, *_numbers(device), holders, "", escape(device.model), "", _ailment(device))
            for memory, process in _processes(device):
                whose = Text(process.pod or "no pod", style="" if process.pod else "dim")
                row = (whose, process.container, _name(process), str(process.pid), _trespass(process))
                made.add_row("", "", "", memory, *row)
    return made


def pod_table(devices: list[DeviceUsage]) -> Table:
    """Of one pod's devices; whose they are goes without saying."""
    made = table("DEVICE", "UTIL", "MEMORY (MiB)", "MODEL / PROCESS", "PID")
    for device in devices:
        made.add_row(*_numbers(device), escape(device.model), "")
        for memory, process in _processes(device):
            made.add_row("", "", memory, _name(process), str(process.pid))
    return made


def _numbers(device: DeviceUsage) -> tuple[str, str, str]:
    used = NONE if device.utilization is None else f"{device.utilization}%"
    return str(device.index), used, f"{device.memory_used_mib} / {device.memory_total_mib}"


def _processes(device: DeviceUsage) -> Iterator[tuple[str, Process]]:
    """The greatest first, each with its memory."""
    for process in sorted(device.processes, key=lambda each: (-each.memory_mib, each.pid)):
        # Drivers don't tell the memory of every process, and no process has none.
        yield str(process.memory_mib) if process.memory_mib else NONE, process


def _name(process: Process) -> str:
    """Anybody may give a program a name that would be a command to this table, or to the terminal."""
    return escape("".join(sign if sign.isprintable() else "?" for sign in process.name)) or NONE


def _ailment(device: DeviceNow) -> Text:
    return Text(device.unhealthy, style="red")


def _trespass(process: Process) -> Text:
    return Text("trespass" if process.trespass else "", style="red")
