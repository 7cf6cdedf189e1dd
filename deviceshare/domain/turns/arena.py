"""An arena: the players that take turns with each other, of whom one at most has the turn.

A state machine on plain values: time and what the node's kernel shows are passed in. Never two hold the turn: it is
free again only when its holder released it, when its processes are seen to have ended, or, where they can't be seen,
when the grace of a lost holder has passed.
"""

from enum import Enum, auto

from msgspec.structs import replace

from deviceshare.domain.turns.standing import Player, TurnHeld, Waiting


class Seating(Enum):
    """What a player that connected is told."""

    WAIT = auto()
    TURN = auto()
    """It has the turn: it may start CMD, or go on with it."""
    GONE = auto()
    """It says that it has the turn, but it has not: CMD has to end."""


class Arena:
    """`closed_until` is when all holders that an earlier agent may have left have ended or come back."""

    def __init__(self, closed_until: float = 0.0) -> None:
        self.holding: TurnHeld | None = None
        self._closed_until = closed_until
        self._waiting: dict[tuple[str, str], Waiting] = {}

    @property
    def empty(self) -> bool:
        return self.holding is None and not self._waiting

    @property
    def queue(self) -> list[Waiting]:
        """The waiting players; the first is next."""
        return sorted(self._waiting.values(), key=lambda each: each.rank)

    def join(self, player: Player, connection: int, now: float, *, waited: float, held: bool, lease: float) -> Seating:
        """A player connects, or connects again; of two connections of a player the later one counts."""
        holding = self.holding
        if holding and holding.player.key == player.key:
            # Also one that says that it waits: it was given the turn, and hasn't heard of it.
            self.holding = replace(holding, connection=connection)
            return Seating.TURN
        if held and (holding or now >= self._closed_until):
            return Seating.GONE
        if held:
            # The arena stays closed until this one has ended: that agent may have told it a longer lease.
            self.holding = TurnHeld(player, now, now, connection, lease)
            return Seating.TURN
        self._waiting[player.key] = Waiting(player, now - waited, connection)
        return Seating.WAIT

    def leave(self, key: tuple[str, str], connection: int) -> None:
        """A connection has ended, who knows why: a waiting player is gone, a holder is lost."""
        waiting = self._waiting.get(key)
        if waiting and waiting.connection == connection:
            del self._waiting[key]
        if self.holding and self.holding.player.key == key and self.holding.connection == connection:
            self.holding = replace(self.holding, connection=None)

    def release(self, key: tuple[str, str]) -> None:
        """The player says that CMD has ended."""
        self._waiting.pop(key, None)
        self.ended(key)

    def ended(self, key: tuple[str, str]) -> None:
        """The node's kernel shows no process of this turn any more, whatever is connected."""
        if self.holding and self.holding.player.key == key:
            self.holding = None
            self._closed_until = 0.0  # There was one holder at most, and this was it.

    def next(self, now: float) -> Waiting | None:
        """To whom the turn can be given now."""
        if self.holding and self.holding.over(now):
            self.holding = None
        if self.holding or now < self._closed_until or not self._waiting:
            return None
        return self.queue[0]

    def give(self, waiting: Waiting, now: float, lease: float) -> TurnHeld:
        """Gives the turn to who is `next`. To be recorded before it is told."""
        del self._waiting[waiting.player.key]
        self.holding = TurnHeld(waiting.player, now, now, waiting.connection, lease)
        return self.holding

    def resume(self, player: Player, since: float, now: float, lease: float) -> None:
        """An earlier agent gave the turn to this player, which may have it still; its last heartbeat was before now."""
        self.holding = TurnHeld(player, since, now, None, lease)

    def beat(self, now: float) -> TurnHeld | None:
        """The connected holder, which is to be sent a heartbeat now."""
        if self.holding is None or self.holding.connection is None:
            return None
        self.holding = replace(self.holding, heartbeat=now)
        return self.holding

    def ask(self, now: float) -> TurnHeld | None:
        """The connected holder whose slice is over while others wait, once."""
        holding = self.holding
        if holding is None or holding.connection is None or holding.asked or not self._waiting:
            return None
        if not holding.player.slice or now < holding.since + holding.player.slice:
            return None
        self.holding = replace(holding, asked=True)
        return self.holding
