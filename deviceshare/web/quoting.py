"""What a stranger sent, as it may be shown: in a log, in an answer, in an event."""

from time import monotonic
from typing import Any, Final

LONGEST: Final = 200
"""Characters."""
PAUSE: Final = 10.0
"""Seconds between two lines of a log about the same."""


def quoted(text: object) -> str:
    """Its beginning, without control characters and what else doesn't print."""
    whole = str(text)
    start = whole[:LONGEST]
    plain = start if start.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in start)[:LONGEST]
    return plain if len(whole) <= LONGEST else f"{plain}… ({len(whole)} characters)"


class Repeats:
    """Lets one line through in `PAUSE` seconds, for each kind of it; the next one tells how many were left out."""

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        self._last: dict[str, tuple[float, int]] = {}

    def passes(self, kind: str) -> dict[str, Any] | None:
        """The fields to add to a line of this kind, of which there must be few; None where it is left out."""
        now = monotonic()
        last, omitted = self._last.get(kind, (now - self._pause, 0))
        if now - last < self._pause:
            self._last[kind] = (last, omitted + 1)
            return None
        self._last[kind] = (now, 0)
        return {"omitted": omitted} if omitted else {}
