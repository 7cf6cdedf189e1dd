"""Output: the one place from which texts reach a terminal, the filter that all of them pass, and tables that fold.

Most of what a command shows was chosen by others: names, messages of the API server, programs' names. So no
text controls the terminal (control characters are shown as escapes) or rich (there is no markup; colours are given
with `styled`). A test refuses every other module of the command line that prints or imports rich.

Tables are for people. JSON and YAML are for programs: their values are exact, with escapes of their own.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import zip_longest
from typing import Any, Final, TypeVar
from zlib import crc32

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.console import Group as _Stack
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from deviceshare.domain.wording import counted, printable, printable_lines
from deviceshare.timestamps import seconds_since

T = TypeVar("T")

TABLE, WIDE, JSON, YAML = "table", "wide", "json", "yaml"

Cell = str | Text
"""A text as it is, or with colours."""
Part = Cell | Table
"""What is printed one below the other."""
Row = tuple[Cell, ...]
"""The cells of one line of a table."""

_GROUP_COLOURS: Final = ("cyan", "magenta", "blue", "bright_cyan", "bright_magenta", "bright_blue")
"""Red, yellow and green have a meaning already."""

_UNBROKEN: Final = 100_000
"""Columns where stdout is no terminal: lines in a pipe stay unbroken, so that grep finds what is in them."""
_NARROWEST: Final = 16
"""Columns of a terminal, at least, for what is wrapped."""
SHOWN: Final = 20
"""Entries of one table before it is folded, so that all tables together stay near one screen."""
_UNITS: Final = (("d", 86400), ("h", 3600), ("m", 60))


class FilteringConsole(Console):
    """A console that prints text without markup, emoji or control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, *, style: str | Style = "", **_: Any) -> Text:
        """Filters every plain string before it is measured."""
        return Text(printable(text), style=style)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Filters every segment, whatever it was rendered from."""
        for segment in super().render(renderable, options):
            sound = segment.control or segment.text.isprintable() or segment.text == "\n"
            yield segment if sound else Segment(printable_lines(segment.text), segment.style)


def styled(text: str, style: str = "") -> Text:
    """A text with a colour."""
    return Text(printable(text), style=style)


def joined(*parts: Cell, between: str = "") -> Text:
    """Texts in one line, each with its own colour."""
    return Text(between).join(part if isinstance(part, Text) else styled(part) for part in parts)


def table(columns: Sequence[str], rows: Iterable[Row]) -> Table:
    """A table as kubectl prints them: no lines, names of columns in capitals, none where all are empty.

    Where the terminal has room for it, only the last column is wrapped, so that no name in the others is broken.
    """
    made = Table(box=None, pad_edge=False, show_header=any(columns), header_style="bold", padding=(0, 2, 0, 0))
    lines = list(rows)
    others = [max(map(cell_len, map(str, cells))) for cells in zip_longest(columns, *lines, fillvalue="")][:-1]
    unbroken = sum(others) + 2 * len(others) + _NARROWEST <= FilteringConsole().width
    for at, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=unbroken and at < len(others))
    for row in lines:
        made.add_row(*row)
    return made


def tabled(columns: Sequence[str], rows: Callable[[T], Iterable[Row]]) -> Callable[[Iterable[T]], list[Part]]:
    """Draws items as a table with the rows of each of them, for `folded`."""
    return lambda items: [table(columns, (row for item in items for row in rows(item)))]


def folded(
    items: Iterable[T],
    parts: Callable[[list[T]], list[Part]],
    shown: int | None,
    noun: str,
    *,
    urgency: Callable[[T], Any] = lambda _: 0,
    summary: Callable[[list[T]], str] = lambda _: "",
) -> list[Part]:
    """The items as `parts` draws them, and a line that counts those not shown; nothing where there is no item.

    All are shown where `shown` is None. The lowest urgency is the most urgent.
    """
    every, rest = list(items), list[T]()
    if not every:
        return []
    if shown is not None and len(every) > shown:
        every.sort(key=urgency)
        every, rest = every[:shown], every[shown:]
    made = parts(every)
    if not rest:
        return made
    detail = summary(rest)
    count = counted(len(rest), f"more {noun}")
    return [*made, styled(f"and {count}{f' ({detail})' if detail else ''}; all: -d", "dim")]


def indented(rows: Iterable[Row]) -> Table:
    """A table without a head, two columns to the right."""
    made = Table(box=None, pad_edge=True, show_header=False, padding=(0, 0, 0, 2))
    for row in rows:
        made.add_row(*row)
    return made


def spaced(sections: Iterable[Sequence[Part]]) -> list[Part]:
    """The parts of the sections that have some, with an empty line after each section."""
    return [part for section in sections if section for part in (*section, "")]


def natural(name: str) -> list[Any]:
    """A key that sorts node-2 before node-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def age(since: str, now: datetime) -> str:
    """How long ago a time in RFC 3339 was, in one unit as kubectl has it: `90s`, `14m`, `3h`; "" where it is none."""
    seconds = seconds_since(since, now)
    if seconds is None:
        return ""
    unit, size = in_unit(seconds)
    return f"{int(max(seconds, 0)) // size}{unit}"


