"""Paths and queries of requests to the API server, in which no name reaches another object.

https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from deviceshare.loops.ports import Invalid, Kind


def path_of(kind: Kind[Any], name: str, namespace: str, subresource: str = "") -> str:
    """The path of an object, a collection or a subresource; raises Invalid where a name can't be one."""
    return kind.path(name and segment(name), namespace and segment(namespace), subresource)


def segment(name: str) -> str:
    """`name` as one segment of a path.

    Names come from people's annotations, and the API server splits the path after unquoting it, so quoting alone would
    let `a/status` or `../../nodes/a` reach other objects. No object's name may hold these characters.
    """
    if name in (".", "..") or "/" in name or "%" in name:
        raise Invalid(f"{name!r} is no name of an object")
    return quote(name, safe="")


def selecting(label: str, field: str) -> Mapping[str, str]:
    """The query that selects by labels and fields; empty selectors are left out."""
    return {key: value for key, value in (("labelSelector", label), ("fieldSelector", field)) if value}
