"""Objects as an API server hands them to policies: decoded, defaulted and encoded again."""

from collections.abc import Mapping
from typing import Any, Final

from deviceshare.domain.objects.quantities import amount

Json = dict[str, Any]

_REQUIRED: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""Strings that are encoded even where they are empty, by the list whose members have them."""


class Refused(Exception):
    """The API server refuses the object itself, before any policy sees it, or instead of it."""


def stored_form(pod: Mapping[str, Any]) -> Json:
    """A pod in that form; raises Refused where there is none."""
    form: Json = _plain(pod)
    metadata, spec = form.setdefault("metadata", {}), form.setdefault("spec", {})
    spec["schedulerName"] = spec.get("schedulerName") or "default-scheduler"
    lists = [spec.get(field, []) for field in ("containers", "initContainers", "ephemeralContainers")]
    names = [container["name"] for containers in lists for container in containers]
    if len(set(names)) < len(names):
        raise Refused("two containers have one name")
    for field in ("labels", "annotations"):
        if not metadata.get(field, True):
            del metadata[field]
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            volume["hostPath"].setdefault("path", "")
    return form


def _plain(value: Any, field: str = "") -> Any:
    if isinstance(value, Mapping):
        if field == "limits":
            return {name: _quantity(each) for name, each in value.items()}
        found = {key: _plain(each, key) for key, each in value.items() if each is not None and each != []}
        if field == "fieldRef":
            found.setdefault("apiVersion", "v1")
        return found
    if isinstance(value, list):
        items = [_plain({} if each is None else each) for each in value]
        return [{_REQUIRED[field]: "", **each} for each in items] if field in _REQUIRED else items
    return value


def _quantity(value: Any) -> str:
    text = "0" if value is None else str(value)
    if not isinstance(value, str | int | float | None) or amount(text) is None:
        raise Refused(f"{value!r} is no quantity")
    return "0" if amount(text) == 0 else text
