"""Metrics of the cluster: groups, quotas and nodes, as the mirrors show them."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from deviceshare.domain.answers import census
from deviceshare.domain.answers.census import GroupCensus
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.kube.definitions import Definitions
from deviceshare.kube.mirror import count_unreadable
from deviceshare.kube.mirrors import Mirrors
from deviceshare.metrics import Metrics, Values
from deviceshare.timestamps import seconds_since

Found = Iterator[tuple[str, Values]]
"""Names of gauges, and what they show."""


def watch(
    metrics: Metrics, mirrors: Mirrors, definitions: Definitions, *, leading: Callable[[], bool], most_groups: int
) -> None:
    """Adds the metrics of the whole cluster, as this replica's mirrors show it. Call it once.

    `most_groups`: of how many groups the leader tells more than their number; 0 for none.
    """
    metrics.leader.set_function(lambda: float(leading()))
    metrics.watch_cluster(
        lambda: of_cluster(mirrors, definitions, datetime.now(UTC), most_groups if leading() else None)
    )


def of_cluster(mirrors: Mirrors, definitions: Definitions, now: datetime, most_groups: int | None) -> Found:
    """Those of the whole cluster; `most_groups` is None where another process leads.

    Only the leader exports the metrics of each group, for a bounded number of groups, and those of DeviceQuotas. They
    are computed at each scrape, so what is gone, and a process that leads no more, leave no series behind.
    """
    fleet, groups, pods = mirrors.fleet, mirrors.groups, mirrors.pods
    yield "deviceshare_devices", census.count_devices(fleet)
    yield "deviceshare_groups", census.count_groups(groups.values())
    yield "deviceshare_device_memory_capacity_bytes", census.memory_capacity(fleet)
    yield "deviceshare_device_memory_allocated_bytes", census.memory_allocated(fleet)
    yield "deviceshare_devices_allocated_twice", census.allocated_twice(fleet)
    yield "deviceshare_devices_claimed_twice", census.claimed_twice(fleet)
    yield "deviceshare_waiting_pods", census.count_waiting(pods.values())
    yield "deviceshare_unreadable_objects", count_unreadable(mirrors.by_name.values())
    yield "deviceshare_missing_crd_fields", definitions.dropped()
    yield "deviceshare_mirrored_objects", {name: len(mirror) for name, mirror in mirrors.by_name.items()}
    if most_groups is not None:
        yield from of_quotas(mirrors.quotas.values())
    if most_groups:
        yield from of_groups(census.count_each_group(fleet, groups.values(), pods.values(), most_groups), now)


def of_quotas(quotas: Iterable[DeviceQuota]) -> Found:
    """How many devices each quota allows, and how many are held."""
    known = sorted(quotas, key=lambda each: each.name)
    hard = {(each.name, resource): number for each in known for resource, number in sorted(each.spec.hard.items())}
    yield "deviceshare_quota_hard", hard
    yield "deviceshare_quota_used", {(each.name, r): each.used(r) for each in known for r in sorted(each.spec.hard)}
    yield "deviceshare_quota_invalid", {each.name: bool(each.fault) for each in known}


def of_groups(counted: GroupCensus, now: datetime) -> Found:
    """The metrics of each group, for a bounded number of groups."""
    groups, left_out = counted
    yield "deviceshare_group_phase", {(each.name, each.phase): 1 for each in groups}
    devices = {(each.name, each.node, r): number for each in groups for r, number in each.devices.items()}
    yield "deviceshare_group_devices", devices
    yield "deviceshare_group_pods", {(each.name, space): n for each in groups for space, n in each.pods.items()}
    waiting = {(each.name, space): number for each in groups for space, number in each.waiting.items()}
    yield "deviceshare_group_waiting_pods", waiting
    yield "deviceshare_group_longest_wait_seconds", _ages({each.name: each.waiting_since for each in groups}, now)
    yield "deviceshare_group_idle_seconds", _ages({each.name: each.idle_since for each in groups}, now)
    yield "deviceshare_groups_unlisted", {(): left_out}


def _ages(since: dict[str, str], now: datetime) -> Values:
    """By group; a time in RFC 3339 that is none, or none that is given, has no age."""
    ages = ((group, seconds_since(written, now)) for group, written in since.items())
    return {group: max(age, 0.0) for group, age in ages if age is not None}
