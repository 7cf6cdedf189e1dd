"""The turns of a node as its agent reports them in `status.hardware.turns`: who has each and which programs wait.

For people who read NodeDevices and may not reach the agents. They are a few seconds old, and nothing is decided by
them: the agent's own record says who has a turn. Times are RFC 3339.
"""

from typing import Final

from msgspec import Struct, field

MAX_QUEUES: Final = 32
"""Reported at most, and of each as many waiting programs, to bound the object's size."""
MAX_WAITING: Final = 16
RENEWED_SECONDS: Final = 600.0
"""A report with turns is written again after this, unchanged: an older one says that its agent stopped reporting."""


class ReportedHolder(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The program that has the turn, or may still have it."""

    pod: str
    """`namespace/name`"""
    since: str = ""
    """When the turn was given."""
    priority: int = 0
    asked: bool = False
    """Whether its slice is over and it was asked to end."""
    lost_since: str = ""
    """When its connection was last heard of, where that is lost."""


class ReportedWaiter(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A waiting program."""

    pod: str
    since: str = ""
    priority: int = 0


class ReportedQueue(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The programs that take turns with each other: of a group, or with shares of one device.

    Without a holder no turn is given at present: holders of an earlier agent may still run.
    """

    group: str = ""
    uid: str = ""
    """The group's: a recreated group has other turns."""
    resource: str = ""
    """With the index: the device, where it isn't a group's."""
    index: int | None = None
    holder: ReportedHolder | None = None
    waiting: list[ReportedWaiter] = field(default_factory=list)
    """The next one first."""
    waiting_count: int = 0
    """Of all that wait, those left out of the list among them."""


class ReportedTurns(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """All of a node."""

    time: str = ""
    """When this was reported."""
    queues: list[ReportedQueue] = field(default_factory=list)
    count: int = 0
    """Of all queues, those left out of the list among them."""
