"""Shapes: all that placement needs to know of a node but its name and labels, and what was found on each shape."""

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from heapq import merge
from itertools import chain, count, islice
from typing import Final, NamedTuple

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import Request
from deviceshare.domain.placement import allocation, join_obstacles
from deviceshare.domain.placement.device_states import DeviceState
from deviceshare.domain.placement.ledger_budget import Crowding
from deviceshare.domain.placement.node_indexes import DeviceCounts, NodesAlike, device_counts
from deviceshare.domain.placement.rooms import Room
from deviceshare.domain.placement.shared_resources import leftover_reason

# A node's shape: all that placement needs to know of a node, but for its name and labels.
# A filter call may name thousands of nodes, most of them in the same situation; it reasons once per shape.

Counts = tuple[tuple[str, int], ...]
"""Devices by resource, sorted."""


class Shape(NamedTuple):
    """Equal for nodes on which the same requests fit."""

    obstacle: Reason | None
    """Why no device of it can be had at all."""
    free: Counts
    total: Counts
    opaque: frozenset[str]
    """Resources of which pods hold devices through the vendor's device plugin, unknown which."""
    withheld: tuple[tuple[str, Reason], ...] = ()
    """Resources of which the node withholds devices, and why."""
    rooms: tuple[Room, ...] = ()
    """What is left for shares, sorted; none of opaque resources."""
    advertised: frozenset[str] = frozenset()
    """Resources by which shares are asked for and that the node itself has, so that its kubelet would count them."""
    doubts: tuple[tuple[str, Reason], ...] = ()
    """Resources of which no device is free since claims may mean any of them, and why."""
    whole: tuple[Room, ...] = ()
    """The devices that a group may get, sorted, and thus the smallest first."""

    crowded: Crowding | None = None
    """Of its ledger, where not every claim would fit."""
    counts_only: str = ""
    """As of its ledger; likewise `claimable`."""
    claimable: frozenset[str] = frozenset()

    def obstacle_to(self, request: Request, effort: allocation.Effort | None = None) -> Reason | None:
        """Why the request doesn't fit."""
        lacks = (self._obstacle_to_group if request.resources else self._obstacle_to_share)(request, effort)
        return lacks or (self.crowded.obstacle_to(request) if self.crowded else None)

    def _obstacle_to_group(self, request: Request, effort: allocation.Effort | None) -> Reason | None:
        if obstacle := self.obstacle or join_obstacles.opaque_reason(self.opaque & request.resources.keys()):
            return obstacle
        if request.by_claim and (bare := join_obstacles.not_claimable(request, self.claimable)):
            return bare
        total = dict(self.total)
        if reason := _first(self.withheld, request.resources.keys() - total.keys()):
            return reason
        if lacks := allocation.shortage(request, dict(self.free), total):
            # kube-scheduler writes the number of nodes before a reason, hence words like those of its own reasons.
            full = Reason(ReasonKind.TOO_FULL, f"node(s) too full: {request.holder} needs {lacks}")
            return _first(self.doubts, request.resources) or full
        if not request.share:
            return None
        if none := self.no_shares(request):
            return none
        # Which of them the group gets isn't known yet, and once it has them it keeps them: so the smallest must do.
        mine = (islice((room for room in self.whole if room.resource == r), n) for r, n in request.resources.items())
        return allocation.share_shortage(request.share, list(chain.from_iterable(mine)), effort)

    def _obstacle_to_share(self, request: Request, effort: allocation.Effort | None) -> Reason | None:
        share = request.share
        if obstacle := self.obstacle or self.no_shares(request):
            return obstacle
        lacks = allocation.share_shortage(share, self.rooms, effort)
        if lacks is None or lacks is allocation.NOT_COMPARED:
            return lacks
        if reason := join_obstacles.opaque_reason(self.opaque & set(share.of)):
            return reason
        withheld = _first(self.withheld, set(share.of) - dict(self.total).keys())
        return withheld or _first(self.doubts, share.of) or lacks

    def no_shares(self, request: Request) -> Reason | None:
        """Why the node has no part of a device for the request, whatever is free."""
        if left := self.advertised & set(request.share.resources):
            return leftover_reason(left)
        return join_obstacles.counted_only(request, self.counts_only)

    def preference(self, request: Request, effort: allocation.Effort | None = None) -> allocation.Preference:
        """By which nodes are compared for the request (allocation.scores): the less, the fuller.

        Of nodes where a share fits as tightly, as where it opens a device that is nobody's yet, the one with fewer
        devices that are nobody's is the fuller: so whole devices stay together for groups.
        """
        if request.resources:
            return sum(count for resource, count in self.free if resource in request.resources), 0
        mine, whole = request.share.of, sum(room.resource in request.share.of for room in self.whole)
        if request.strategy == allocation.SPREAD:
            return sum(room.free for room in self.rooms if room.resource in mine), whole
        return allocation.tightness(request.share, self.rooms, effort), whole


def _first(reasons: Iterable[tuple[str, Reason]], resources: Container[str]) -> Reason | None:
    return next((reason for resource, reason in reasons if resource in resources), None)


