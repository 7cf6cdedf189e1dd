"""What one pod may see of its node: its devices, its processes on them, and the pods that share them with it.

An agent's answer to `/smi`. Of pods that don't share the devices there is nothing in it but what a device's own figures
show, and of those that do, their names and the memory that they use.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from itertools import groupby

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.answers.pod_devices import PodDevice
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage, Usage


class MateUse(Struct, frozen=True, rename="camel"):
    """What another pod of the same holder uses of a device."""

    pod: str
    """`namespace/name`"""
    memory_mib: int
    processes: int


class PartView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a container has of a device, and what of it it uses."""

    container: str
    memory_mib: int | None = None
    """None where the device's memory isn't known."""
    percent: int = 0
    """Of the device."""
    used_mib: int = 0


class PodDeviceView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device of the pod, or of the container that `deviceshare smi` runs in."""

    resource: str
    index: int
    """The node's number for it; a container may count its own devices from 0."""
    uuid: str = ""
    model: str = ""
    memory_used_mib: int | None = None
    """By all pods that use the device, or, where the pod has a part of it, by this pod; None where it can't be read."""
    memory_total_mib: int | None = None
    """The device's, or the pod's part."""
    utilization: int | None = None
    """Percent of the driver's last sample period in which it was busy; None where the pod has a part of it."""
    part_mib: int | None = None
    """The pod's part of the memory, where it doesn't have the whole device."""
    part_percent: int | None = None
    parts: list[PartView] = field(default_factory=list)
    """What each container with a part has."""
    unhealthy: str = ""
    """What is wrong with it."""
    former: bool = False
    """Whether a rebind replaced it; the pod may use it until it ends."""
    processes: list[DeviceProcess] = field(default_factory=list)
    """The pod's own."""
    mates: list[MateUse] = field(default_factory=list)


class PodView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One pod at one time (RFC 3339)."""

    node: str
    time: str
    pod: str
    """`namespace/name`"""
    holder: str
    """Who has the devices: `group training`, or `pod default/notebook`."""
    devices: list[PodDeviceView] = field(default_factory=list)
    mates: list[str] = field(default_factory=list)
    """The other pods of the holder that run on the node."""


def pod_view(usage: Usage, pod: str, holder: str, devices: Iterable[PodDevice], mates: Collection[str]) -> PodView:
    """What the pod may see of its node's usage."""
    return PodView(
        usage.node,
        usage.time,
        pod,
        holder,
        [_device(each, _use_of(each, usage), pod, mates) for each in devices],
        sorted(mates),
    )


def _use_of(device: PodDevice, usage: Usage) -> DeviceUsage | None:
    """Nothing of a device that is lost: another may have its number now."""
    wanted, part = device.state.device, device.state.part
    if part and part.lost:
        return None
    return next(
        (
            each
            for each in usage.devices
            if (each.resource, each.index) == (wanted.resource, wanted.index) and wanted.uuid in ("", each.uuid)
        ),
        None,
    )


def _device(mine: PodDevice, use: DeviceUsage | None, pod: str, mates: Collection[str]) -> PodDeviceView:
    state, part = mine.state, mine.state.part
    processes = use.processes if use else []
    whole = PodDeviceView(
        state.device.resource,
        state.device.index,
        state.device.uuid or (use.uuid if use else ""),
        use.model if use else part.model if part else "",
        memory_used_mib=use.memory_used_mib if use else None,
        memory_total_mib=use.memory_total_mib if use else part.memory_mib if part else None,
        utilization=use.utilization if use else None,
        unhealthy=state.unhealthy,
        former=mine.former,
        processes=[each for each in processes if each.pod == pod],
        mates=_uses_of(mates, processes),
    )
    return whole if mine.percent is None else _part(whole, mine, read=use is not None)


def _part(whole: PodDeviceView, mine: PodDevice, *, read: bool) -> PodDeviceView:
    """What the device's own figures show of others on it is left out."""
    taken = Counter[str]()
    for process in whole.processes:
        taken[process.container] += process.memory_mib
    return replace(
        whole,
        memory_used_mib=taken.total() if read else None,
        memory_total_mib=mine.memory_mib,
        utilization=None,
        part_mib=mine.memory_mib,
        part_percent=mine.percent,
        parts=[PartView(each.container, each.memory_mib, each.percent, taken[each.container]) for each in mine.parts],
    )


def _uses_of(pods: Collection[str], processes: Iterable[DeviceProcess]) -> list[MateUse]:
    theirs = sorted((each for each in processes if each.pod in pods), key=lambda each: each.pod)
    uses = ((pod, list(mine)) for pod, mine in groupby(theirs, key=lambda each: each.pod))
    return [MateUse(pod, sum(each.memory_mib for each in mine), len(mine)) for pod, mine in uses]
