"""The use of a node's devices now and in the last hour, an agent's answer to `/use`. The page shows it.

No processes are in it, as in `/usage`: the page needs none, and asks often.
"""

from typing import Final

from msgspec import Struct, field

MINUTES: Final = 60
"""How far back it goes."""
UNKNOWN: Final = -1
"""For a minute in which the driver reported no utilization."""


class DeviceHour(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One device."""

    resource: str
    index: int
    uuid: str = ""
    memory_used_mib: int = 0
    memory_total_mib: int = 0
    utilization: int | None = None
    """Percent of the driver's last sample period in which it was busy; None where the driver doesn't report it."""
    hour: list[int] = field(default_factory=list)
    """The mean utilization of each minute, the last one being under way; UNKNOWN or percent, at most MINUTES."""


class NodeUse(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One node at one time (RFC 3339)."""

    node: str
    time: str = ""
    devices: list[DeviceHour] = field(default_factory=list)
