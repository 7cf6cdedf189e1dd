"""Bounds on nesting and aliases in YAML, so that `plan` on others' manifests, as in CI, neither hangs nor crashes.

An alias costs a few bytes and stands for any number of nodes, aliases among them. Loaders of nested YAML call
themselves, so deep nesting exhausts the stack, which ends the process without a word.
https://yaml.org/spec/1.2.2/#71-alias-nodes
"""

from typing import Any, Final

import yaml

DEEPEST: Final = 100
"""Levels, in each document; those of Kubernetes objects, with the schemas in CRDs, are a third of it."""
MOST_BY_ALIASES: Final = 100_000
"""Nodes that aliases stand for, in one text."""


def check_nesting(text: str, loader: Any) -> None:
    """Reads the text's events, which takes no stack.

    Raises:
        yaml.YAMLError: it is no YAML, nested too deeply, or an alias stands for too much or for what contains it.
    """
    anchors: dict[str, tuple[int, int]] = {}  # anchor → nodes and levels below it, itself included
    within: list[tuple[str | None, int, int]] = []  # likewise, of the nodes around
    by_aliases = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.DocumentStartEvent):
            anchors.clear()
            continue
        if isinstance(event, yaml.CollectionStartEvent):
            if event.anchor:
                anchors.pop(event.anchor, None)
            within.append((event.anchor, 1, 1))
            _check_levels(len(within), event)
            continue
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise _fault(f"the alias *{event.anchor} stands for what contains it, or for nothing", event)
            nodes, levels = anchors[event.anchor]
            by_aliases += nodes
            if by_aliases > MOST_BY_ALIASES:
                raise _fault(f"its aliases stand for more than {MOST_BY_ALIASES} values; write them out", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, nodes, levels = within.pop()
            anchors |= {anchor: (nodes, levels)} if anchor else {}
        elif isinstance(event, yaml.ScalarEvent):
            nodes, levels = 1, 1
            anchors |= {event.anchor: (1, 1)} if event.anchor else {}
        else:
            continue
        _check_levels(len(within) + levels, event)
        if within:
            anchor, all_nodes, deepest = within[-1]
            within[-1] = anchor, all_nodes + nodes, max(deepest, levels + 1)


def _check_levels(levels: int, event: yaml.Event) -> None:
    if levels > DEEPEST:
        raise _fault(f"it is nested more than {DEEPEST} levels deep", event)


def _fault(what: str, event: yaml.Event) -> yaml.YAMLError:
    where = f" in line {event.start_mark.line + 1}" if event.start_mark else ""
    return yaml.YAMLError(f"{what}{where}")