def in_unit(seconds: float) -> tuple[str, int]:
    """The greatest unit of which it is two or more, and its seconds."""
    return next(((unit, size) for unit, size in _UNITS if seconds >= 2 * size), ("s", 1))


def group_name(name: str) -> Text:
    """A group's name, in the same colour each time."""
    return styled(name, _GROUP_COLOURS[crc32(name.encode(errors="replace")) % len(_GROUP_COLOURS)])


def show(*parts: Part) -> None:
    """Prints what people read: with colours and as wide as the terminal, or plain and unbroken where there is none."""
    console = FilteringConsole()
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    wide = FilteringConsole(width=_UNBROKEN)
    with wide.capture() as captured:
        wide.print(*parts, sep="\n")
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def say(text: str = "", *, err: bool = False) -> None:
    """Prints sentences, unbroken."""
    click.echo(printable_lines(text), err=err)


def note(texts: Iterable[str]) -> None:
    """Says on standard error what is left out, or how something was understood."""
    for text in texts:
        say(f"Note: {text}", err=True)


def say_fields(*fields: str) -> None:
    """Prints a line of fields with tabs between, for programs."""
    click.echo("\t".join(map(printable, fields)))


def print_answer(answer: Any, format: str) -> None:
    """Prints a Struct, or a list of them, for programs."""
    click.echo(encoded(answer, format))


def answer_with(answer: Any, output: str, parts: Callable[[], Iterable[Part]], notes: Iterable[str] = ()) -> None:
    """Prints an answer in the format that `--output` chose, then the notes; `parts` draws it for people."""
    if output in (TABLE, WIDE):
        show(*parts())
    else:
        print_answer(answer, output)
    note(notes)


def encoded(answer: Any, format: str) -> str:
    """A Struct, or a list of them, as JSON or YAML with control characters escaped."""
    if format == YAML:
        text = msgspec.yaml.encode(answer).decode().rstrip("\n")
        if printable_lines(text) == text:
            return text
        import yaml  # noqa: PLC0415 - needed only where msgspec leaves control characters

        return yaml.safe_dump(msgspec.to_builtins(answer), allow_unicode=False, sort_keys=False).rstrip("\n")
    text = msgspec.json.format(msgspec.json.encode(answer)).decode()
    # Outside of strings this JSON holds no control characters but the line breaks of the formatting.
    return "".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)


@contextmanager
def screen() -> Iterator[Callable[[Iterable[Part]], None]]:
    """Yields a function that draws: on a terminal over the last drawing, elsewhere below it."""
    console = FilteringConsole()
    if not console.is_terminal:
        yield lambda parts: show(*parts, "")
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda parts: live.update(_Stack(*parts), refresh=True)