def counts(devices: Iterable[Device]) -> Counts:
    """How many of these there are of each resource."""
    return tuple(sorted(Counter([device.resource for device in devices]).items()))


# An overview of all shared nodes that a request's selector matches: where it fits, and why not elsewhere.
# It says what `Filtered` says of named nodes, but is made from lists of nodes that are alike, which it never joins.


class NodeLists(NamedTuple):
    """Nodes in several lists, each sorted."""

    lists: list[Sequence[str]]

    def __len__(self) -> int:
        return sum(map(len, self.lists))

    def __bool__(self) -> bool:
        return bool(self.lists)

    @property
    def names(self) -> Iterable[str]:
        """All, in no order."""
        return chain.from_iterable(self.lists)

    def first(self, number: int) -> list[str]:
        """The first so many by name."""
        return list(islice(merge(*(names[:number] for names in self.lists)), number))


class Overview(NamedTuple):
    """Of each reason there is at least one node."""

    fits: NodeLists
    refused: dict[Reason, NodeLists]


# Situations: what each node offers, in a few words, and all nodes by that, kept up to date at each change of one.
# A group that waits asks about all shared nodes. It is answered from lists of nodes that are alike, which differ in
# few ways, and what follows is good for all groups that want the same until a stamp says otherwise. What was found of
# each shape for the shares that were asked about last is kept.

Stamp = tuple[int, ...]

KEPT: Final = 32
"""Different shares; with 5,000 nodes in as many situations half a megabyte for each."""
EFFORT: Final = 10_000
"""Situations looked at in one call: a quarter of a second. What was found is kept, so that the next call gets on."""


class Filtered(NamedTuple):
    """The answer to a filter call: the nodes that fit, and those that don't, by the reason."""

    fits: list[str]
    refused: dict[Reason, list[str]]

    @property
    def reasons(self) -> dict[str, Reason]:
        """By node."""
        return {node: reason for reason, nodes in self.refused.items() for node in nodes}


class _Found(NamedTuple):
    """By the `id` of a shape, or of None; a shape that no node has any more is in neither."""

    obstacles: dict[int, Reason | None]
    preferences: dict[int, allocation.Preference]


class _Interned:
    """Shapes by node. Equal ones are one object, which lives as long as a node has it."""

    def __init__(self) -> None:
        self.of: dict[str, Shape] = {}
        self._same: dict[Shape, Shape] = {}
        self._nodes: dict[int, int] = {}
        """How many nodes have a shape, by its `id`."""

    def put(self, name: str, shape: Shape | None) -> int:
        """Takes in a node's new shape; returns the `id` of the old one if no node has it any more, else 0."""
        before = self.of.pop(name, None)
        if shape is not None:
            mine = self.of[name] = self._same.setdefault(shape, shape)
            self._nodes[id(mine)] = self._nodes.get(id(mine), 0) + 1
        if before is None:
            return 0
        self._nodes[id(before)] -= 1
        if self._nodes[id(before)]:
            return 0
        del self._nodes[id(before)], self._same[before]
        return id(before)


