"""A sighting: what a container of a canary saw of its devices, as it tells the doctor in its termination message.

https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from typing import Final

import msgspec
from msgspec import Struct, field

MESSAGE_PATH: Final = "/dev/termination-log"
"""Where a container leaves its termination message; the kubelet keeps up to 4 KiB of it."""


class Sighting(Struct, frozen=True):
    """Names devices by UUID."""

    variable: str | None
    """The value of NVIDIA_VISIBLE_DEVICES; None where it isn't set."""
    devices: list[str] = field(default_factory=list)
    """The GPUs that NVML opened."""
    silent: list[str] = field(default_factory=list)
    """Why the others, which NVML counts, could not be opened."""
    library: bool = True
    """Whether there is a library of the driver in the container at all."""
    error: str = ""
    """Why NVML could not be used."""


def decode(message: str) -> Sighting | None:
    """The sighting that a termination message is; None where it is something else, such as a runtime's error."""
    try:
        return msgspec.json.decode(message, type=Sighting)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
