"""Folded tables: the urgent entries first where not all are shown, the rest counted."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from deviceshare.cli.output import Part, Row, styled, table
from deviceshare.domain.wording import counted

T = TypeVar("T")

SHOWN: Final = 20
"""Entries of one table before it is folded, so that all tables together stay near one screen."""


def folded(
    columns: Sequence[str],
    items: Iterable[T],
    rows: Callable[[T], Iterable[Row]],
    shown: int | None,
    noun: str,
    *,
    urgency: Callable[[T], Any] = lambda _: 0,
    summary: Callable[[list[T]], str] = lambda _: "",
) -> list[Part]:
    """A table with the rows of each item, and a line that counts the items not shown; nothing where there is no item.

    All are shown where `shown` is None. The lowest urgency is the most urgent.
    """
    every = list(items)
    if not every:
        return []
    rest: list[T] = []
    if shown is not None and len(every) > shown:
        every.sort(key=urgency)
        every, rest = every[:shown], every[shown:]
    made = table(*columns)
    for item in every:
        for row in rows(item):
            made.add_row(*row)
    if not rest:
        return [made]
    detail = summary(rest)
    count = counted(len(rest), f"more {noun}")
    return [made, styled(f"and {count}{f' ({detail})' if detail else ''}; all: -d", "dim")]


def natural(name: str) -> list[Any]:
    """A key that sorts node-2 before node-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
