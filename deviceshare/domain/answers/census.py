"""Numbers for metrics: of devices, groups, quotas and waiting pods, and the figures of each group.

Whoever may create groups could create any number of them, so only a bounded number of them is listed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from deviceshare.domain.answers.device_parts import allocated
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, TERMINATING, Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import seconds_between
from deviceshare.domain.placement.device_states import DeviceState, Health, Use
from deviceshare.domain.placement.fleet import Fleet

MOST_NAMESPACES: Final = 8
"""Listed for one group; the pods of further namespaces are counted together, as OTHERS."""

OTHERS: Final = "(others)"
"""No namespace can be called so."""

Measured = tuple[str, Mapping[Any, float]]
"""The name of a gauge, and its values: by a label's value or, as a tuple, by those of several."""


def measure(
    fleet: Fleet,
    groups: Iterable[Group],
    pods: Iterable[Pod],
    quotas: Iterable[DeviceQuota],
    *,
    leads: bool,
    most_groups: int,
    now: str,
) -> Iterator[Measured]:
    """What the cluster is at `now`, RFC 3339, one gauge after the other.

    Only the leader has those of each group, for a bounded number of groups (`most_groups`; 0 for none), and those of
    DeviceQuotas. What is gone, and a process that leads no more, leave no values behind.
    """
    groups, pods = tuple(groups), tuple(pods)
    yield "deviceshare_devices", count_devices(fleet)
    yield "deviceshare_groups", count_groups(groups)
    yield "deviceshare_device_memory_capacity_bytes", memory_capacity(fleet)
    yield "deviceshare_device_memory_allocated_bytes", memory_allocated(fleet)
    yield "deviceshare_devices_allocated_twice", allocated_twice(fleet)
    yield "deviceshare_devices_claimed_twice", claimed_twice(fleet)
    yield "deviceshare_waiting_pods", count_waiting(pods)
    if leads:
        yield from _of_quotas(quotas)
    if leads and most_groups:
        yield from of_groups(fleet, groups, pods, most_groups, now)


def count_devices(fleet: Fleet) -> Mapping[tuple[str, str, Use, Health], int]:
    """How many devices of one resource on one node are used so and are in this health, sorted by all of these."""
    found = Counter((name, state.device.resource, state.use, state.health) for name, state in _devices(fleet))
    return dict(sorted(found.items()))


def allocated_twice(fleet: Fleet) -> dict[str, int]:
    """Devices that groups or shares have and that others allocated, too, by who did."""
    twice = [state for _, state in _devices(fleet) if state.allocated_twice]
    return {
        "device-plugin": sum(bool(state.pod) for state in twice),
        "resource-claim": sum(bool(state.resource_claim) for state in twice),
    }


def claimed_twice(fleet: Fleet) -> Mapping[str, int]:
    """Devices about which claims contradict each other, by node."""
    return Counter(name for name, state in _devices(fleet) if state.claimed_twice)


def memory_capacity(fleet: Fleet) -> dict[tuple[str, ...], int]:
    """Bytes of every device that a node has and of which the memory is known, by node, resource, index and UUID."""
    return _of_each(fleet, lambda state: state.memory_mib)


def memory_allocated(fleet: Fleet) -> dict[tuple[str, ...], int]:
    """How much of that is allocated."""
    return _of_each(fleet, lambda state: allocated(state).memory_mib)


def _of_each(fleet: Fleet, mib: Callable[[DeviceState], int]) -> dict[tuple[str, ...], int]:
    return {
        (name, state.device.resource, str(state.device.index), state.device.uuid): mib(state) << 20
        for name, state in _devices(fleet)
        if state.memory_mib and not state.lost
    }


def _devices(fleet: Fleet) -> Iterable[tuple[str, DeviceState]]:
    return ((name, state) for name in fleet.names() for state in fleet.states(name))


def count_waiting(pods: Iterable[Pod]) -> dict[str, int]:
    """Pods without a node that a scheduler may try, by what they want."""
    waiting = [pod for pod in pods if pod.pending and not pod.gates]
    shares = sum(not pod.group for pod in waiting)
    return {"group": len(waiting) - shares, "share": shares}


