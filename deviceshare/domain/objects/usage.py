"""A node's usage: its devices' memory, utilization and processes, an agent's answer to `/usage`.

`deviceshare top` and `smi` read it; no decision depends on it.
"""

from msgspec import Struct, field

from deviceshare.domain.objects.turn_queues import TurnQueue


class DeviceProcess(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A process with memory on a device."""

    pid: int
    """In the node's PID namespace."""
    name: str = ""
    """The program's, without its arguments, which may contain secrets."""
    memory_mib: int = 0
    pod: str = ""
    """`namespace/name`; empty for one outside of any pod."""
    container: str = ""
    trespass: bool = False
    """Whether it is on a device of a group, or of pods with shares, and in none of their pods."""


class ShareMemory(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What a container uses of the device's memory, and how much its share is."""

    pod: str
    """`namespace/name`"""
    container: str = ""
    """Empty for the whole pod, where it uses memory that can't be assigned to a container with a share."""
    used_mib: int = 0
    limit_mib: int = 0
    exceeded: bool = False
    """Whether it uses more than its share and the agent's tolerance."""


class DeviceUsage(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One device. One that is lost has no usage."""

    resource: str
    index: int
    uuid: str = ""
    model: str = ""
    memory_used_mib: int = 0
    memory_total_mib: int = 0
    utilization: int | None = None
    """Percent of the driver's last sample period in which it was busy; None where the driver doesn't report it."""
    processes: list[DeviceProcess] = field(default_factory=list)
    shares: list[ShareMemory] = field(default_factory=list)
    """One for each container with a share of the device, by pod and container."""


class Usage(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One node at one time (RFC 3339)."""

    node: str
    time: str = ""
    devices: list[DeviceUsage] = field(default_factory=list)
    turns: list[TurnQueue] = field(default_factory=list)
    """Of groups with players."""
