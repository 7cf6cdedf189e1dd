"""The processes of pods on the real node, as this machine and the node count them."""

import contextlib
from pathlib import Path


def running(variable: str) -> Path:
    """The directory below /proc of the first process with this `NAME=value`, as this machine counts processes."""
    for directory in sorted(Path("/proc").glob("[0-9]*"), key=lambda each: int(each.name)):
        with contextlib.suppress(OSError):  # It has ended.
            if variable.encode() in (directory / "environ").read_bytes().split(b"\0"):
                return directory
    raise AssertionError(f"no process with {variable}")


def process_of(pod: str) -> int:
    """The first process of the pod as the node counts it, whose PID namespace is the first inside of this machine's."""
    status = (running(f"HOSTNAME={pod}") / "status").read_text()
    return int(status.partition("NSpid:")[2].split()[1])
