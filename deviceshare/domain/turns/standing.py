"""A player's standing: waiting for the turn, or holding it."""

from msgspec import Struct

from deviceshare.domain.turns.lease import LEASE_UNSEEN, grace


class Witness(Struct, frozen=True):
    """A process by which the node's kernel shows whether a turn is over: the one that becomes CMD, in the agent's PID
    namespace. Its turn lasts until it and all processes of its process group and session have ended."""

    pid: int
    started: int
    """In clock ticks since the node booted: PIDs are reused."""
    pod_uid: str


class Player(Struct, frozen=True):
    """A program that takes turns, known by its pod's UID and the token of its bid: nobody can act for another pod."""

    pod_uid: str
    token: str
    pod: str = ""
    """`namespace/name`"""
    priority: int = 0
    slice: float = 0.0
    witness: Witness | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.pod_uid, self.token


class Waiting(Struct, frozen=True):
    """A connected player without the turn. Times are seconds of one monotonic clock."""

    player: Player
    since: float
    connection: int

    @property
    def rank(self) -> tuple[int, float, int]:
        """The least is next: by priority, then by age."""
        return -self.player.priority, self.since, self.connection


class TurnHeld(Struct, frozen=True):
    """The player that has the turn, or may still have it."""

    player: Player
    since: float
    heartbeat: float
    """When the last heartbeat was sent."""
    connection: int | None
    """None while it is lost."""
    lease: float = LEASE_UNSEEN
    asked: bool = False
    """Whether it was asked to yield."""

    def over(self, now: float) -> bool:
        """Whether its client must have ended CMD by now. What a witness shows is better knowledge."""
        lost = self.connection is None and self.player.witness is None
        return lost and now > self.heartbeat + grace(self.lease)
