"""An overview of all shared nodes that a request's selector matches: where it fits, and why not elsewhere.

It says what `Filtered` says of named nodes, but is made from lists of nodes that are alike, which it never joins.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import chain, islice
from typing import NamedTuple

from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement.node_shape import Shape


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


def overview(request: Request, alike: Mapping[Shape, Sequence[str]]) -> Overview:
    """Of a request for whole devices; `alike` are the nodes by their shape."""
    fits, refused = NodeLists([]), dict[Reason, NodeLists]()
    for shape, names in alike.items():
        reason = shape.obstacle_to(request)
        place = refused.setdefault(reason, NodeLists([])) if reason else fits
        place.lists.append(names)
    return Overview(fits, refused)
