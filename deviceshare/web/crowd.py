"""Who is connected to a server and how much they have sent: bounded in all, and shared fairly between addresses.

Where a bound is reached, whoever has most makes room: of the address with the most connections, or the most bytes under
way, the connection goes that has waited longest for its own request to end. So a stranger who fills a server only ever
loses what is theirs, and the API server, with its few connections and its small reviews, still finds a place. A
connection whose request is just being answered is spared: it is about to make room anyway.
"""

from typing import NamedTuple, Protocol


class CrowdBounds(NamedTuple):
    """Of one server."""

    connections: int
    request: int
    """Bytes of one request, as they come over the wire: headers, and what encodes chunks, included."""
    at_once: int
    """Bytes of all requests under way."""


class Member(Protocol):
    """A connection, as the crowd sees it."""

    @property
    def address(self) -> str:
        """Whose it is."""

    @property
    def answered(self) -> bool:
        """Whether its request has arrived whole and is being answered."""

    def drop(self, reason: str) -> None:
        """Ends it at once; it has left the crowd by then."""


class _Party:
    """The connections of one address, in the order in which they last began to wait, and their bytes."""

    __slots__ = ("held", "members")

    def __init__(self) -> None:
        self.members: dict[Member, int] = {}
        self.held = 0


class Crowd:
    """Of one server."""

    def __init__(self, bounds: CrowdBounds) -> None:
        self._bounds = bounds
        self._parties: dict[str, _Party] = {}
        self.size = 0
        """Connections."""
        self.held = 0
        """Bytes of requests that haven't ended."""

    def enter(self, member: Member) -> bool:
        """Takes a new connection in; somebody may have to leave for it. False: there is no place for it."""
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
        """It ended; whoever left before is ignored."""
        party = self._parties.get(member.address)
        if party is None or member not in party.members:
            return
        self.settle(member)
        del party.members[member]
        self.size -= 1
        if not party.members:
            del self._parties[member.address]

    def take(self, member: Member, size: int) -> bool:
        """Bytes of a request have come. False: there is no place for them, and the connection has to end."""
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
        """Its request ended: its bytes are gone, and from now on it waits for the next one, behind the others."""
        party = self._parties.get(member.address)
        if party is None or member not in party.members:
            return
        held = party.members.pop(member)
        party.members[member] = 0
        party.held -= held
        self.held -= held

    def _victim(self, weigh: "_Weigh", but: Member | None = None) -> Member | None:
        """The eldest of the party that weighs most of those that can make room."""
        eldest: dict[str, tuple[int, Member]] = {}
        for address, party in self._parties.items():
            for member, held in party.members.items():
                weight = weigh(party, held)
                if weight and not member.answered and member is not but:
                    eldest[address] = (weight, member)
                    break
        return max(eldest.values(), key=lambda each: each[0])[1] if eldest else None


class _Weigh(Protocol):
    def __call__(self, party: _Party, held: int, /) -> int: ...
