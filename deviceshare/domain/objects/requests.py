"""Holders of devices and what they request.

What places, claims and collects speaks in these words, and knows nothing of the objects behind them.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from deviceshare.domain.objects.shares import NO_SHARE, ShareRequest

# The token of a rebind request: the value of the annotation by which a pod's user asks for another device.
#
# The leader writes it into the node's ledger, which all pods of the node share, so a long one is none.

PATTERN: Final = "[A-Za-z0-9._:+-]{1,63}"
CURE: Final = "set it to 1 to 63 letters, digits or characters of ._:+-, other ones for each request, such as the time"


def token_fault(value: str) -> str:
    """What is wrong with the token and what to do, or ""."""
    return "" if re.fullmatch(PATTERN, value) else CURE


GROUP = "group"
POD = "pod"
"""A pod with shares; its name is `namespace/name`."""


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
    share: ShareRequest = NO_SHARE
    """Parts of devices: of the holder's, where it requests whole ones, else of any."""
    sharer: Holder | None = None
    """Who has the parts, where that isn't the holder: a pod of the group."""

    labels: Mapping[str, str] = {}
    """The labels of a group, by which quotas count it."""

    @property
    def taker(self) -> Holder:
        """Who has the parts."""
        return self.sharer or self.holder

    @property
    def within(self) -> str:
        """The UID of the group of whose devices they are parts, as in a claim."""
        return self.holder.uid if self.sharer else ""

    @property
    def wants(self) -> Collection[str]:
        """The device resources that may be allocated to it."""
        return self.resources.keys() or self.share.of
