"""Holders of devices and what they request.

What places, claims and collects speaks in these words, and knows nothing of the objects behind them.
"""

from collections.abc import Mapping
from typing import NamedTuple

GROUP = "group"


class Holder(NamedTuple):
    """Who has a claim. The UID is its identity; the rest is how its pods and people call it."""

    uid: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Request(NamedTuple):
    """What a holder wants: all of it on one node, or nothing."""

    holder: Holder
    resources: Mapping[str, int]
    """Device resource → number of whole devices."""
    strategy: str
    node_selector: Mapping[str, str]
    node: str
    """Where the holder lives already, by its own word, or ""."""
