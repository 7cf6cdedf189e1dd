"""Tables of devices in use: a line for each device, and below it one for each of its processes."""

from deviceshare.cli.agents import DeviceNow, NodeNow
from deviceshare.cli.output import Cell, Grid, group_name, joined, styled, table
from deviceshare.domain.answers.pod_view import NONE, POD_COLUMNS, PodDeviceView, numbers, pod_rows, processes


def cluster_table(nodes: list[NodeNow]) -> Grid:
    """The devices of nodes whose agents answered."""
    made = table("NODE", "DEVICE", "UTIL", "MEMORY (MiB)", "GROUP / POD", "CONTAINER", "MODEL / PROCESS", "PID", "")
    for node in nodes:
        for position, device in enumerate(node.devices):
            greedy = {(share.pod, share.container) for share in device.shares if share.exceeded}
            name = styled("" if position else node.node, "bold")
            holders = joined(*map(group_name, device.groups), between=", ") if device.groups else _sharers(device)
            made.add_row(
                name,
                *_numbers(device, measured=not node.unmeasured),
                holders,
                "",
                device.model,
                "",
                styled(device.unhealthy, "red"),
            )
            for memory, process in processes(device):
                whose = styled(process.pod or "no pod", "" if process.pod else "dim")
                over = {(process.pod, process.container), (process.pod, "")} & greedy
                fault = "trespass" if process.trespass else "more than its share" if over else ""
                row = (whose, process.container, process.name or NONE, str(process.pid), styled(fault, "red"))
                made.add_row("", "", "", memory, *row)
    return made


def _numbers(device: DeviceNow, *, measured: bool) -> tuple[str, str, str]:
    if measured:
        return numbers(device)
    return str(device.index), NONE, f"{NONE} / {device.memory_total_mib or NONE}"


def _sharers(device: DeviceNow) -> Cell:
    """The one pod with a part of it, or how many have one."""
    if len(device.parts) == 1:
        return str(device.parts[0])
    return f"{len(device.parts)} pods share it" if device.parts else NONE


def pod_table(devices: list[PodDeviceView]) -> Grid:
    """The devices of the pod that this runs in."""
    made = table(*POD_COLUMNS)
    for row in pod_rows(devices):
        made.add_row(*row)
    return made
