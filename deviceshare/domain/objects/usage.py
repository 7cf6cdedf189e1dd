"""What a node's devices are doing now and who does it: an agent's answer to `/usage`.

`deviceshare top` and `smi` read it; nothing decides by it.
"""

from msgspec import Struct, field


class DeviceProcess(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A process with memory on a device."""

    pid: int
    """On the node."""
    name: str = ""
    """The program's, without its arguments: those may hold secrets."""
    memory_mib: int = 0
    pod: str = ""
    """`namespace/name`; empty for one outside of any pod."""
    container: str = ""
    trespass: bool = False
    """Whether it is on a group's device and in no pod of the group."""


class DeviceUsage(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device. One that is lost has no usage."""

    resource: str
    index: int
    uuid: str = ""
    model: str = ""
    memory_used_mib: int = 0
    memory_total_mib: int = 0
    utilization: int | None = None
    """Percent of the last moment in which something ran; None where the driver can't tell."""
    processes: list[DeviceProcess] = field(default_factory=list)


class Usage(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One node at one time (RFC 3339)."""

    node: str
    time: str = ""
    devices: list[DeviceUsage] = field(default_factory=list)
