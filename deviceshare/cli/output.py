"""How an answer is printed: tables for people, JSON and YAML for programs."""

from typing import Any, Final
from zlib import crc32

import click
import msgspec
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

TABLE, WIDE, JSON, YAML = "table", "wide", "json", "yaml"
FORMATS: Final = (TABLE, WIDE, JSON, YAML)

_GROUP_COLOURS: Final = ("cyan", "magenta", "blue", "bright_cyan", "bright_magenta", "bright_blue")
"""Red, yellow and green say something already."""

_UNBROKEN: Final = 100_000
"""Columns where nobody looks at a screen: a line broken for a width that a pipe doesn't have can't be searched."""


def encoded(answer: Any, format: str) -> str:
    """A Struct, or a list of them, as JSON or YAML."""
    if format == YAML:
        return msgspec.yaml.encode(answer).decode().rstrip("\n")
    return msgspec.json.format(msgspec.json.encode(answer)).decode()


def show(*parts: RenderableType) -> None:
    """Prints what people read: with colours and as wide as the terminal, or plain and unbroken where there is none."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    wide = Console(highlight=False, width=_UNBROKEN)
    with wide.capture() as captured:
        wide.print(*parts, sep="\n")
    click.echo("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def table(*columns: str) -> Table:
    """A table as kubectl prints them: no lines, names of columns in capitals."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold", no_wrap=False)
    return made


def group_name(name: str) -> str:
    """A group's name, in markup that gives it the same colour each time."""
    return f"[{_GROUP_COLOURS[crc32(name.encode()) % len(_GROUP_COLOURS)]}]{escape(name)}[/]"
