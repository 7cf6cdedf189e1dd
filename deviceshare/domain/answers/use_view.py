"""The use of the cluster's devices as the page shows it: each device now, and the last hour as far as it is drawn."""

from collections.abc import Iterable
from typing import Final

from msgspec import Raw, Struct, field
from msgspec.structs import replace

from deviceshare.domain.objects.usage import MINUTES, UNKNOWN, DeviceHour, NodeUse

DETAILED: Final = 256
"""With more devices than this, only nodes get the last hour: their tiles are too small for lines."""


class NodeUseView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One node."""

    node: str
    time: str = ""
    hour: list[int] = field(default_factory=list)
    """The mean of its devices in each minute, as `DeviceHour.hour`."""
    devices: list[DeviceHour] = field(default_factory=list)


class UseView(Struct, frozen=True, rename="camel"):
    """The content of `/ui/use`."""

    seconds: float
    """After which to ask again."""
    agents: int
    """How many there are."""
    nodes: list[Raw]
    """A NodeUseView of each whose agent has answered, by name. Encoded once, when it answered: thousands at each look
    would delay kube-scheduler."""


def view_of_use(report: NodeUse, *, detailed: bool) -> NodeUseView:
    """What the page shows of a node; numbers that no driver reports are left out."""
    devices = [_sound(each) for each in report.devices]
    shown = devices if detailed else [replace(each, hour=[]) for each in devices]
    return NodeUseView(report.node, report.time, _mean(each.hour for each in devices), shown)


def _sound(device: DeviceHour) -> DeviceHour:
    utilization = device.utilization if device.utilization is not None and 0 <= device.utilization <= 100 else None
    return replace(
        device, utilization=utilization, hour=[min(max(each, UNKNOWN), 100) for each in device.hour[-MINUTES:]]
    )


def _mean(hours: Iterable[list[int]]) -> list[int]:
    """Minute by minute, the last ones of all beside each other."""
    padded = [[UNKNOWN] * (MINUTES - len(hour)) + hour for hour in hours]
    means = []
    for minute in zip(*padded, strict=True):
        known = [each for each in minute if each != UNKNOWN]
        means.append(round(sum(known) / len(known)) if known else UNKNOWN)
    first = next((at for at, each in enumerate(means) if each != UNKNOWN), len(means))
    return means[first:]
