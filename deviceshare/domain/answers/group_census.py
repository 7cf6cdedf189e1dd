"""The figures of each group for its metrics: phase, devices, pods, waiting pods, and since when it waits or is idle.

Whoever may create groups could create any number of them, so only a bounded number of them is listed.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, TERMINATING, Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet

MOST_NAMESPACES: Final = 8
"""Listed for one group; the pods of further namespaces are counted together, as OTHERS."""

OTHERS: Final = "(others)"
"""No namespace can be called so."""

PHASES: Final = frozenset({PENDING, BOUND, DEGRADED, TERMINATING})


class GroupCount(NamedTuple):
    """One group in numbers."""

    name: str
    phase: str
    node: str
    """"" for a group without devices."""
    devices: dict[str, int]
    """By resource."""
    pods: dict[str, int]
    """Those that have its devices, by namespace."""
    waiting: dict[str, int]
    """Those that wait to join, by namespace; without gated ones, and those whose namespace the group doesn't allow."""
    waiting_since: str
    """When the oldest of them was created, RFC 3339; "" where none waits."""
    idle_since: str
    """Since when it holds devices without a pod, RFC 3339; "" where it doesn't."""


class GroupCensus(NamedTuple):
    """The groups that are listed, and how many more there are."""

    groups: list[GroupCount]
    left_out: int


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
    return GroupCensus([_count(fleet, each, waiting.get(each.name, [])) for each in listed], len(ranked) - len(listed))


def _count(fleet: Fleet, group: Group, waiting: list[Pod]) -> GroupCount:
    users, ledger = fleet.pods(group.uid), fleet.ledger(group.node) if group.node else None
    claim = ledger.claims.get(group.uid) if ledger else None
    if group.spec.allowed_namespaces:  # strangers, whom policies can't refuse at creation, must raise no alert
        waiting = [pod for pod in waiting if not fleet.namespaces.refusal(group, pod.metadata.namespace)]
    return GroupCount(
        group.name,
        # Another version may write further phases; a stranger may write anything.
        group.status.phase if group.status.phase in PHASES else PENDING,
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