def count_groups(groups: Iterable[Group]) -> dict[str, int]:
    """Groups by phase; one that nobody looked at yet is Pending."""
    return dict(Counter(group.status.phase or PENDING for group in groups))


def _of_quotas(quotas: Iterable[DeviceQuota]) -> Iterator[Measured]:
    """How many devices each quota allows, and how many are held."""
    known = sorted(quotas, key=lambda each: each.name)
    hard = {(each.name, resource): number for each in known for resource, number in sorted(each.spec.hard.items())}
    yield "deviceshare_quota_hard", hard
    yield "deviceshare_quota_used", {(each.name, r): each.used(r) for each in known for r in sorted(each.spec.hard)}
    yield "deviceshare_quota_invalid", {each.name: bool(each.fault) for each in known}


_OF_GROUP: Final = (
    "deviceshare_group_phase",
    "deviceshare_group_devices",
    "deviceshare_group_pods",
    "deviceshare_group_waiting_pods",
    "deviceshare_group_longest_wait_seconds",
    "deviceshare_group_idle_seconds",
)


def of_groups(fleet: Fleet, groups: Iterable[Group], pods: Iterable[Pod], most: int, now: str) -> Iterator[Measured]:
    """Of at most so many groups: degraded ones first, then those with devices or waiting pods, of these the oldest."""
    waiting: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.group and pod.pending and not pod.gates:
            waiting.setdefault(pod.group, []).append(pod)

    def rank(group: Group) -> tuple[bool, bool, str, str]:
        concerned = bool(group.node) or group.name in waiting
        return group.status.phase != DEGRADED, not concerned, group.metadata.creation_timestamp or "", group.name

    ranked, found = sorted(groups, key=rank), {gauge: dict[Any, float]() for gauge in _OF_GROUP}
    for group in ranked[:most]:
        for gauge, figures in zip(found, _figures(fleet, group, waiting.get(group.name, []), now), strict=True):
            found[gauge] |= figures
    yield from found.items()
    yield "deviceshare_groups_unlisted", {(): max(len(ranked) - most, 0)}


def _figures(fleet: Fleet, group: Group, waiting: list[Pod], now: str) -> Iterator[dict[Any, float]]:
    """Of one group, in the order of `_OF_GROUP`."""
    name, users, ledger = group.name, fleet.pods(group.uid), fleet.ledger(group.node) if group.node else None
    claim = ledger.claims.get(group.uid) if ledger else None
    if group.spec.allowed_namespaces:  # strangers, whom policies can't refuse at creation, must raise no alert
        waiting = [pod for pod in waiting if not fleet.namespaces.refusal(group, pod.metadata.namespace)]
    # Another version may write further phases; a stranger may write anything.
    known = group.status.phase in (BOUND, DEGRADED, TERMINATING)
    yield {(name, group.status.phase if known else PENDING): 1}
    devices = _counted(device.resource for device in claim.whole) if claim else {}
    yield {(name, group.node, resource): number for resource, number in devices.items()}
    yield _by_namespace(name, (key.partition("/")[0] for key in users))
    yield _by_namespace(name, (pod.metadata.namespace for pod in waiting))
    yield _age(name, min((pod.metadata.creation_timestamp or "" for pod in waiting), default=""), now)
    yield _age(name, "" if users else group.status.idle_since, now)


def _age(name: str, since: str, now: str) -> dict[Any, float]:
    """Of the group, where `since` is a time."""
    seconds = seconds_between(since, now)
    return {} if seconds is None else {name: max(seconds, 0.0)}


def _by_namespace(group: str, namespaces: Iterable[str]) -> dict[Any, float]:
    counted = _counted(namespaces)
    if len(counted) > MOST_NAMESPACES:
        kept = dict(sorted(counted.items())[:MOST_NAMESPACES])
        counted = kept | {OTHERS: sum(counted.values()) - sum(kept.values())}
    return {(group, namespace): number for namespace, number in counted.items()}


def _counted(names: Iterable[str]) -> dict[str, int]:
    # A Counter costs several times as much where the names are few, and this is done at each scrape.
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found
