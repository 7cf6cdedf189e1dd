"""Clients' texts, shortened and escaped for logs, answers and events, and a rate limit for log lines about them."""

from time import monotonic
from typing import Any, Final

LONGEST: Final = 200
"""Characters."""
PAUSE: Final = 10.0
"""Seconds between two log lines of one kind."""


def quoted(text: object) -> str:
    """The beginning of the text, with everything that isn't printable escaped."""
    whole = str(text)
    start = whole[:LONGEST]
    plain = start if start.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in start)[:LONGEST]
    return plain if len(whole) <= LONGEST else f"{plain}… ({len(whole)} characters)"


class Repeats:
    """Allows one log line of each kind in `PAUSE` seconds; the next one says how many were omitted."""

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        self._last: dict[str, tuple[float, int]] = {}

    def passes(self, kind: str) -> dict[str, Any] | None:
        """The fields to add to a line of this kind; None where it is omitted. Kinds must be few: each is kept."""
        now = monotonic()
        last, omitted = self._last.get(kind, (now - self._pause, 0))
        if now - last < self._pause:
            self._last[kind] = (last, omitted + 1)
            return None
        self._last[kind] = (now, 0)
        return {"omitted": omitted} if omitted else {}
