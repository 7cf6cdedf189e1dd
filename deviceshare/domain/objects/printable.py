"""Escaping of untrusted texts for terminals: names and messages may contain control sequences.

What isn't printable is written with Python's escapes (`\\x1b`, `\\u202e`): control characters, line breaks, overrides
of the writing direction, halves of surrogate pairs. Nothing is dropped, so that readers see that it was there.
"""

from typing import Final

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
