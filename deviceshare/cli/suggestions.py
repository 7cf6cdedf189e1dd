"""Suggestions of names that resemble one which doesn't exist, as click suggests commands and flags."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from deviceshare.domain.wording import listed
from deviceshare.loops.ports import ApiError, Cluster, Kind

MOST: Final = 3
MOST_COMPARED: Final = 5_000
"""Each comparison takes some microseconds."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the nearest of the known names, or ""."""
    lower = {each.lower(): each for each in sorted(known)[:MOST_COMPARED]}
    near = [lower[each] for each in get_close_matches(name.lower(), lower, n=MOST)]
    return f". Did you mean {listed(near, link='or')}?" if near else ""


async def names(api: Cluster, kind: Kind[Any], namespace: str = "") -> list[str]:
    """The names of all objects of a kind, for suggestions; none where they can't be listed."""
    try:
        return [each.metadata.name for each in await api.list(kind, namespace=namespace)]
    except ApiError:
        return []
