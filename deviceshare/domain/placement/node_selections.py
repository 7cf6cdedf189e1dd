"""The nodes that match groups' selectors, kept for a filter call.

A call may name thousands of nodes, and to read the labels of each takes most of its time. So the nodes are kept for the
selectors of the latest calls, and updated at each change of a node.
"""

from collections.abc import Mapping, Set
from typing import Final

KEPT: Final = 64
"""Selectors. Groups have few different ones; with more, a call reads the labels of all nodes now and then."""

Labels = Mapping[str, str]


class Selections:
    """Mutable, but pure: no await, no clock, no log."""

    def __init__(self) -> None:
        self._labels: dict[str, Labels] = {}
        self._matching: dict[frozenset[tuple[str, str]], set[str]] = {}
        """By selector, the least recently used first."""

    def set_labels(self, node: str, labels: Labels | None) -> None:
        """Takes in a node's newest labels; None when it is gone."""
        if labels is None:
            self._labels.pop(node, None)
        elif labels != self._labels.get(node):
            self._labels[node] = labels
        else:
            return
        for selector, nodes in self._matching.items():
            if labels is not None and labels.items() >= selector:
                nodes.add(node)
            else:
                nodes.discard(node)

    def matching(self, selector: Labels) -> Set[str]:
        """The names of the nodes that have all of these labels; of all nodes where there are none."""
        key = frozenset(selector.items())
        nodes = self._matching.pop(key, None)
        if nodes is None:
            # A comparison of item views asks in C whether each wanted label is there.
            nodes = {node for node, labels in self._labels.items() if labels.items() >= key}
            if len(self._matching) >= KEPT:
                del self._matching[next(iter(self._matching))]
        self._matching[key] = nodes
        return nodes
