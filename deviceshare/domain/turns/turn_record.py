"""The record of a turn: what the next agent has to know of one that was given."""

from msgspec import Struct

from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.domain.turns.standing import Player


class TurnRecord(Struct, frozen=True):
    arena: ArenaName
    player: Player
    since: float
    """By CLOCK_BOOTTIME of the node."""
    lease: float
