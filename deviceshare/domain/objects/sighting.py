"""A sighting: the devices that a canary's container saw, reported to the doctor in its termination message.

https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from typing import Final

import msgspec
from msgspec import Struct, field

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
