"""The age of a time in one unit, as kubectl prints it: `90s`, `14m`, `3h`, `2d`."""

from datetime import datetime
from typing import Final

from deviceshare.timestamps import seconds_since

_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60))


def age(since: str, now: datetime) -> str:
    """How long ago a time in RFC 3339 was; "" where it is none."""
    seconds = seconds_since(since, now)
    if seconds is None:
        return ""
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= 2 * size), ("s", 1))
    return f"{int(max(seconds, 0)) // size}{unit}"
