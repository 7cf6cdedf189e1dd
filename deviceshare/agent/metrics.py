"""An agent's metrics: the health, memory, utilization and processes of its node's devices.

Labels are bounded by the node: its devices, the groups that hold them, its pods' containers, the Xid numbers that
NVIDIA has assigned. Processes are added up by container; those outside of any pod share one series, with empty labels.
"""

from collections import Counter as Sums
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final

from prometheus_client import Counter, Histogram

from deviceshare.agent.memory_limits import LimitsOutcome
from deviceshare.agent.violations import CAUSES
from deviceshare.domain.device_health.examination import APPLICATION_XIDS, Xid
from deviceshare.domain.device_health.memory_limits import MIB
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage, ShareMemory, TurnQueue, Usage
from deviceshare.metrics import Measured, ServerMetrics

WAIT_BUCKETS: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0)
LIMIT_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 30.0)
HIGHEST_XID: Final = 255
"""Higher ones, which NVIDIA hasn't assigned yet, are counted together."""
_CONTAINER: Final = ("namespace", "pod", "container")
_Key = tuple[str, ...]
_Rows = Iterable[tuple[Iterable[str], float]]
"""Labels and values."""


class AgentMetrics(ServerMetrics):
    """The metrics of one `deviceshare agent`."""

    def __init__(self) -> None:
        super().__init__()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        text = "Xid errors that the driver reported, by device; the kind is `device` or `application`."
        self._xids = counter("deviceshare_xid_errors_total", text, ["uuid", "xid", "kind"])
        text = (
            "Pods evicted because they used a device that they have no part in (trespass), or more memory than their"
            " share (overuse)."
        )
        self._evictions = counter("deviceshare_evictions_total", text, ["cause"])
        for cause in CAUSES:
            self._evictions.labels(cause)
        text = "Time that programs waited for the turns that they were given."
        self.turn_waits = histogram("deviceshare_turn_wait_seconds", text, buckets=WAIT_BUCKETS)
        text = "Connections of programs with the turn that ended before they said that they had."
        self.turns_lost = counter("deviceshare_turns_lost_total", text)
        text = "Time from the start of a container with a share until the agent had limited its device memory."
        self.limited = histogram("deviceshare_memory_limit_seconds", text, buckets=LIMIT_BUCKETS)
        text = "Containers that were found without the limit of device memory of their share, and got it."
        self.limits_repaired = counter("deviceshare_memory_limits_repaired_total", text)

    def count_xid(self, xid: Xid) -> None:
        """Counts a reported error."""
        number = str(xid.number) if xid.number <= HIGHEST_XID else "other"
        self._xids.labels(xid.uuid, number, "application" if xid.number in APPLICATION_XIDS else "device").inc()

    def count_eviction(self, cause: str) -> None:
        """Counts a pod that was evicted; `cause` is one of CAUSES."""
        self._evictions.labels(cause).inc()


def of_devices(
    hardware: Hardware | None, usage: Usage, reports: int, groups: Mapping[tuple[str, int], str]
) -> Iterable[Measured]:
    """The last reading of the devices, and the number of reports.

    `groups`: who holds the devices, by their resource and number.
    """
    yield from _health(hardware or Hardware())
    yield from _use(usage.devices, groups)
    yield from _containers(usage.devices)
    yield "deviceshare_reports", "Reports written since the agent started.", [], [((), reports)]


def of_limits(found: LimitsOutcome) -> Iterable[Measured]:
    """What was found of memory limits."""
    text = "Who sets memory limits of shares on the node; without a series nobody does."
    yield "deviceshare_memory_limits", text, ["by"], [([found.mode], 1)] if found.mode else []
    text = "Containers with shares, and sandboxes beside them, that have their limit of device memory."
    yield "deviceshare_memory_limited_containers", text, [], [((), found.groups)]
    text = "Containers with shares that have no limit of device memory where they should."
    missing = sum(bool(each.missing) for each in found.reports)
    yield "deviceshare_memory_limits_missing", text, [], [((), missing)]


def _health(hardware: Hardware) -> Iterable[Measured]:
    text = "1 while the device is healthy, 0 while it is unhealthy or lost."
    yield _family("healthy", text, ((_labels(part), not part.unhealthy) for part in hardware.devices))
    found = Sums((each.resource, each.index) for each in hardware.trespasses)
    counts = ((_labels(part), 0 if part.lost else found[part.resource, part.index]) for part in hardware.devices)
    text = "Pods that use a device of a group or of other pods, and processes outside of any pod that do."
    yield _family("trespasses", text, counts)


def _use(devices: Iterable[DeviceUsage], groups: Mapping[tuple[str, int], str]) -> Iterable[Measured]:
    held = [([*_labels(each), groups.get((each.resource, each.index), "")], each) for each in devices]
    used = ((labels, each.memory_used_mib * MIB) for labels, each in held)
    yield _family("memory_used_bytes", "The device's memory in use.", used, "group")
    total = ((labels, each.memory_total_mib * MIB) for labels, each in held)
    yield _family("memory_total_bytes", "The device's memory.", total, "group")
    text = "Share of the driver's last sample period in which the device was busy, from 0 to 1."
    busy = ((labels, each.utilization / 100) for labels, each in held if each.utilization is not None)
    yield _family("utilization_ratio", text, busy, "group")


def _containers(devices: Iterable[DeviceUsage]) -> Iterable[Measured]:
    memory, count, limits, exceeded = Sums[_Key](), Sums[_Key](), dict[_Key, int](), dict[_Key, int]()
    for device in devices:
        labels = _labels(device)
        for process in device.processes:
            key = *labels, *_container(process)
            memory[key] += process.memory_mib * MIB
            count[key] += 1
        limits |= {(*labels, *_container(each)): each.limit_mib * MIB for each in device.shares if each.container}
        exceeded[labels] = sum(share.exceeded for share in device.shares)
    text = "The device's memory that a container's processes use."
    yield _family("container_memory_bytes", text, memory.items(), *_CONTAINER)
    yield _family("container_processes", "A container's processes on the device.", count.items(), *_CONTAINER)
    text = "The container's share of the device's memory."
    yield _family("container_memory_limit_bytes", text, limits.items(), *_CONTAINER)
    text = "Shares of the device that are exceeded by more than the tolerance."
    yield _family("shares_exceeded", text, exceeded.items())


def of_turns(queues: Collection[TurnQueue]) -> Iterable[Measured]:
    """The holders and queues of turns."""
    held = (([each.group], each.holder.seconds) for each in queues if each.holder)
    yield "deviceshare_turn_held_seconds", "For how long a program has had the group's turn.", ["group"], held
    waiting = (([each.group], len(each.waiting)) for each in queues)
    yield "deviceshare_turn_waiting", "Programs that wait for it.", ["group"], waiting
    longest = (([each.group], max((one.seconds for one in each.waiting), default=0.0)) for each in queues)
    text = "The longest time that one of them has waited."
    yield "deviceshare_turn_longest_wait_seconds", text, ["group"], longest


def _family(name: str, text: str, rows: _Rows, *more: str) -> Measured:
    return f"deviceshare_device_{name}", text, ["resource", "index", "uuid", *more], rows


def _labels(device: Part | DeviceUsage) -> _Key:
    return device.resource, str(device.index), device.uuid


def _container(of: DeviceProcess | ShareMemory) -> _Key:
    namespace, _, pod = of.pod.rpartition("/")
    return namespace, pod, of.container
