"""The processes of pods on the real node, as this machine and the node count them."""

import contextlib
from pathlib import Path


def running(pod: str) -> Path:
    """The directory below /proc of the first process in the pod's containers, as this machine counts processes."""
    for directory in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        with contextlib.suppress(OSError):  # It has ended.
            if f"HOSTNAME={pod}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                return directory
    raise AssertionError(f"no process of {pod}")


def process_of(pod: str) -> int:
    """The same process as the node counts it, whose PID namespace is the first inside of this machine's."""
    status = (running(pod) / "status").read_text()
    return int(status.partition("NSpid:")[2].split()[1])
