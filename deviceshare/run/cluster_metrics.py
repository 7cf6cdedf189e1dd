"""The metrics of the whole cluster, as this replica's mirrors show it."""

from collections.abc import Callable
from datetime import UTC, datetime

from deviceshare.domain.answers import census
from deviceshare.domain.answers.census import count_each_group
from deviceshare.kube.definitions import Definitions
from deviceshare.kube.mirror import count_unreadable
from deviceshare.kube.mirrors import Mirrors
from deviceshare.metrics import Metrics
from deviceshare.run.group_metrics import GroupMetrics
from deviceshare.run.quota_metrics import QuotaMetrics
from deviceshare.timestamps import seconds_since


def watch(
    metrics: Metrics, mirrors: Mirrors, definitions: Definitions, *, leading: Callable[[], bool], most_groups: int
) -> None:
    """Adds them, computed at each scrape. Call it once.

    `most_groups`: of how many groups the leader tells more than their number; 0 for none.
    """
    fleet, groups, pods = mirrors.fleet, mirrors.groups, mirrors.pods
    metrics.leader.set_function(lambda: float(leading()))
    metrics.watch_cluster(lambda: census.count_devices(fleet), lambda: census.count_groups(groups.values()))
    metrics.watch_memory(lambda: census.device_memory(fleet))
    metrics.watch_twice(lambda: census.allocated_twice(fleet), lambda: census.claimed_twice(fleet))
    metrics.watch_waiting(lambda: census.count_waiting(pods.values()))
    metrics.watch_unreadable(lambda: count_unreadable(mirrors.by_name.values()))
    metrics.watch_dropped(definitions.dropped)
    metrics.watch_mirrors(lambda: {name: len(mirror) for name, mirror in mirrors.by_name.items()})
    metrics.registry.register(QuotaMetrics(mirrors.quotas.values, leading))
    if most_groups:
        each = GroupMetrics(
            lambda: count_each_group(fleet, groups.values(), pods.values(), most_groups),
            lambda written: seconds_since(written, datetime.now(UTC)),
            leading,
        )
        metrics.registry.register(each)
