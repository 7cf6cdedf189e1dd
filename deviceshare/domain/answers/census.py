"""Numbers for metrics: of devices, groups and waiting pods, and the figures of each group.

Whoever may create groups could create any number of them, so only a bounded number of them is listed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from deviceshare.domain.answers.device_parts import allocated
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, TERMINATING, Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.device_states import DeviceState, Health, Use
from deviceshare.domain.placement.fleet import Fleet

MOST_NAMESPACES: Final = 8
"""Listed for one group; the pods of further namespaces are counted together, as OTHERS."""

OTHERS: Final = "(others)"
"""No namespace can be called so."""


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


class GroupCount(NamedTuple):
    """One group in numbers."""

    name: str
    phase: str
    node: str
    """"" for a group without devices."""
    devices: dict[str, int]
    """By resource."""
    pods: dict[str, int]
    """The pods that have its devices, by namespace."""
    waiting: dict[str, int]
    """Waiting pods that may join, by namespace; no gated ones, and none whose namespace the group doesn't allow."""
    waiting_since: str
    """When the oldest of them was created, RFC 3339; "" where none waits."""
    idle_since: str
    """Since when it holds devices without a pod, RFC 3339; "" where it doesn't."""


GroupCensus = tuple[list[GroupCount], int]
"""The groups that are listed, and how many more there are."""


def count_each_group(fleet: Fleet, groups: Iterable[Group], pods: Iterable[Pod], most: int) -> GroupCensus:
    """At most so many groups: degraded ones first, then those with devices or waiting pods, of these the oldest."""
    waiting: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.group and pod.pending and not pod.gates:
            waiting.setdefault(pod.group, []).append(pod)

    def rank(group: Group) -> tuple[bool, bool, str, str]:
        concerned = bool(group.node) or group.name in waiting
        return group.status.phase != DEGRADED, not concerned, group.metadata.creation_timestamp or "", group.name

    ranked = sorted(groups, key=rank)
    listed = ranked[:most]
    return [_count(fleet, each, waiting.get(each.name, [])) for each in listed], len(ranked) - len(listed)


def _count(fleet: Fleet, group: Group, waiting: list[Pod]) -> GroupCount:
    users, ledger = fleet.pods(group.uid), fleet.ledger(group.node) if group.node else None
    claim = ledger.claims.get(group.uid) if ledger else None
    if group.spec.allowed_namespaces:  # strangers, whom policies can't refuse at creation, must raise no alert
        waiting = [pod for pod in waiting if not fleet.namespaces.refusal(group, pod.metadata.namespace)]
    return GroupCount(
        group.name,
        # Another version may write further phases; a stranger may write anything.
        group.status.phase if group.status.phase in (BOUND, DEGRADED, TERMINATING) else PENDING,
        group.node,
        devices=_counted(device.resource for device in claim.whole) if claim else {},
        pods=_by_namespace(_counted(key.partition("/")[0] for key in users)),
        waiting=_by_namespace(_counted(pod.metadata.namespace for pod in waiting)),
        waiting_since=min((pod.metadata.creation_timestamp or "" for pod in waiting), default=""),
        idle_since="" if users else group.status.idle_since,
    )


def _by_namespace(counted: dict[str, int]) -> dict[str, int]:
    if len(counted) <= MOST_NAMESPACES:
        return counted
    kept = dict(sorted(counted.items())[:MOST_NAMESPACES])
    return kept | {OTHERS: sum(counted.values()) - sum(kept.values())}


def _counted(names: Iterable[str]) -> dict[str, int]:
    # A Counter costs several times as much where the names are few, and this is done at each scrape.
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found
