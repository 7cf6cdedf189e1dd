"""The client of turns: the shell script that agents give to containers, and what its requests ask for.

Clients are programs of any pod of the node, some hostile: requests are checked and bounded. Who asks is not in them.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from deviceshare.domain.turns.program_queue import KILL, RETRY, SILENCE

LONGEST_WAIT: Final = 30 * 86400.0
_NUMBERS: Final = {
    "pid": (0, 1 << 22),
    "started": (0, 10**18 - 1),
    "priority": (-1000, 1000),
    "slice": (0, 7 * 86400),
    "waited": (0, 10**18 - 1),
    "held": (0, 1),
}
"""The least and the most."""
_TOKEN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_SCRIPT: Final = Path(__file__).with_name("turn.sh")


@cache
def script() -> str:
    """`turn.sh` with the times of `program_queue.py`. `deviceshare turn` runs it, too."""
    text = _SCRIPT.read_text()
    kills = " ".join(map(str, range(1, KILL + 1)))
    for name, value in {"SILENCE": SILENCE, "RETRY": RETRY, "KILLS": kills, "KILL": KILL}.items():
        text = text.replace(f"@{name}@", str(value))
    return text


class BadTurnRequest(ValueError):
    """The text names the parameter and what it may be."""


class TurnRequest(Struct, frozen=True):
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


def turn_request(query: Mapping[str, str]) -> TurnRequest:
    """The request with this query; raises BadTurnRequest."""
    known = sorted(["token", *_NUMBERS])
    if unknown := sorted(query.keys() - known):
        raise BadTurnRequest(f"{unknown[0][:40]!r} is no parameter of a turn; use one of {', '.join(known)}")
    token = query.get("token", "")
    if not _TOKEN.fullmatch(token):
        raise BadTurnRequest("token has to be a random UUID, as in /proc/sys/kernel/random/uuid")
    numbers = {}
    for name, (least, most) in _NUMBERS.items():
        text = query.get(name, "0")
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise BadTurnRequest(f"{name} has to be a whole number from {least} to {most}, not {text[:40]!r}")
        numbers[name] = int(text)
    waited, held = min(numbers.pop("waited"), LONGEST_WAIT), bool(numbers.pop("held"))
    return TurnRequest(token, **numbers, waited=waited, held=held)
