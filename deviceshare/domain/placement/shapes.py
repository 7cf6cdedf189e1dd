"""Shapes: the shape of every node, and what was found of each for the shares that were asked about last.

Pods that ask for the same share come in large numbers, and from one filter call to the next few nodes change. So what a
share found on a shape is kept for as long as a node has that shape, and a call reasons about the nodes that changed.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement.allocation import Preference
from deviceshare.domain.placement.join_obstacles import NOT_SHARED, OTHER_LABELS
from deviceshare.domain.placement.node_shape import Shape
from deviceshare.domain.placement.sharing import NOT_COMPARED, Effort

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
    preferences: dict[int, Preference]


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


class Shapes:
    """Mutable, but pure."""

    def __init__(self) -> None:
        self._whole = _Interned()
        self._outlines = _Interned()
        """Without what is left for shares, so that for groups many nodes are in the same situation."""
        self._kept: OrderedDict[object, _Found] = OrderedDict()

    def get(self, name: str) -> Shape | None:
        """The node's shape; None for nodes that are unknown."""
        return self._whole.of.get(name)

    def outline(self, name: str) -> Shape | None:
        """Likewise, without what is left for shares; equal ones are one object."""
        return self._outlines.of.get(name)

    def put(self, name: str, shape: Shape | None) -> None:
        """Takes in a node's new shape; None when the node is gone."""
        self._outlines.put(name, shape and shape.outline)
        if gone := self._whole.put(name, shape):
            # Another shape may get its `id` later: nothing may be known of that.
            for found in self._kept.values():
                found.obstacles.pop(gone, None)
                found.preferences.pop(gone, None)

    def filter(self, request: Request, names: Iterable[str], selected: Collection[str] | None) -> Filtered:
        """The nodes on which the request fits, of those `selected` if that is given; and the others by the reason."""
        fits: list[str] = []
        unselected: list[str] = []
        refused: dict[Reason, list[str]] = {}
        places: dict[int, list[str]] = {}  # where nodes of a shape are listed: each name costs one look-up
        shapes, obstacles, effort = self._for(request), self._found(request).obstacles, Effort(EFFORT)
        for name in names:
            shape = shapes.get(name)
            key = id(shape)
            place = places.get(key)
            if place is None:
                if key in obstacles:
                    reason = obstacles[key]
                else:
                    reason = shape.obstacle_to(request, effort) if shape else NOT_SHARED
                    # What a crowded ledger takes depends on the names and namespace of the pod.
                    if reason is not NOT_COMPARED and not (shape and shape.crowded):
                        obstacles[key] = reason
                place = places[key] = refused.setdefault(reason, []) if reason else fits
            if selected is not None and place is fits and name not in selected:
                place = unselected
            place.append(name)
        if unselected:
            refused[OTHER_LABELS] = unselected
        return Filtered(fits, refused)

    def preferences(self, request: Request, names: Iterable[str]) -> dict[str, Preference]:
        """By node, `Shape.preference`; (0, 0) for unknown ones."""
        preferences: dict[str, Preference] = {}
        shapes, found, effort = self._for(request), self._found(request).preferences, Effort(EFFORT)
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

    def _for(self, request: Request) -> dict[str, Shape]:
        return (self._whole if request.share else self._outlines).of

    def _found(self, request: Request) -> _Found:
        if request.resources:
            return _Found({}, {})  # reasons name the group, and its pods are soon bound to one node
        key = _share_key(request)
        found = self._kept.setdefault(key, _Found({}, {}))
        self._kept.move_to_end(key)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return found


def _share_key(request: Request) -> object:
    """Equal for requests of which a shape's answers are the same: whatever pods and their containers are called."""
    numbers: dict[str, int] = {}
    needs = [
        need._replace(container=str(numbers.setdefault(need.container, len(numbers)))) for need in request.share.needs
    ]
    return tuple(needs), request.share.resources, request.share.faults, request.strategy
