"""Wording: lists and numbers of things in a sentence (`a, b and c`, `2 nodes`), and untrusted texts, escaped."""

from collections.abc import Iterable
from typing import Final


def listed(words: Iterable[str], *, most: int = 0, link: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`; of more than `most` words, unless that is 0, the first: `a, b and 3 more`."""
    shown = list(words)
    if 0 < most < len(shown):
        shown = [*shown[:most], f"{len(shown) - most} more"]
    return f" {link} ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


# Escaping of untrusted texts for terminals: names and messages may contain control sequences.
# What isn't printable is written with Python's escapes (`\x1b`, `\u202e`): control characters, line breaks, overrides
# of the writing direction, halves of surrogate pairs. Nothing is dropped, so that readers see that it was there.

LONGEST_QUOTE: Final = 80


def printable(text: str) -> str:
    """The text in one line, with everything that isn't printable escaped."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text)


def printable_lines(text: str) -> str:
    """The text of several lines, with everything escaped that isn't printable, but for line feeds."""
    return "\n".join(map(printable, text.split("\n")))


def quoted(text: str, longest: int = LONGEST_QUOTE) -> str:
    """The text between quotation marks, escaped, with at most `longest` characters of it."""
    shown = printable(text[: longest + 1])
    return f"'{shown}'" if len(shown) <= longest else f"'{shown[: longest - 1]}…'"
