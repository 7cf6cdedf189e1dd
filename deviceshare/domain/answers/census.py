"""Numbers for metrics: of devices, groups, quotas and waiting pods, and the figures of each group.

Whoever may create groups could create any number of them, so only a bounded number of them is listed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

Figures = Mapping[Any, float]
"""By a label's value or, as a tuple, by those of several."""
Measured = tuple[str, str, Sequence[str], Iterable[tuple[Any, float]]]
"""A gauge: its name, what it counts, its labels, and its figures."""


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
    text = "Devices of the shared nodes, by who uses them (or why nobody gets them) and by their health."
    yield "deviceshare_devices", text, ["node", "resource", "state", "health"], count_devices(fleet).items()
    yield "deviceshare_groups", "SharedDeviceGroups.", ["phase"], count_groups(groups).items()
    text = "The device's memory, where an agent or the node's labels tell it."
    labels = ["node", "resource", "index", "uuid"]
    yield "deviceshare_device_memory_capacity_bytes", text, labels, memory_capacity(fleet).items()
    text = "How much of it is allocated: of a shared device its pods' shares, of any other allocated one all."
    yield "deviceshare_device_memory_allocated_bytes", text, labels, memory_allocated(fleet).items()
    text = "Devices of groups and shares that the device plugin, or DRA for a ResourceClaim, also allocated."
    yield "deviceshare_devices_allocated_twice", text, ["by"], allocated_twice(fleet).items()
    text = "Devices about which claims of groups or shares contradict each other; a node without any has no series."
    yield "deviceshare_devices_claimed_twice", text, ["node"], claimed_twice(fleet).items()
    text = "Pods without a node, by what they wait for: their group's devices, or a share; gated ones left out."
    yield "deviceshare_waiting_pods", text, ["wants"], count_waiting(pods).items()
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
    return _of_each(fleet, lambda state: allocated(state)[0])


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
    text, labels = "Devices that the groups of the quota may hold together (spec.hard).", ["quota", "resource"]
    hard = (((each.name, resource), number) for each in known for resource, number in sorted(each.spec.hard.items()))
    yield "deviceshare_quota_hard", text, labels, hard
    used = (((each.name, resource), each.used(resource)) for each in known for resource in sorted(each.spec.hard))
    yield "deviceshare_quota_used", "Devices that they hold, or are about to claim.", labels, used
    text = "1 where the quota can't be read or applied, so that groups that it may count aren't bound."
    yield "deviceshare_quota_invalid", text, ["quota"], ((each.name, bool(each.fault)) for each in known)


_OF_GROUP: Final = (
    ("deviceshare_group_phase", "Always 1; the label says the group's phase.", ["group", "phase"]),
    ("deviceshare_group_devices", "Devices that the group holds.", ["group", "node", "resource"]),
    ("deviceshare_group_pods", "Pods that have the group's devices, by their namespace.", ["group", "namespace"]),
    (
        "deviceshare_group_waiting_pods",
        "Waiting pods of the group; left out are gated ones, and those of namespaces that it does not allow.",
        ["group", "namespace"],
    ),
    ("deviceshare_group_longest_wait_seconds", "For how long the oldest of these pods has waited.", ["group"]),
    ("deviceshare_group_idle_seconds", "For how long the group has held devices without a pod.", ["group"]),
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

    ranked = sorted(groups, key=rank)
    figures = [_figures(fleet, group, waiting.get(group.name, []), now) for group in ranked[:most]]
    for number, (name, text, labels) in enumerate(_OF_GROUP):
        yield name, text, labels, [row for each in figures for row in each[number].items()]
    text = "Groups beyond the limit, which have no other metrics."
    yield "deviceshare_groups_unlisted", text, [], [((), max(len(ranked) - most, 0))]


def _figures(fleet: Fleet, group: Group, waiting: list[Pod], now: str) -> tuple[Figures, ...]:
    """Of one group, in the order of `_OF_GROUP`."""
    name, users, ledger = group.name, fleet.pods(group.uid), fleet.ledger(group.node) if group.node else None
    claim = ledger.claims.get(group.uid) if ledger else None
    if group.spec.allowed_namespaces:  # strangers, whom policies can't refuse at creation, must raise no alert
        waiting = [pod for pod in waiting if not fleet.namespaces.refusal(group, pod.metadata.namespace)]
    # Another version may write further phases; a stranger may write anything.
    known = group.status.phase in (BOUND, DEGRADED, TERMINATING)
    devices = _counted(device.resource for device in claim.whole) if claim else {}
    return (
        {(name, group.status.phase if known else PENDING): 1},
        {(name, group.node, resource): number for resource, number in devices.items()},
        _by_namespace(name, (key.partition("/")[0] for key in users)),
        _by_namespace(name, (pod.metadata.namespace for pod in waiting)),
        _age(name, min((pod.metadata.creation_timestamp or "" for pod in waiting), default=""), now),
        _age(name, "" if users else group.status.idle_since, now),
    )


def _age(name: str, since: str, now: str) -> Figures:
    """Of the group, where `since` is a time."""
    seconds = seconds_between(since, now)
    return {} if seconds is None else {name: max(seconds, 0.0)}


def _by_namespace(group: str, namespaces: Iterable[str]) -> Figures:
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
