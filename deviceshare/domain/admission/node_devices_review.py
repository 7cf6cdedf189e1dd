"""Validation of agents' writes to NodeDevices: each may write the report on its own node, and nothing else.

An agent runs on a node beside other programs, some of them as root. One that takes over the agent must not be able to
write claims, or to other nodes. Other users are not restricted: the leader writes the same objects, and people may
need to.
"""

from collections.abc import Mapping
from typing import Any, Final

Object = Mapping[str, Any]
"""A NodeDevices in plain JSON: unknown fields are compared like all others."""

_SERVERS_OWN: Final = frozenset({"managedFields", "resourceVersion", "generation"})


def review_report(old: Object, new: Object, node: str) -> str:
    """Why an agent may not change a NodeDevices in this way, or "".

    `node` is the node that its token is bound to; "" where tokens name none, before Kubernetes 1.30.
    """
    name = (new.get("metadata") or {}).get("name", "")
    if node and node != name:
        return f"the agent on node {node} may report on its own node only, not on {name!r}"
    changed = _changed(_without_report(old), _without_report(new))
    return f"an agent may write status.hardware only, not {changed}" if changed else ""


def _without_report(whole: Object) -> dict[str, Any]:
    metadata = {key: value for key, value in (whole.get("metadata") or {}).items() if key not in _SERVERS_OWN}
    status = {key: value for key, value in (whole.get("status") or {}).items() if key != "hardware"}
    return {**whole, "metadata": metadata, "status": status}


def _changed(old: Object, new: Object, path: str = "") -> str:
    """The first field that differs, as `spec.claims`."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before != after:
            if not path and isinstance(before, dict) and isinstance(after, dict):
                return _changed(before, after, f"{key}.")
            return f"{path}{key}"
    return ""
