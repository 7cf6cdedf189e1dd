"""A node's usage: its devices' memory, utilization and processes, an agent's answer to `/usage`.

`deviceshare top` and `smi` read it; no decision depends on it.
"""

from typing import Final

import msgspec
from msgspec import Struct, field

from deviceshare.domain.objects.hardware import Numbered

# The use of a node's devices now and in the last hour, an agent's answer to `/use`. The page shows it.
#
# No processes are in it, as in `/usage`: the page needs none, and asks often.

MINUTES: Final = 60
"""How far back it goes."""
UNKNOWN: Final = -1
"""For a minute in which the driver reported no utilization."""


class DeviceHour(Numbered, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One device."""

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
    hour: list[int] = field(default_factory=list)
    """For the page: the mean of its devices in each minute, as `DeviceHour.hour`. Agents leave it empty."""


# The turns of a node, part of an agent's answer to `/usage`: the holder and the queue of each group.


class TurnProgram(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A program that has the turn or waits for it."""

    pod: str
    """`namespace/name`"""
    seconds: float
    """Since it began to wait or, of a holder, since the turn was given."""
    priority: int = 0
    asked: bool = False
    """Of a holder: whether its slice is over and it was asked to end."""
    lost: float = 0.0
    """Likewise: seconds since its connection was last heard of, where that is lost."""


class TurnQueue(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Of one group. Without a holder, no turn is given at present: holders of an earlier agent may still run."""

    group: str
    holder: TurnProgram | None = None
    waiting: list[TurnProgram] = field(default_factory=list)
    """The next one first."""


# A sighting: the devices that a canary's container saw, reported to the doctor in its termination message.
#
# https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/

MESSAGE_PATH: Final = "/dev/termination-log"
"""Where a container writes its termination message; the kubelet keeps up to 4 KiB of it."""


class Sighting(Struct, frozen=True, gc=False):
    """The report, which names devices by UUID."""

    variable: str | None
    """The value of NVIDIA_VISIBLE_DEVICES; None where it isn't set."""
    devices: list[str] = field(default_factory=list)
    """The GPUs that NVML opened."""
    silent: list[str] = field(default_factory=list)
    """Why the others that NVML counts could not be opened."""
    library: bool = True
    """Whether the driver's library is in the container."""
    error: str = ""
    """Why NVML could not be used."""


def decode(message: str) -> Sighting | None:
    """The sighting in a termination message; None where it is something else, such as a runtime's error."""
    try:
        return msgspec.json.decode(message, type=Sighting)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


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


class DeviceUsage(Numbered, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One device. One that is lost has no usage."""

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
