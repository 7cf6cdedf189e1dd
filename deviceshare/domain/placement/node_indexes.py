"""Indexes of nodes: what is asked of all shared nodes at once, kept up to date at each change of one."""

import sys
from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement import shared_resources
from deviceshare.domain.placement.device_states import DeviceState

K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=Hashable)
T = TypeVar("T")


def put(table: dict[K, T], key: K, value: T | None) -> None:
    """Takes in an entry; None when it is gone."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def put_at(tables: dict[K, dict[L, T]], place: K, key: L, value: T | None) -> None:
    """Likewise into one of several tables; none is kept that is empty."""
    mine = tables.setdefault(place, {})
    put(mine, key, value)
    if not mine:
        del tables[place]


# Nodes alike: the shared nodes by a value of theirs, such as their shape, for each selector asked about lately.
# What thousands of nodes mean for hundreds of waiting groups is reasoned once for each different value. A change of a
# node moves one name, and nothing is counted again.

KEPT: Final = 1024
"""Selectors. A change of a node compares its labels with each: a third of a millisecond."""
KEPT_NAMES: Final = 200_000
"""Names of nodes in all of them together, some sixty bytes each."""

Labels = Mapping[str, str]
V = TypeVar("V", bound=Hashable)


class _Selected(Generic[V]):
    """The nodes that one selector matches. Not to be kept: it changes with the nodes."""

    __slots__ = ("every", "names", "version", "wanted")

    def __init__(self, wanted: frozenset[tuple[str, str]], version: int) -> None:
        self.wanted = wanted
        self.version = version
        """Another one whenever `names` may be another."""
        self.names: dict[V, list[str]] = {}
        """By value, the nodes that have all of these labels, sorted."""
        self.every: set[str] = set()

    def move(self, name: str, old: V | None, new: V | None) -> None:
        if old is not None:
            names = self.names[old]
            del names[bisect_left(names, name)]
            self.every.discard(name)
            if not names:
                del self.names[old]
        if new is not None:
            insort(self.names.setdefault(new, []), name)
            self.every.add(name)


class NodesAlike(Generic[V]):
    """Mutable, but pure."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Labels, V]] = {}
        self._versions = count(1)
        self._all: _Selected[V] = _Selected(frozenset(), 0)
        self._kept: OrderedDict[frozenset[tuple[str, str]], _Selected[V]] = OrderedDict()
        """The least recently used first."""

    def __len__(self) -> int:
        return len(self._nodes)

    def put(self, name: str, labels: Labels, value: V | None) -> None:
        """Takes in a node's labels and value; None where it is not shared, or gone."""
        before, now = self._nodes.get(name), None if value is None else (labels, value)
        if before == now:
            return
        put(self._nodes, name, now)
        for each in (self._all, *self._kept.values()):
            # A comparison of item views asks in C whether each wanted label is there.
            old = before[1] if before and before[0].items() >= each.wanted else None
            new = now[1] if now and now[0].items() >= each.wanted else None
            if old != new:
                each.move(name, old, new)
                each.version = next(self._versions)

    def of(self, selector: Labels) -> _Selected[V]:
        """The nodes that have all of these labels."""
        if not selector:
            return self._all
        wanted = frozenset(selector.items())
        if found := self._kept.get(wanted):
            self._kept.move_to_end(wanted)
            return found
        found = self._kept[wanted] = _Selected(wanted, next(self._versions))
        for value, names in self._all.names.items():
            if mine := [name for name in names if self._nodes[name][0].items() >= wanted]:
                found.names[value] = mine
                found.every.update(mine)
        number = sum(len(each.every) for each in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > KEPT or number > KEPT_NAMES):
            number -= len(self._kept.popitem(last=False)[1].every)
        return found


# Device counts: how many devices a shared node has, free or not, and how much memory these have.
# Every group that waits asks whether any node could ever have what it wants, and the webhook for the largest device at
# each creation of a pod with a share. Most nodes of a cluster have the same devices as others, so that few different
# counts are compared, however many nodes there are.

UNKNOWN: Final = sys.maxsize
"""The count where a node may have any number of devices."""


class DeviceCounts(NamedTuple):
    """Equal for nodes that have the same devices."""

    numbers: frozenset[tuple[str, int]]
    """By resource; of a node that may have anything by "", as where its ledger is missing, or names no devices yet."""
    sizes: frozenset[tuple[str, int]]
    """The resources of its devices for groups and shares, and MiB."""

    def of(self, resources: Iterable[str]) -> dict[str, int]:
        """How many it has, or may have, of each of these."""
        numbers = dict(self.numbers)
        rest = numbers.get("", 0)
        return {resource: max(numbers.get(resource, 0), rest) for resource in resources}


def device_counts(node: Node, ledger: NodeDevices | None, states: Iterable[DeviceState]) -> DeviceCounts:
    """What a shared node has, by its ledger."""
    every = tuple(states)
    sizes = frozenset((state.device.resource, state.memory_mib) for state in every if state.offered)
    if ledger is None or ledger.metadata.unreadable or node.metadata.unreadable:
        return DeviceCounts(_ANY, sizes)
    if not ledger.status.devices and (ledger.hardware.devices or shared_resources.count_devices(node)):
        return DeviceCounts(_ANY, sizes)  # it was just created, or its device plugin restarts
    count = Counter(state.device.resource for state in every)
    unknown = {each.resource: UNKNOWN for each in ledger.status.withheld if not each.devices}
    return DeviceCounts(frozenset((count | Counter(unknown)).items()), sizes)


_ANY: Final = frozenset({("", UNKNOWN)})
