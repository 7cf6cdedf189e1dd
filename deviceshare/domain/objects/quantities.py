"""Kubernetes quantities: `0`, `4`, `1k`, `1Ki`, `1e3`, `100m`, `+.5`, read exactly.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ has the grammar. The API server writes
them as strings; manifests may have numbers. They are untrusted: lengths and exponents are bounded.
"""

import re
from datetime import datetime
from fractions import Fraction
from functools import lru_cache
from typing import Final

# Durations as people write them in fields and flags: `30m`, `12h`, `1h30m`.

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


def seconds_between(since: str, now: str) -> float | None:
    """The seconds between two times in RFC 3339; None where one is none, as others may have written anything."""
    try:
        return (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()
    except (ValueError, TypeError, OverflowError):  # TypeError: one names no time zone
        return None


Quantity = str | int | float | None
"""As in JSON; null is zero, as for the API server."""

MAX: Final = 2**63 - 1
"""The API server caps greater numbers to this."""
_LEAST: Final = Fraction(1, 10**9)
"""The API server rounds anything smaller up to this, away from zero."""
_LENGTH: Final = 64
"""Characters, twice the longest that an API server writes."""
_DIFFERENT: Final = 1024
"""Amounts remembered: nodes and pods have a few over and over, and exact arithmetic takes its time."""

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_SUFFIXES: Final = {
    **{suffix: Fraction(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{
        suffix: Fraction(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
}


def amount(quantity: Quantity) -> Fraction | None:
    """The exact amount, or None where it can't be read."""
    text = "0" if quantity is None else str(quantity).strip()
    return _amount(text) if len(text) <= _LENGTH else None


@lru_cache(_DIFFERENT)
def _amount(text: str) -> Fraction | None:
    match = _GRAMMAR.fullmatch(text)
    if match is None or not (match["whole"] or match["part"]):
        return None
    fraction = match["part"] or ""
    digits = int(match["whole"] + fraction)
    # Capped beyond any exponent that this number of digits could compensate.
    exponent = max(-2 * _LENGTH, min(int(match["exponent"] or 0), 2 * _LENGTH)) - len(fraction)
    size = digits * Fraction(10) ** exponent * _SUFFIXES[match["suffix"] or ""]
    if digits:
        size = max(_LEAST, min(size, Fraction(MAX)))
    return -size if match["sign"] == "-" else size


def is_some(quantity: Quantity) -> bool:
    """Whether it may be more than nothing; true of what can't be read."""
    return amount(quantity) != 0


def whole(quantity: Quantity) -> int | None:
    """A number of devices, or None where it can't be read as one."""
    size = amount(quantity)
    return int(size) if size is not None and size >= 0 and size.denominator == 1 else None
