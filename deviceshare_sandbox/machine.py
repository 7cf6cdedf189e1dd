"""The machine that a real node runs on: its directories, how it is found while it runs, and commands on it.

The node's programs have some paths built in, over which it mounts directories of its own. The mounts are seen on the
node only, but the directories under them must exist here, so those that don't are created before it, and removed.

All containers run under one control group in every hierarchy of this machine. Killed processes leave their groups
behind, as empty directories under /sys/fs/cgroup.
https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html, https://docs.kernel.org/admin-guide/cgroup-v2.html

`python -m deviceshare_sandbox.machine DIR COMMAND…` runs a command on the node, as nsenter does, but a signal to end
reaches COMMAND, and COMMAND ends when this process has died.
"""

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from deviceshare_sandbox import network, syscalls
from deviceshare_sandbox.state import Layout

CONTROL_GROUP: Final = "deviceshare-sandbox"
_HIERARCHIES = Path("/sys/fs/cgroup")
_VOLATILE = ("/run/containerd", "/var/lib/cni")
"""Empty at first: what a machine has forgotten after it was switched off."""
_KEPT = {"/var/lib/kubelet": "data/kubelet", "/var/log/pods": "logs/pods", "/var/log/containers": "logs/containers"}
"""Path → where it lies in the sandbox's directory."""
_TUNED = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""Under /proc/sys: what every kubelet sets, for the whole kernel. The node gets copies to write to."""


def create_mount_points(layout: Layout) -> None:
    """Creates what is missing, and records it."""
    for kept in _KEPT.values():
        (layout.directory / kept).mkdir(exist_ok=True)
    made: list[str] = []
    for target in map(Path, (*_VOLATILE, *_KEPT)):
        missing = [each for each in (target, *target.parents) if not each.exists()]
        for directory in reversed(missing):
            directory.mkdir()
            made.append(str(directory))
    _record(layout).write_bytes(msgspec.json.encode(made))


def remove_mount_points(layout: Layout) -> None:
    """Removes what was created, unless somebody has put something there since."""
    try:
        made = msgspec.json.decode(_record(layout).read_bytes(), type=list[str])
    except FileNotFoundError:
        return
    for directory in reversed(made):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()
    _record(layout).unlink()


def mount(layout: Layout) -> None:
    """Mounts everything; to be called in new namespaces of mounts and processes. Raises OSError."""
    # Not to be seen outside; but shared with the containers, whose volumes may ask for it.
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SHARED)
    syscalls.mount("proc", "/proc", "proc")
    for target in _VOLATILE:
        syscalls.mount("tmpfs", target, "tmpfs")
    for target, kept in _KEPT.items():
        syscalls.mount(str(layout.directory / kept), target, flags=syscalls.MS_BIND)
    for name in _TUNED:
        setting, copy = Path("/proc/sys") / name, Path(_VOLATILE[0]) / name.replace("/", ".")
        shutil.copyfile(setting, copy)
        syscalls.mount(str(copy), str(setting), flags=syscalls.MS_BIND)


def _record(layout: Layout) -> Path:
    return layout.data / "mount-points.json"


def create_groups() -> None:
    """Creates the control group wherever a hierarchy is mounted: the kubelet wants its root to be there."""
    for hierarchy in _hierarchies():
        (hierarchy / CONTROL_GROUP).mkdir(exist_ok=True)


def remove_groups() -> None:
    """Removes the control group and all groups below it, as far as no process is in them."""
    for hierarchy in _hierarchies():
        for directory, _, _ in os.walk(hierarchy / CONTROL_GROUP, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()


def _hierarchies() -> list[Path]:
    """The unified one, or each of version 1; symbolic links (cpu → cpu,cpuacct) lead to what is listed anyway."""
    if (_HIERARCHIES / "cgroup.controllers").exists():
        return [_HIERARCHIES]
    return [each for each in _HIERARCHIES.iterdir() if each.is_dir() and not each.is_symlink()]


RUNTIME_SOCKET: Final = "/run/containerd/containerd.sock"
"""Seen from within; from outside there is no such file."""


class Machine(msgspec.Struct):
    """The running machine, as it is recorded for the commands that enter it."""

    pid: int
    """The id that its first process has on this host."""
    network: int
    """The inode of its network: distinguishes it from a process that has the same id later."""


def record(layout: Layout) -> Path:
    """Where the running machine is recorded."""
    return layout.data / "machine.json"


def clean(layout: Layout) -> None:
    """Removes what a machine that was killed left on this one: empty directories, and empty control groups.

    Does nothing while another sandbox's runs: there is one set of control groups, as of addresses.
    """
    if not network.taken():
        remove_groups()
        remove_mount_points(layout)


def booting(layout: Layout, ip: str) -> list[str]:
    """The prefix of the command that the machine is for; `ip` is iproute2's program."""
    return [sys.executable, "-m", "deviceshare_sandbox.boot", str(layout.directory), ip]


def entering(layout: Layout) -> list[str]:
    """The prefix of a command that is to run on the machine."""
    return [sys.executable, "-m", "deviceshare_sandbox.machine", str(layout.directory)]


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
