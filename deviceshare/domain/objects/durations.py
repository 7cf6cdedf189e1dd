"""Durations as people write them in fields and flags: `30m`, `12h`, `1h30m`."""

import re
from typing import Final

_UNITS: Final = (("h", 3600), ("m", 60), ("s", 1))
_DURATION: Final = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,6})s)?")
"""As the pattern of `spec.releaseAfter` in the CRD's schema: a part of what Go's time.ParseDuration reads."""


def seconds_of(text: str) -> int | None:
    """The seconds of a duration; None where the text is none."""
    match = _DURATION.fullmatch(text) if text else None
    if match is None:
        return None
    return sum(int(number or 0) * seconds for number, (_, seconds) in zip(match.groups(), _UNITS, strict=True))


def spelled(seconds: int) -> str:
    """The duration in its shortest form, such as `1h30m`; `0s` for none."""
    words = ""
    for unit, size in _UNITS:
        number, seconds = divmod(seconds, size)
        words += f"{number}{unit}" if number else ""
    return words or "0s"
