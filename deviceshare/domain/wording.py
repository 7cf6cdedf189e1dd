"""Lists and numbers of things in a sentence: `a, b and c`, `2 nodes`."""

from collections.abc import Iterable


def listed(words: Iterable[str], *, most: int = 0, link: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`; of more than `most` words, unless that is 0, the first: `a, b and 3 more`."""
    shown = list(words)
    if 0 < most < len(shown):
        shown = [*shown[:most], f"{len(shown) - most} more"]
    return f" {link} ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
