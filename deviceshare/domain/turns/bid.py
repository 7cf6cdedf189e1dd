"""A bid for the turn: what a client asks for in the query of its request, checked and bounded.

Clients are programs of any pod of the node, some hostile; who they are is not in here.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

HIGHEST_PRIORITY: Final = 1000
"""And -1000 the lowest."""
LONGEST_SLICE: Final = 7 * 86400
LONGEST_WAIT: Final = 30 * 86400.0
_TOKEN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_KNOWN: Final = frozenset({"token", "pid", "started", "priority", "slice", "waited", "held"})


class BadBid(ValueError):
    """The text names the parameter and what it may be."""


class Bid(Struct, frozen=True):
    """What a client says of itself."""

    token: str
    """A random UUID of its own, the same at each of its connections."""
    pid: int = 0
    """The process that is to become CMD, as numbered in the client's container; 0 where it doesn't say."""
    started: int = 0
    """When that process started, in clock ticks since the node booted (proc_pid_stat(5))."""
    priority: int = 0
    slice: float = 0.0
    """Seconds after which it can be asked to end if others wait; 0: never."""
    waited: float = 0.0
    """Seconds it has waited already, where it connects again."""
    held: bool = False
    """Whether it has been given the turn, and CMD runs."""


def bid_of(query: Mapping[str, str]) -> Bid:
    """The bid in a request's query; raises BadBid."""
    if unknown := sorted(query.keys() - _KNOWN):
        raise BadBid(f"{unknown[0][:40]!r} is no parameter of a turn; use one of {', '.join(sorted(_KNOWN))}")
    token = query.get("token", "")
    if not _TOKEN.fullmatch(token):
        raise BadBid("token has to be a random UUID, as in /proc/sys/kernel/random/uuid")
    return Bid(
        token,
        pid=_number(query, "pid", 0, 1 << 22),
        started=_number(query, "started", 0, 10**18 - 1),
        priority=_number(query, "priority", -HIGHEST_PRIORITY, HIGHEST_PRIORITY),
        slice=float(_number(query, "slice", 0, LONGEST_SLICE)),
        waited=min(float(_number(query, "waited", 0, 10**18 - 1)), LONGEST_WAIT),
        held=bool(_number(query, "held", 0, 1)),
    )


def _number(query: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = query.get(name, "0")
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise BadBid(f"{name} has to be a whole number from {least} to {most}, not {text[:40]!r}")
    return int(text)
