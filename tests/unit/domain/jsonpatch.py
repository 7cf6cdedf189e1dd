"""An applier of JSON patches of its own, so that the webhook's patches are not judged by their author."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any


def applied(document: Any, patch: Iterable[Mapping[str, Any]]) -> Any:
    """The document after `add` and `remove` operations, by RFC 6902; raises where the RFC says that a patch fails."""
    document = copy.deepcopy(document)
    for operation in patch:
        *parents, last = (step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:])
        target = document
        for step in parents:
            target = target[int(step)] if isinstance(target, list) else target[step]
        if operation["op"] == "remove":
            del target[last]
        elif operation["op"] == "add" and isinstance(target, dict):
            target[last] = copy.deepcopy(operation["value"])
        elif operation["op"] == "add" and last == "-":
            target.append(copy.deepcopy(operation["value"]))
        else:
            raise AssertionError(f"not expected here: {operation}")
    return document
