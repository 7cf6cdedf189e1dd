"""The turns of a node, part of an agent's answer to `/usage`: the holder and the queue of each group."""

from msgspec import Struct, field


class TurnHolder(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The program that has the turn."""

    pod: str
    """`namespace/name`"""
    seconds: float
    """Since it was given."""
    priority: int = 0
    asked: bool = False
    """Whether its slice is over and it was asked to end."""
    lost: float = 0.0
    """Seconds since its connection was last heard of, where that is lost."""


class TurnWaiter(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A waiting program."""

    pod: str
    seconds: float
    priority: int = 0


class TurnQueue(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Of one group. Without a holder, no turn is given at present: holders of an earlier agent may still run."""

    group: str
    holder: TurnHolder | None = None
    waiting: list[TurnWaiter] = field(default_factory=list)
    """The next one first."""