class Situations:
    """Mutable, but pure."""

    def __init__(self) -> None:
        self._whole = _Interned()
        self._outlines = _Interned()
        """Without what is left for shares, so that for groups many nodes are in the same situation."""
        self._alike: NodesAlike[Shape] = NodesAlike()
        """By the outlines of their shapes."""
        self._devices = NodesAlike[DeviceCounts]()
        self.names: list[str] = []
        """Every node that is or was shared, sorted. Not to be kept, either."""
        self._numbers = count(1)
        self._changed: dict[str, int] = {}
        """By node, the number of its last change."""
        self._kept: OrderedDict[object, _Found] = OrderedDict()

    def put(self, name: str, node: Node | None, shape: Shape | None) -> None:
        """Takes in a node's new shape; None when it and its ledger are gone."""
        outline = shape and shape._replace(rooms=(), whole=(), advertised=frozenset(), counts_only="")
        self._outlines.put(name, outline)
        if gone := self._whole.put(name, shape):
            # Another shape may get its `id` later: nothing may be known of that.
            for found in self._kept.values():
                found.obstacles.pop(gone, None)
                found.preferences.pop(gone, None)
        outline = self._outlines.of.get(name)
        self._alike.put(name, node.metadata.labels if node else {}, outline if node and node.shared else None)
        known = self._changed.pop(name, None)
        if shape is not None:
            self._changed[name] = next(self._numbers)
            if known is None:
                insort(self.names, name)
        elif known is not None:
            del self.names[bisect_left(self.names, name)]

    def count(self, name: str, node: Node | None, ledger: NodeDevices | None, states: Iterable[DeviceState]) -> None:
        """Takes in which devices a node has; what is lost or withheld counts, since it may come back."""
        counts = device_counts(node, ledger, states) if node and node.shared else None
        self._devices.put(name, node.metadata.labels if node else {}, counts)

    def get(self, name: str) -> Shape | None:
        """The node's shape; None for nodes that are unknown."""
        return self._whole.of.get(name)

    def selected(self, selector: Mapping[str, str]) -> Set[str]:
        """The shared nodes that have all of these labels. Not to be kept: it changes with the nodes."""
        return self._alike.of(selector).every

    def overview(self, request: Request) -> Overview:
        """Where a request fits that is met nowhere yet, of all shared nodes that its selector matches."""
        alike = self._alike.of(request.node_selector)
        fits, refused = NodeLists([]), dict[Reason, NodeLists]()
        if request.share:
            found = self.filter(request, sorted(alike.every))
            refused = {reason: NodeLists([mine]) for reason, mine in found.refused.items()}
            return Overview(NodeLists([found.fits]) if found.fits else fits, refused)
        for shape, names in alike.names.items():
            reason = shape.obstacle_to(request)
            place = refused.setdefault(reason, NodeLists([])) if reason else fits
            place.lists.append(names)
        return Overview(fits, refused)

    def most(self, request: Request) -> dict[str, int] | None:
        """The most devices that one node has of each wanted resource; None where some node has, or may have, them all.

        The nodes that count are the shared ones that the request's selector matches. None also where there is none.
        """
        different, wanted = self._devices.of(request.node_selector).names, request.resources
        most = dict.fromkeys(wanted, 0)
        for each in different:
            mine = each.of(wanted)
            if all(mine[resource] >= number for resource, number in wanted.items()):
                return None
            most = {resource: max(number, mine[resource]) for resource, number in most.items()}
        return most if different else None

    def largest(self, resources: Collection[str]) -> int:
        """MiB of the largest device of these resources on a shared node; 0 where that of some device is unknown."""
        every = self._devices.of({}).names
        sizes = [size for each in every for resource, size in each.sizes if resource in resources]
        return max(sizes) if sizes and all(sizes) else 0

    def stamp(self, selector: Mapping[str, str], names: Iterable[str] = ()) -> Stamp:
        """Another one after each change of one of these nodes, of what is said of this selector, or of how many share.

        Only what `overview` says of requests for shares may change without it.
        """
        changed = (self._changed.get(name, 0) for name in names)
        return (len(self._alike), self._alike.of(selector).version, self._devices.of(selector).version, *changed)

    def filter(self, request: Request, names: Iterable[str]) -> Filtered:
        """Those of the nodes on which the request fits, and the others by the reason."""
        selected = self.selected(request.node_selector) if request.node_selector else None
        fits: list[str] = []
        unselected: list[str] = []
        refused: dict[Reason, list[str]] = {}
        places: dict[int, list[str]] = {}  # where nodes of a shape are listed: each name costs one look-up
        shapes, found = self._known(request)
        obstacles, effort = found.obstacles, allocation.Effort(EFFORT)
        for name in names:
            shape = shapes.get(name)
            key = id(shape)
            place = places.get(key)
            if place is None:
                if key in obstacles:
                    reason = obstacles[key]
                else:
                    reason = shape.obstacle_to(request, effort) if shape else join_obstacles.NOT_SHARED
                    # What a crowded ledger takes depends on the names and namespace of the pod.
                    if reason is not allocation.NOT_COMPARED and not (shape and shape.crowded):
                        obstacles[key] = reason
                place = places[key] = refused.setdefault(reason, []) if reason else fits
            if selected is not None and place is fits and name not in selected:
                place = unselected
            place.append(name)
        if unselected:
            refused[join_obstacles.OTHER_LABELS] = unselected
        return Filtered(fits, refused)

    def preferences(self, request: Request, names: Iterable[str]) -> dict[str, allocation.Preference]:
        """By node, `Shape.preference`; (0, 0) for unknown ones."""
        preferences: dict[str, allocation.Preference] = {}
        shapes, (_, found) = self._known(request)
        effort = allocation.Effort(EFFORT)
        for name in names:
            shape = shapes.get(name)
            key = id(shape)
            preference = found.get(key)
            if preference is None:
                preference = shape.preference(request, effort) if shape else (0, 0)
                if effort.left > 0:  # else it may be 0 for want of effort, as `NOT_COMPARED` is for filter
                    found[key] = preference
            preferences[name] = preference
        return preferences

    def _known(self, request: Request) -> tuple[Mapping[str, Shape], _Found]:
        """The shapes that the request asks about, by node, and what was found of them for it."""
        shapes = (self._whole if request.share else self._outlines).of
        if request.resources:
            return shapes, _Found({}, {})  # reasons name the group, and its pods are soon bound to one node
        key = _share_key(request)
        found = self._kept.setdefault(key, _Found({}, {}))
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return shapes, found


def _share_key(request: Request) -> object:
    """Equal for requests of which a shape's answers are the same: whatever pods and their containers are called."""
    numbers: dict[str, int] = {}
    needs = [n._replace(container=str(numbers.setdefault(n.container, len(numbers)))) for n in request.share.needs]
    return tuple(needs), request.share.resources, request.share.faults, request.strategy, request.isolated
