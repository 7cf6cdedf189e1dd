"""Mounts of a real node: directories of its own over those whose paths are built into its programs.

The mounts are seen on the node only. The directories under them must exist on this machine, so those that don't are
created, and removed again.
"""

import contextlib
import shutil
from pathlib import Path

import msgspec

from deviceshare.sandbox.host import syscalls
from deviceshare.sandbox.state import Layout

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


def make(layout: Layout) -> None:
    """Makes what is missing, and remembers it."""
    for kept in _KEPT.values():
        (layout.directory / kept).mkdir(exist_ok=True)
    made: list[str] = []
    for target in map(Path, (*_VOLATILE, *_KEPT)):
        missing = [each for each in (target, *target.parents) if not each.exists()]
        for directory in reversed(missing):
            directory.mkdir()
            made.append(str(directory))
    _record(layout).write_bytes(msgspec.json.encode(made))


def remove(layout: Layout) -> None:
    """Removes what `make` made, unless somebody has put something there since."""
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
