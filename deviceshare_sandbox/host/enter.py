"""Commands on a sandbox's real node: `python -m deviceshare_sandbox.host.enter DIR COMMAND…`.

What nsenter does, but a signal to end reaches COMMAND, and COMMAND ends when this process has died.
"""

import os
import signal
import sys
from pathlib import Path

import msgspec

from deviceshare_sandbox.host import syscalls
from deviceshare_sandbox.host.machine import Machine, record
from deviceshare_sandbox.state import Layout

_NAMESPACES = {"pid": syscalls.CLONE_NEWPID, "net": syscalls.CLONE_NEWNET, "mnt": syscalls.CLONE_NEWNS}


def enter(layout: Layout) -> None:
    """Moves this process into the node's network and mounts, and its children among the node's processes.

    Raises FileNotFoundError when no node runs.
    """
    machine = msgspec.json.decode(record(layout).read_bytes(), type=Machine)
    opened = {name: os.open(f"/proc/{machine.pid}/ns/{name}", os.O_RDONLY) for name in _NAMESPACES}
    if os.fstat(opened["net"]).st_ino != machine.network:
        raise FileNotFoundError(f"process {machine.pid} isn't a real node any more")
    for name, flag in _NAMESPACES.items():
        syscalls.setns(opened[name], flag)
        os.close(opened[name])


def run(command: list[str]) -> int:
    """Runs the command as a child; returns its exit status, as a shell would for one that was killed."""
    pid = os.fork()
    if pid == 0:
        syscalls.die_with_parent(signal.SIGKILL)
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda number, _: os.kill(pid, number))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        enter(Layout(Path(sys.argv[1])))
    except OSError as error:
        sys.exit(f"no real node runs in {sys.argv[1]}: {error}")
    sys.exit(run(sys.argv[2:]))
