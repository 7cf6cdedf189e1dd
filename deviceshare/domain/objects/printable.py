"""Texts of others, safe to show: names, messages and programs' names may hold commands to a terminal.

What can't be seen is written as Python's escapes show it (`\\x1b`, `\\u202e`): control characters, line breaks,
overrides of the writing direction, halves of surrogate pairs. Nothing is dropped: who looks sees that it was there.
"""

from typing import Final

LONGEST_QUOTE: Final = 80


def printable(text: str) -> str:
    """The text in one line, with everything that isn't printable escaped."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """Likewise, for texts of several lines: a line feed stays one."""
    return "\n".join(map(printable, text.split("\n")))


def quoted(text: str, longest: int = LONGEST_QUOTE) -> str:
    """The text between quotation marks, no longer than `longest` characters: a stranger chose it."""
    shown = printable(text[: longest + 1])
    return f"'{shown}'" if len(shown) <= longest else f"'{shown[: longest - 1]}…'"


def _shown(sign: str) -> str:
    return sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii")
