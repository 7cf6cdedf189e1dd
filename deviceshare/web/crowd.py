"""Limits on a server's connections and their unanswered bytes, shared fairly between client addresses.

Where a limit is reached, the address with the most connections loses the one that has waited longest for its own
request to end, and the address with the most bytes under way its largest request. So a client that fills a server only
closes connections of its own, and the API server, with its few connections and small reviews, is still accepted. A
connection whose request is being answered is spared: it is about to make room anyway.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol


class CrowdBounds(NamedTuple):
    """The limits of one server."""

    connections: int
    request: int
    """Bytes of one request on the wire, headers and chunk encoding included."""
    at_once: int
    """Bytes of all requests under way."""
    per_address: int = 0
    """Connections of one address; 0: as many as of all."""


class Member(Protocol):
    """A connection that counts against the limits."""

    @property
    def address(self) -> str:
        """The client's IP address."""

    @property
    def answered(self) -> bool:
        """Whether its request has arrived whole and is being answered."""

    def drop(self, reason: str) -> None:
        """Closes it at once; called after it has left the crowd."""


class Crowd:
    """The connections of one server."""

    def __init__(self, bounds: CrowdBounds) -> None:
        self._bounds = bounds
        self._members: dict[Member, int] = {}
        """The bytes of each connection's request, in the order in which their last requests ended."""
        self.held = 0
        """Bytes of requests that haven't ended."""

    @property
    def size(self) -> int:
        """The number of connections."""
        return len(self._members)

    def enter(self, member: Member) -> bool:
        """Adds a new connection; another may be closed for it. False: it doesn't fit, close it."""
        others, limit = list(self._members), self._bounds.per_address
        self._members[member] = 0
        alike = [each for each in others if each.address == member.address] if limit else []
        if limit and len(alike) >= limit:
            others = alike
        elif self.size <= self._bounds.connections:
            return True
        victim = _victim(Counter(each.address for each in self._members), others)
        self.leave(victim or member)
        if victim is not None:
            victim.drop("crowded")
        return victim is not None

    def leave(self, member: Member) -> None:
        """Removes a connection that ended; one that left before is ignored."""
        self.held -= self._members.pop(member, 0)

    def take(self, member: Member, size: int) -> bool:
        """Counts bytes of a request that have arrived. False: they don't fit, close the connection."""
        if member not in self._members:
            return False
        self._members[member] += size
        self.held += size
        if self._members[member] > self._bounds.request:
            return False
        while self.held > self._bounds.at_once:
            weights = Counter[str]()
            for each, held in self._members.items():
                weights[each.address] += held
            # Of an address the largest: small reviews of the API server aren't dropped for large ones.
            sizes = sorted(((held, each) for each, held in self._members.items() if held), key=lambda it: -it[0])
            victim = _victim(weights, (each for _, each in sizes))
            if victim is None or victim is member:
                return False
            self.leave(victim)
            victim.drop("crowded")
        return True

    def settle(self, member: Member) -> None:
        """Forgets the bytes of a request that ended; the connection is now the newest."""
        if member in self._members:
            self.leave(member)
            self._members[member] = 0


def _victim(weights: Mapping[str, int], candidates: Iterable[Member]) -> Member | None:
    """The first connection of the address that weighs most, among those that can be closed."""
    closable = (each for each in candidates if not each.answered)
    return max(closable, key=lambda each: weights[each.address], default=None)
