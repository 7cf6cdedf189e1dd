"""The control group under which all containers of a real node run, in every hierarchy of this machine.

Killed processes leave their groups behind, and empty directories under /sys/fs/cgroup are all that a real node could
leave: so they are removed before a start and after an end.
https://docs.kernel.org/admin-guide/cgroup-v1/cgroups.html, https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

import contextlib
import os
from pathlib import Path
from typing import Final

ROOT: Final = "deviceshare-sandbox"
_HIERARCHIES = Path("/sys/fs/cgroup")


def create() -> None:
    """Makes the group wherever a hierarchy is mounted: the kubelet wants its root to be there."""
    for hierarchy in _hierarchies():
        (hierarchy / ROOT).mkdir(exist_ok=True)


def remove() -> None:
    """Removes the group and all groups below it, as far as no process is in them."""
    for hierarchy in _hierarchies():
        for directory, _, _ in os.walk(hierarchy / ROOT, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()


def _hierarchies() -> list[Path]:
    """The unified one, or each of version 1; symbolic links (cpu → cpu,cpuacct) lead to what is listed anyway."""
    if (_HIERARCHIES / "cgroup.controllers").exists():
        return [_HIERARCHIES]
    return [each for each in _HIERARCHIES.iterdir() if each.is_dir() and not each.is_symlink()]
