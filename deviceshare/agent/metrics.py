"""An agent's metrics: the health, memory, utilization and processes of its node's devices.

Labels are bounded by the node: its devices, the groups that hold them, its pods' containers, the Xid numbers that
NVIDIA has assigned. Processes are added up by container; those outside of any pod share one series, with empty labels.
"""

from collections import Counter as Sums
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceshare.agent.memory_limits import LimitsOutcome
from deviceshare.agent.violations import CAUSES
from deviceshare.domain.device_health.examination import APPLICATION_XIDS, Xid
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.usage import DeviceUsage, TurnQueue, Usage
from deviceshare.metrics import ServerMetrics

MIB: Final = 1 << 20
WAIT_BUCKETS: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0)
HIGHEST_XID: Final = 255
"""Higher ones, which NVIDIA hasn't assigned yet, are counted together."""
_CONTAINER: Final = ("namespace", "pod", "container")


class AgentMetrics(ServerMetrics):
    """The metrics of one `deviceshare agent`."""

    def __init__(self) -> None:
        super().__init__()
        counter = partial(Counter, registry=self.registry)
        text = "Xid errors that the driver reported, by device; the kind is `device` or `application`."
        self._xids = counter("deviceshare_xid_errors_total", text, ["uuid", "xid", "kind"])
        self._evictions = counter(
            "deviceshare_evictions_total",
            "Pods evicted because they used a device that they have no part in (trespass), or more memory than their"
            " share (overuse).",
            ["cause"],
        )
        for cause in CAUSES:
            self._evictions.labels(cause)
        self._turn_waits = Histogram(
            "deviceshare_turn_wait_seconds",
            "Time that programs waited for the turns that they were given.",
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        text = "Connections of programs with the turn that ended before they said that they had."
        self._turns_lost = counter("deviceshare_turns_lost_total", text)

        self._limited = Histogram(
            "deviceshare_memory_limit_seconds",
            "Time from the start of a container with a share until the agent had limited its device memory.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 30.0),
            registry=self.registry,
        )
        text = "Containers that were found without the limit of device memory of their share, and got it."
        self._limits_repaired = counter("deviceshare_memory_limits_repaired_total", text)

    def limited(self, seconds: float) -> None:
        """Counts a container whose memory was limited so long after its start."""
        self._limited.observe(seconds)

    def repaired(self) -> None:
        """Counts a container that was found without its limit."""
        self._limits_repaired.inc()

    def watch_limits(self, outcome: Callable[[], LimitsOutcome]) -> None:
        """Adds what was found of memory limits, computed at each scrape. Call it once."""

        def compute() -> Iterable[GaugeMetricFamily]:
            found = outcome()
            text = "Who sets memory limits of shares on the node; without a series nobody does."
            mode = GaugeMetricFamily("deviceshare_memory_limits", text, labels=["by"])
            if found.mode:
                mode.add_metric([found.mode], 1)
            yield mode
            text = "Containers with shares, and sandboxes beside them, that have their limit of device memory."
            yield GaugeMetricFamily("deviceshare_memory_limited_containers", text, found.groups)
            text = "Containers with shares that have no limit of device memory where they should."
            missing = sum(bool(each.missing) for each in found.reports)
            yield GaugeMetricFamily("deviceshare_memory_limits_missing", text, missing)

        self.registry.register(_Computed(compute))

    def count_xid(self, xid: Xid) -> None:
        """Counts a reported error."""
        number = str(xid.number) if xid.number <= HIGHEST_XID else "other"
        self._xids.labels(xid.uuid, number, "application" if xid.number in APPLICATION_XIDS else "device").inc()

    def count_eviction(self, cause: str) -> None:
        """Counts a pod that was evicted; `cause` is one of CAUSES."""
        self._evictions.labels(cause).inc()

    def given(self, waited: float) -> None:
        """Counts a turn that was given, after so many seconds."""
        self._turn_waits.observe(waited)

    def lost(self) -> None:
        """Counts a holder of a turn that lost its connection."""
        self._turns_lost.inc()

    def watch_turns(self, queues: Callable[[], list[TurnQueue]]) -> None:
        """Adds the holders and queues of turns, computed at each scrape. Call it once."""
        self.registry.register(_Computed(lambda: _turns(queues())))

    def watch_devices(
        self,
        hardware: Callable[[], Hardware | None],
        usage: Callable[[], Usage],
        reports: Callable[[], int],
        groups: Callable[[], Mapping[tuple[str, int], str]] = dict,
    ) -> None:
        """Adds the last reading of the devices and the number of reports, computed at each scrape. Call it once.

        `groups`: who holds the devices, by their resource and number.
        """

        def compute() -> Iterable[GaugeMetricFamily]:
            yield from _health(hardware() or Hardware())
            yield from _use(usage().devices, groups())
            yield from _containers(usage().devices)
            written = GaugeMetricFamily("deviceshare_reports", "Reports written since the agent started.")
            written.add_metric([], reports())
            yield written

        self.registry.register(_Computed(compute))


class _Computed(Collector):
    def __init__(self, compute: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._compute = compute

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._compute()


def _health(hardware: Hardware) -> Iterable[GaugeMetricFamily]:
    healthy = _family("healthy", "1 while the device is healthy, 0 while it is unhealthy or lost.")
    trespasses = _family(
        "trespasses", "Pods that use a device of a group or of other pods, and processes outside of any pod that do."
    )
    for part in hardware.devices:
        healthy.add_metric(_labels(part), float(not part.unhealthy))
        count = sum((each.resource, each.index) == (part.resource, part.index) for each in hardware.trespasses)
        trespasses.add_metric(_labels(part), 0 if part.lost else count)
    return healthy, trespasses


def _use(devices: Iterable[DeviceUsage], groups: Mapping[tuple[str, int], str]) -> Iterable[GaugeMetricFamily]:
    used = _family("memory_used_bytes", "The device's memory in use.", ("group",))
    total = _family("memory_total_bytes", "The device's memory.", ("group",))
    text = "Share of the driver's last sample period in which the device was busy, from 0 to 1."
    busy = _family("utilization_ratio", text, ("group",))
    for device in devices:
        labels = [*_labels(device), groups.get((device.resource, device.index), "")]
        used.add_metric(labels, device.memory_used_mib * MIB)
        total.add_metric(labels, device.memory_total_mib * MIB)
        if device.utilization is not None:
            busy.add_metric(labels, device.utilization / 100)
    return used, total, busy


def _containers(devices: Iterable[DeviceUsage]) -> Iterable[GaugeMetricFamily]:
    memory = _family("container_memory_bytes", "The device's memory that a container's processes use.", _CONTAINER)
    count = _family("container_processes", "A container's processes on the device.", _CONTAINER)
    limit = _family("container_memory_limit_bytes", "The container's share of the device's memory.", _CONTAINER)
    exceeded = _family("shares_exceeded", "Shares of the device that are exceeded by more than the tolerance.")
    for device in devices:
        mib, processes = Sums[tuple[str, ...]](), Sums[tuple[str, ...]]()
        for process in device.processes:
            namespace, _, pod = process.pod.rpartition("/")
            mib[namespace, pod, process.container] += process.memory_mib
            processes[namespace, pod, process.container] += 1
        for key, number in processes.items():
            memory.add_metric([*_labels(device), *key], mib[key] * MIB)
            count.add_metric([*_labels(device), *key], number)
        for share in device.shares:
            namespace, _, pod = share.pod.rpartition("/")
            if share.container:
                limit.add_metric([*_labels(device), namespace, pod, share.container], share.limit_mib * MIB)
        exceeded.add_metric(_labels(device), sum(share.exceeded for share in device.shares))
    return memory, count, limit, exceeded


def _turns(queues: Iterable[TurnQueue]) -> Iterable[GaugeMetricFamily]:
    family = partial(GaugeMetricFamily, labels=["group"])
    held = family("deviceshare_turn_held_seconds", "For how long a program has had the group's turn.")
    waiting = family("deviceshare_turn_waiting", "Programs that wait for it.")
    longest = family("deviceshare_turn_longest_wait_seconds", "The longest time that one of them has waited.")
    for queue in queues:
        if queue.holder:
            held.add_metric([queue.group], queue.holder.seconds)
        waiting.add_metric([queue.group], len(queue.waiting))
        longest.add_metric([queue.group], max((each.seconds for each in queue.waiting), default=0.0))
    return held, waiting, longest


def _labels(device: Part | DeviceUsage) -> list[str]:
    return [device.resource, str(device.index), device.uuid]


def _family(name: str, documentation: str, more: tuple[str, ...] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"deviceshare_device_{name}", documentation, labels=["resource", "index", "uuid", *more])
