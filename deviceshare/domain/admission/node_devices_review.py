"""Validation of writes to NodeDevices: agents report on their own node, people report repairs, nobody deletes claims.

An agent runs on a node beside other programs, some of them as root. One that takes over the agent must not be able to
write claims, or to other nodes. Who may write the status alone, as by the role `deviceshare-recover`, must not be able
to misreport devices; RBAC knows no single fields. Deviceshare itself, and who may write all of the object, isn't
restricted.
"""

from collections.abc import Mapping
from typing import Any, Final

Object = Mapping[str, Any]
"""A NodeDevices in plain JSON: unknown fields are compared like all others."""

_SERVERS_OWN: Final = frozenset({"managedFields", "resourceVersion", "generation"})
ADMINISTRATORS: Final = "system:masters"
"""The group that may do anything, whatever RBAC says."""


def review_report(old: Object, new: Object, node: str) -> str:
    """Why an agent may not change a NodeDevices in this way, or "".

    `node` is the node that its token is bound to; "" where tokens name none, before Kubernetes 1.30.
    """
    name = (new.get("metadata") or {}).get("name", "")
    if node and node != name:
        return f"the agent on node {node} may report on its own node only, not on {name!r}"
    changed = _changed(_without(old, "hardware"), _without(new, "hardware"))
    return f"an agent may write status.hardware only, not {changed}" if changed else ""


def review_repair(old: Object, new: Object) -> str:
    """Why somebody who may write the status alone may not change a NodeDevices in this way, or ""."""
    changed = _changed(_without(old, "recovered"), _without(new, "recovered"))
    if not changed:
        return ""
    return (
        f"only deviceshare and its agents write {changed}: who may not patch nodedevices may change status.recovered"
        " alone, as deviceshare recover does"
    )


def review_deletion(old: Object) -> str:
    """Why nobody may delete a NodeDevices, or "".

    Its finalizer would keep it as long as it has claims. But it could not be kept any longer, whoever regrets it.
    """
    claims = len((old.get("spec") or {}).get("claims") or {})
    if not claims:
        return ""
    name = (old.get("metadata") or {}).get("name", "")
    return (
        f"devices of node {name} are claimed ({claims} claims in its NodeDevices): deviceshare deletes it once the node"
        " isn't shared any more and nobody holds any"
    )


def _without(whole: Object, own: str) -> dict[str, Any]:
    """Without what the API server writes beside the status, and the one field of the status that may be written."""
    metadata = {key: value for key, value in (whole.get("metadata") or {}).items() if key not in _SERVERS_OWN}
    status = {key: value for key, value in (whole.get("status") or {}).items() if key != own}
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
