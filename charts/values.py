"""The chart's values: values.yaml and its comments, as a schema and as a table.

A comment right above a key describes it. A line `@schema {…}` in that comment adds to the schema that follows from the
default (https://json-schema.org/draft-07). Where it says what a map holds, the map is a value of its own, and its keys
are the user's; any other map is a group of values.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

Json = dict[str, Any]

_SCHEMA: Final = re.compile(r"@schema (.*)")
_TYPES: Final = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
_OPEN: Final = {"additionalProperties", "properties"}


class Value(NamedTuple):
    """One key of values.yaml and what stands above it."""

    path: tuple[str, ...]
    default: Any
    description: str
    schema: Json
    children: Sequence["Value"]


def read(file: Path) -> list[Value]:
    """The top-level values in their order; raises ValueError where one has no description."""
    text = file.read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return list(_children(root, yaml.safe_load(text), (), text.splitlines()))


def _children(node: yaml.MappingNode, defaults: Json, parent: tuple[str, ...], lines: list[str]) -> Iterator[Value]:
    for key, value in node.value:
        path, default = (*parent, key.value), defaults[key.value]
        comment = _comment_above(lines, key.start_mark.line)
        schema = {"type": _TYPES[type(default)], **_annotation(comment)}
        description = " ".join(line for line in comment if not _SCHEMA.match(line))
        group = isinstance(value, yaml.MappingNode) and bool(value.value) and not _OPEN & schema.keys()
        children = list(_children(value, default, path, lines)) if group else []
        if not description and not children:
            raise ValueError(f"{'.'.join(path)} has no comment above it")
        yield Value(path, default, description, schema, children)


def _comment_above(lines: list[str], position: int) -> list[str]:
    start = position
    while start and lines[start - 1].strip().startswith("#"):
        start -= 1
    return [line.strip().removeprefix("#").strip() for line in lines[start:position]]


def _annotation(comment: list[str]) -> Json:
    merged: Json = {}
    for line in comment:
        if found := _SCHEMA.match(line):
            merged |= yaml.safe_load(found[1])
    return merged


def schema(values: Sequence[Value]) -> str:
    """values.schema.json: unknown keys are refused, so that a misspelt one doesn't go unnoticed."""
    properties = {value.path[-1]: _schema(value) for value in values}
    # Helm passes it to every subchart: other charts' values are in it, too.
    properties["global"] = {**properties.get("global", {"type": "object"}), "additionalProperties": True}
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart deviceshare",
        "type": "object",
        "properties": properties,
        **_sections(values),
        "additionalProperties": False,
    }
    return json.dumps(document, indent=2) + "\n"


def _schema(value: Value) -> Json:
    described = {"description": value.description} if value.description else {}
    if not value.children:
        return {**described, **value.schema}
    properties = {child.path[-1]: _schema(child) for child in value.children}
    closed = {"properties": properties, **_sections(value.children), "additionalProperties": False}
    return {**described, **value.schema, **closed}


def _sections(values: Sequence[Value]) -> Json:
    """Groups of values must be there: Helm takes away a key whose value is null, and templates read below it.

    But for `global`, which umbrella charts often leave empty.
    """
    groups = [value.path[-1] for value in values if value.children and value.path != ("global",)]
    return {"required": groups} if groups else {}


def table(values: Sequence[Value]) -> str:
    """The values in Markdown, a row each."""
    return "\n".join(["| value | default | what it is |", "|---|---|---|", *_rows(values)]) + "\n"


def _rows(values: Sequence[Value]) -> Iterator[str]:
    for value in values:
        if value.children:
            if value.description:
                yield f"| `{'.'.join(value.path)}` | | {_cell(value.description)} |"
            yield from _rows(value.children)
        else:
            yield f"| `{'.'.join(value.path)}` | `{json.dumps(value.default)}` | {_cell(value.description)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
