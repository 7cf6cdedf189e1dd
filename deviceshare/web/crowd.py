"""Limits on a server's connections and their unanswered bytes, shared fairly between client addresses.

Where a limit is reached, the address with the most connections, or the most bytes under way, loses the connection that
has waited longest for its own request to end. So a client that fills a server only closes connections of its own, and
the API server, with its few connections and small reviews, is still accepted. A connection whose request is being
answered is spared: it is about to make room anyway.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class CrowdBounds(NamedTuple):
    """The limits of one server."""

    connections: int
    request: int
    """Bytes of one request on the wire, headers and chunk encoding included."""
    at_once: int
    """Bytes of all requests under way."""


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


class _Party:
    """The connections of one address, in the order in which their last requests ended, and their bytes."""

    __slots__ = ("held", "members")

    def __init__(self) -> None:
        self.members: dict[Member, int] = {}
        self.held = 0


class Crowd:
    """The connections of one server."""

    def __init__(self, bounds: CrowdBounds) -> None:
        self._bounds = bounds
        self._parties: dict[str, _Party] = {}
        self.size = 0
        """Connections."""
        self.held = 0
        """Bytes of requests that haven't ended."""

    def enter(self, member: Member) -> bool:
        """Adds a new connection; another may be closed for it. False: it doesn't fit, close it."""
        party = self._parties.setdefault(member.address, _Party())
        party.members[member] = 0
        self.size += 1
        if self.size <= self._bounds.connections:
            return True
        victim = self._victim(lambda party, _: len(party.members), but=member)
        self.leave(victim or member)
        if victim is not None:
            victim.drop("crowded")
        return victim is not None

    def leave(self, member: Member) -> None:
        """Removes a connection that ended; one that left before is ignored."""
        party = self._parties.get(member.address)
        if party is None or member not in party.members:
            return
        self.settle(member)
        del party.members[member]
        self.size -= 1
        if not party.members:
            del self._parties[member.address]

    def take(self, member: Member, size: int) -> bool:
        """Counts bytes of a request that have arrived. False: they don't fit, close the connection."""
        party = self._parties.get(member.address)
        if party is None or member not in party.members:
            return False
        party.members[member] += size
        party.held += size
        self.held += size
        if party.members[member] > self._bounds.request:
            return False
        while self.held > self._bounds.at_once:
            victim = self._victim(lambda party, held: party.held if held else 0)
            if victim is None or victim is member:
                return False
            self.leave(victim)
            victim.drop("crowded")
        return True

    def settle(self, member: Member) -> None:
        """Forgets the bytes of a request that ended; the connection is now the newest of its address."""
        party = self._parties.get(member.address)
        if party is None or member not in party.members:
            return
        held = party.members.pop(member)
        party.members[member] = 0
        party.held -= held
        self.held -= held

    def _victim(self, weigh: Callable[[_Party, int], int], but: Member | None = None) -> Member | None:
        """The oldest connection of the address that weighs most, among those that can be closed."""
        eldest: dict[str, tuple[int, Member]] = {}
        for address, party in self._parties.items():
            for member, held in party.members.items():
                weight = weigh(party, held)
                if weight and not member.answered and member is not but:
                    eldest[address] = (weight, member)
                    break
        return max(eldest.values(), key=lambda each: each[0])[1] if eldest else None
