"""The metrics of each group, which only the leader exports, for a bounded number of groups.

They are computed at each scrape, so a group that is gone, and a process that leads no more, leave no series behind.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deviceshare.domain.answers.census import GroupCensus, GroupCount


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
        unlisted = _family("groups_unlisted", "Groups beyond the limit, which have no other metrics.", [])
        unlisted.add_metric([], left_out)
        return [*self._states(groups), *_pods(groups), *self._times(groups), unlisted]

    def _states(self, groups: list[GroupCount]) -> Iterable[GaugeMetricFamily]:
        phase = _family("group_phase", "Always 1; the label says the group's phase.", ["group", "phase"])
        devices = _family("group_devices", "Devices that the group holds.", ["group", "node", "resource"])
        for each in groups:
            phase.add_metric([each.name, each.phase], 1)
            for resource, number in each.devices.items():
                devices.add_metric([each.name, each.node, resource], number)
        return phase, devices

    def _times(self, groups: list[GroupCount]) -> Iterable[GaugeMetricFamily]:
        longest = _family("group_longest_wait_seconds", "For how long the oldest of these pods has waited.", ["group"])
        idle = _family("group_idle_seconds", "For how long the group has held devices without a pod.", ["group"])
        for each in groups:
            for family, since in ((longest, each.waiting_since), (idle, each.idle_since)):
                seconds = self.age(since) if since else None
                if seconds is not None:
                    family.add_metric([each.name], max(seconds, 0.0))
        return longest, idle


def _pods(groups: list[GroupCount]) -> Iterable[GaugeMetricFamily]:
    labels = ["group", "namespace"]
    pods = _family("group_pods", "Pods that have the group's devices, by their namespace.", labels)
    said = "Waiting pods of the group; left out are gated ones, and those of namespaces that it does not allow."
    waiting = _family("group_waiting_pods", said, labels)
    for each in groups:
        for family, counts in ((pods, each.pods), (waiting, each.waiting)):
            for namespace, number in counts.items():
                family.add_metric([each.name, namespace], number)
    return pods, waiting


def _family(name: str, documentation: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"deviceshare_{name}", documentation, labels=labels)
