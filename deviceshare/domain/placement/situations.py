"""Situations: what each node offers, in a few words, and all nodes by that, kept up to date at each change of one.

A group that waits asks about all shared nodes. It is answered from lists of nodes that are alike, which differ in few
ways, and what follows is good for all groups that want the same until a stamp says otherwise.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from itertools import count

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement.device_counts import DeviceCounts
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.placement.node_shape import Shape
from deviceshare.domain.placement.nodes_alike import NodesAlike
from deviceshare.domain.placement.overview import NodeLists, Overview, overview
from deviceshare.domain.placement.shapes import Shapes

Stamp = tuple[int, ...]


class Situations:
    """Mutable, but pure."""

    def __init__(self) -> None:
        self.shapes = Shapes()
        self._alike: NodesAlike[Shape] = NodesAlike()
        """By the outlines of their shapes."""
        self._counts = DeviceCounts()
        self._names: list[str] = []
        self._numbers = count(1)
        self._changed: dict[str, int] = {}
        """By node, the number of its last change."""

    def put(self, name: str, node: Node | None, shape: Shape | None) -> None:
        """Takes in a node's new shape; None when it and its ledger are gone."""
        self.shapes.put(name, shape)
        outline = self.shapes.outline(name)
        self._alike.put(name, node.metadata.labels if node else {}, outline if node and node.shared else None)
        known = name in self._changed
        if shape is None:
            self._changed.pop(name, None)
            if known:
                del self._names[bisect_left(self._names, name)]
            return
        if not known:
            insort(self._names, name)
        self._changed[name] = next(self._numbers)

    def count(self, name: str, node: Node | None, ledger: NodeDevices | None, states: Iterable[DeviceState]) -> None:
        """Takes in which devices a node has."""
        self._counts.put(name, node, ledger, states)

    @property
    def names(self) -> list[str]:
        """Every node that is or was shared, sorted."""
        return list(self._names)

    def number(self, selector: Mapping[str, str]) -> int:
        """How many shared nodes have all of these labels."""
        return self._alike.number(selector)

    def overview(self, request: Request) -> Overview:
        """Where a request fits that is met nowhere yet, of all shared nodes that its selector matches."""
        alike = self._alike.names(request.node_selector)
        if not request.share:
            return overview(request, alike)
        found = self.shapes.filter(request, sorted(name for names in alike.values() for name in names), None)
        refused = {reason: NodeLists([mine]) for reason, mine in found.refused.items()}
        return Overview(NodeLists([found.fits] if found.fits else []), refused)

    def most(self, request: Request) -> dict[str, int] | None:
        """The most that one node its selector matches has of what it wants; None where one has, or may have, it all."""
        return self._counts.most(request.resources, request.node_selector)

    def stamp(self, selector: Mapping[str, str], names: Iterable[str] = ()) -> Stamp:
        """Another one after each change of one of these nodes, of what is said of this selector, or of how many share.

        Only what `overview` says of requests for shares may change without it.
        """
        changed = (self._changed.get(name, 0) for name in names)
        return (len(self._alike), self._alike.version(selector), self._counts.version(selector), *changed)
