"""Folding of long lists: natural order, the urgent entries first where not all are shown, the rest counted."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from deviceshare.cli.output import Cell, styled

T = TypeVar("T")

SHOWN: Final = 20
"""Lines of one list before it is folded, so that all lists together stay near one screen."""


def fold(
    items: Iterable[T], shown: int | None, *, urgency: Callable[[T], Any] = lambda _: 0
) -> tuple[list[T], list[T]]:
    """The items to show and the rest; all of them where `shown` is None. The lowest urgency is the most urgent."""
    every = list(items)
    if shown is None or len(every) <= shown:
        return every, []
    by_urgency = sorted(every, key=urgency)
    return by_urgency[:shown], by_urgency[shown:]


def more(rest: Sequence[Any], noun: str, detail: str = "") -> list[Cell]:
    """The line that counts the entries that are not shown."""
    if not rest:
        return []
    return [styled(f"and {counted(len(rest), f'more {noun}')}{f' ({detail})' if detail else ''}; all: -d", "dim")]


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def natural(name: str) -> list[Any]:
    """A key that sorts node-2 before node-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
