"""Lists of words in a sentence: `a, b and c`."""

from collections.abc import Iterable


def listed(words: Iterable[str], *, most: int = 0, link: str = "and", noun: str = "") -> str:
    """`a`, `a and b`, `a, b and c`; of more than `most` words the first ones: `a, b and 3 more`, with a noun behind."""
    shown = list(words)
    if most and len(shown) > most:
        rest = f"{len(shown) - most} more {noun}".strip()
        shown = [*shown[:most], f"{rest}s" if noun and len(shown) > most + 1 else rest]
    return f" {link} ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))
