"""An agent's metrics: the health, memory, utilization and processes of its node's devices.

Labels are bounded by the node: its devices, the groups that hold them, its pods' containers, the Xid numbers that
NVIDIA has assigned. Processes are added up by container; those outside of any pod share one series, with empty labels.
"""

from collections import Counter as Sums
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceshare.domain.device_health.examination import APPLICATION_XIDS
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.usage import TurnQueue, Usage
from deviceshare.loops.agent.evictions import CAUSES
from deviceshare.loops.agent.ports import Xid
from deviceshare.metrics import ServerMetrics

MIB: Final = 1 << 20
WAIT_BUCKETS: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 28800.0, 86400.0)
HIGHEST_XID: Final = 255
"""Higher ones, which NVIDIA hasn't assigned yet, are counted together."""


class AgentMetrics(ServerMetrics):
    """The metrics of one `deviceshare agent`."""

    def __init__(self) -> None:
        super().__init__()
        self._xids = Counter(
            "deviceshare_xid_errors_total",
            "Xid errors that the driver reported, by device; the kind is `device` or `application`.",
            ["uuid", "xid", "kind"],
            registry=self.registry,
        )
        self._evictions = Counter(
            "deviceshare_evictions_total",
            "Pods evicted because they used a device that they have no part in (trespass), or more memory than their"
            " share (overuse).",
            ["cause"],
            registry=self.registry,
        )
        for cause in CAUSES:
            self._evictions.labels(cause)
        self._turn_waits = Histogram(
            "deviceshare_turn_wait_seconds",
            "Time that programs waited for the turns that they were given.",
            buckets=WAIT_BUCKETS,
            registry=self.registry,
        )
        self._turns_lost = Counter(
            "deviceshare_turns_lost_total",
            "Connections of programs with the turn that ended before they said that they had.",
            registry=self.registry,
        )

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
        self.registry.register(_Turns(queues))

    def count_xid(self, xid: Xid) -> None:
        """Counts a reported error."""
        number = str(xid.number) if xid.number <= HIGHEST_XID else "other"
        self._xids.labels(xid.uuid, number, "application" if xid.number in APPLICATION_XIDS else "device").inc()

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
        self.registry.register(_Devices(hardware, usage, reports, groups))


@dataclass(eq=False)
class _Devices(Collector):
    hardware: Callable[[], Hardware | None]
    usage: Callable[[], Usage]
    reports: Callable[[], int]
    groups: Callable[[], Mapping[tuple[str, int], str]]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        yield from self._health()
        yield from self._use()
        yield from self._containers()
        yield from self._shares()
        reports = GaugeMetricFamily("deviceshare_reports", "Reports written since the agent started.")
        reports.add_metric([], self.reports())
        yield reports

    def _health(self) -> Iterable[GaugeMetricFamily]:
        hardware = self.hardware() or Hardware()
        healthy = _family("healthy", "1 while the device is healthy, 0 while it is unhealthy or lost.")
        trespasses = _family(
            "trespasses",
            "Pods that use a device of a group or of other pods, and processes outside of any pod that do.",
        )
        for part in hardware.devices:
            labels = [part.resource, str(part.index), part.uuid]
            healthy.add_metric(labels, float(not part.unhealthy))
            count = sum((each.resource, each.index) == (part.resource, part.index) for each in hardware.trespasses)
            trespasses.add_metric(labels, 0 if part.lost else count)
        return healthy, trespasses

    def _use(self) -> Iterable[GaugeMetricFamily]:
        by, groups = ("group",), self.groups()
        used = _family("memory_used_bytes", "The device's memory in use.", by)
        total = _family("memory_total_bytes", "The device's memory.", by)
        text = "Share of the driver's last sample period in which the device was busy, from 0 to 1."
        busy = _family("utilization_ratio", text, by)
        for device in self.usage().devices:
            group = groups.get((device.resource, device.index), "")
            labels = [device.resource, str(device.index), device.uuid, group]
            used.add_metric(labels, device.memory_used_mib * MIB)
            total.add_metric(labels, device.memory_total_mib * MIB)
            if device.utilization is not None:
                busy.add_metric(labels, device.utilization / 100)
        return used, total, busy

    def _containers(self) -> Iterable[GaugeMetricFamily]:
        where = ("namespace", "pod", "container")
        memory = _family("container_memory_bytes", "The device's memory that a container's processes use.", where)
        count = _family("container_processes", "A container's processes on the device.", where)
        for device in self.usage().devices:
            mib, processes = Sums[tuple[str, ...]](), Sums[tuple[str, ...]]()
            for process in device.processes:
                namespace, _, pod = process.pod.rpartition("/")
                mib[namespace, pod, process.container] += process.memory_mib
                processes[namespace, pod, process.container] += 1
            for key, number in processes.items():
                labels = [device.resource, str(device.index), device.uuid, *key]
                memory.add_metric(labels, mib[key] * MIB)
                count.add_metric(labels, number)
        return memory, count

    def _shares(self) -> Iterable[GaugeMetricFamily]:
        where = ("namespace", "pod", "container")
        limit = _family("container_memory_limit_bytes", "The container's share of the device's memory.", where)
        exceeded = _family("shares_exceeded", "Shares of the device that are exceeded by more than the tolerance.")
        for device in self.usage().devices:
            labels = [device.resource, str(device.index), device.uuid]
            for share in device.shares:
                namespace, _, pod = share.pod.rpartition("/")
                if share.container:
                    limit.add_metric([*labels, namespace, pod, share.container], share.limit_mib * MIB)
            exceeded.add_metric(labels, sum(share.exceeded for share in device.shares))
        return limit, exceeded


@dataclass(eq=False)
class _Turns(Collector):
    queues: Callable[[], list[TurnQueue]]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        held = GaugeMetricFamily(
            "deviceshare_turn_held_seconds", "For how long a program has had the group's turn.", labels=["group"]
        )
        waiting = GaugeMetricFamily("deviceshare_turn_waiting", "Programs that wait for it.", labels=["group"])
        longest = GaugeMetricFamily(
            "deviceshare_turn_longest_wait_seconds", "The longest time that one of them has waited.", labels=["group"]
        )
        for queue in self.queues():
            if queue.holder:
                held.add_metric([queue.group], queue.holder.seconds)
            waiting.add_metric([queue.group], len(queue.waiting))
            longest.add_metric([queue.group], max((each.seconds for each in queue.waiting), default=0.0))
        return held, waiting, longest


def _family(name: str, documentation: str, more: tuple[str, ...] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"deviceshare_device_{name}", documentation, labels=["resource", "index", "uuid", *more])
