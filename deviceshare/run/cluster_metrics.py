"""Metrics of the cluster: groups, quotas and nodes, as the mirrors show them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceshare.domain.answers import census
from deviceshare.domain.answers.census import GroupCensus, count_each_group
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.kube.definitions import Definitions
from deviceshare.kube.mirror import count_unreadable
from deviceshare.kube.mirrors import Mirrors
from deviceshare.metrics import Metrics
from deviceshare.timestamps import seconds_since

# What only the leader exports: the metrics of each group, for a bounded number of groups, and those of DeviceQuotas.
# They are computed at each scrape, so what is gone, and a process that leads no more, leave no series behind.


@dataclass(eq=False)
class GroupMetrics(Collector):
    """`census` runs on the event loop; `age` gives the seconds since a time in RFC 3339, None for what is no time."""

    census: Callable[[], GroupCensus]
    age: Callable[[str], float | None]
    leading: Callable[[], bool]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        if not self.leading():
            return []
        groups, left_out = self.census()
        by_namespace = ["group", "namespace"]
        phase = _family("group_phase", "Always 1; the label says the group's phase.", ["group", "phase"])
        devices = _family("group_devices", "Devices that the group holds.", ["group", "node", "resource"])
        pods = _family("group_pods", "Pods that have the group's devices, by their namespace.", by_namespace)
        said = "Waiting pods of the group; left out are gated ones, and those of namespaces that it does not allow."
        waiting = _family("group_waiting_pods", said, by_namespace)
        longest = _family("group_longest_wait_seconds", "For how long the oldest of these pods has waited.", ["group"])
        idle = _family("group_idle_seconds", "For how long the group has held devices without a pod.", ["group"])
        unlisted = _family("groups_unlisted", "Groups beyond the limit, which have no other metrics.", [])
        unlisted.add_metric([], left_out)
        for each in groups:
            phase.add_metric([each.name, each.phase], 1)
            for resource, number in each.devices.items():
                devices.add_metric([each.name, each.node, resource], number)
            for family, counts in ((pods, each.pods), (waiting, each.waiting)):
                for namespace, number in counts.items():
                    family.add_metric([each.name, namespace], number)
            for family, since in ((longest, each.waiting_since), (idle, each.idle_since)):
                if since and (seconds := self.age(since)) is not None:
                    family.add_metric([each.name], max(seconds, 0.0))
        return phase, devices, pods, waiting, longest, idle, unlisted


@dataclass(eq=False)
class QuotaMetrics(Collector):
    """How many devices each quota allows, and how many are held; `quotas` runs on the event loop."""

    quotas: Callable[[], Iterable[DeviceQuota]]
    leading: Callable[[], bool]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        if not self.leading():
            return []
        labels = ["quota", "resource"]
        hard = _family("quota_hard", "Devices that the groups of the quota may hold together (spec.hard).", labels)
        used = _family("quota_used", "Devices that they hold, or are about to claim.", labels)
        text = "1 where the quota can't be read or applied, so that groups that it may count aren't bound."
        invalid = _family("quota_invalid", text, labels[:1])
        for quota in sorted(self.quotas(), key=lambda each: each.name):
            invalid.add_metric([quota.name], bool(quota.fault))
            for resource, number in sorted(quota.spec.hard.items()):
                hard.add_metric([quota.name, resource], number)
                used.add_metric([quota.name, resource], quota.used(resource))
        return hard, used, invalid


def _family(name: str, documentation: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"deviceshare_{name}", documentation, labels=labels)


# The metrics of the whole cluster, as this replica's mirrors show it.


def watch(
    metrics: Metrics, mirrors: Mirrors, definitions: Definitions, *, leading: Callable[[], bool], most_groups: int
) -> None:
    """Adds them, computed at each scrape. Call it once.

    `most_groups`: of how many groups the leader tells more than their number; 0 for none.
    """
    fleet, groups, pods = mirrors.fleet, mirrors.groups, mirrors.pods
    metrics.leader.set_function(lambda: float(leading()))
    metrics.watch("deviceshare_devices", lambda: census.count_devices(fleet))
    metrics.watch("deviceshare_groups", lambda: census.count_groups(groups.values()))
    metrics.watch("deviceshare_device_memory_capacity_bytes", lambda: census.memory_capacity(fleet))
    metrics.watch("deviceshare_device_memory_allocated_bytes", lambda: census.memory_allocated(fleet))
    metrics.watch("deviceshare_devices_allocated_twice", lambda: census.allocated_twice(fleet))
    metrics.watch("deviceshare_devices_claimed_twice", lambda: census.claimed_twice(fleet))
    metrics.watch("deviceshare_waiting_pods", lambda: census.count_waiting(pods.values()))
    metrics.watch("deviceshare_unreadable_objects", lambda: count_unreadable(mirrors.by_name.values()))
    metrics.watch("deviceshare_missing_crd_fields", definitions.dropped)
    metrics.watch(
        "deviceshare_mirrored_objects", lambda: {name: len(mirror) for name, mirror in mirrors.by_name.items()}
    )
    metrics.registry.register(QuotaMetrics(mirrors.quotas.values, leading))
    if most_groups:
        each = GroupMetrics(
            lambda: count_each_group(fleet, groups.values(), pods.values(), most_groups),
            lambda written: seconds_since(written, datetime.now(UTC)),
            leading,
        )
        metrics.registry.register(each)
