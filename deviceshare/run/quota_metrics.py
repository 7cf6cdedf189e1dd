"""The metrics of DeviceQuotas, which only the leader exports: how many devices each allows, and how many are held.

They are computed at each scrape, so a quota that is gone, and a process that leads no more, leave no series behind.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceshare.domain.objects.device_quota import DeviceQuota


@dataclass(eq=False)
class QuotaMetrics(Collector):
    """`quotas` runs on the event loop and must not block."""

    quotas: Callable[[], Iterable[DeviceQuota]]
    leading: Callable[[], bool]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        if not self.leading():
            return []
        labels = ["quota", "resource"]
        text = "Devices that the groups of the quota may hold together (spec.hard)."
        hard = GaugeMetricFamily("deviceshare_quota_hard", text, labels=labels)
        text = "Devices that they hold, or are about to claim."
        used = GaugeMetricFamily("deviceshare_quota_used", text, labels=labels)
        text = "1 where the quota can't be read or applied, so that groups that it may count aren't bound."
        invalid = GaugeMetricFamily("deviceshare_quota_invalid", text, labels=labels[:1])
        for quota in sorted(self.quotas(), key=lambda each: each.name):
            invalid.add_metric([quota.name], bool(quota.fault))
            for resource, number in sorted(quota.spec.hard.items()):
                hard.add_metric([quota.name, resource], number)
                used.add_metric([quota.name, resource], quota.used(resource))
        return hard, used, invalid
