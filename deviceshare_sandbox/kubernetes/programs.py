"""The programs of a real node that aren't Kubernetes's: container runtime, network plugins, iptables.

Those of the machine are taken; what it lacks comes from Debian's packages.
"""

import os
import shutil
import sys
from pathlib import Path

import msgspec

from deviceshare_sandbox.errors import SandboxError
from deviceshare_sandbox.kubernetes import debian
from deviceshare_sandbox.kubernetes.cache import missing
from deviceshare_sandbox.progress import Progress

PATH = os.pathsep.join([*os.get_exec_path(), "/usr/local/sbin", "/usr/sbin", "/sbin"])
"""People's PATH often lacks the directories of what only root may run."""

_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "iptables-save": "iptables",
    "conntrack": "conntrack",
}
_PLUGINS = ("ptp", "host-local", "loopback")
_PLUGIN_DIRECTORIES = (Path("/opt/cni/bin"), Path("/usr/lib/cni"), Path("/usr/libexec/cni"))
_PLUGINS_PACKAGE = "containernetworking-plugins"


class Programs(msgspec.Struct, frozen=True):
    """Where they are."""

    containerd: str
    ctr: str
    ip: str
    plugins: str
    """The directory of the network plugins."""
    busybox: str
    """A static one, for images."""


def require_root() -> None:
    """Raises SandboxError where no real node can be had, before minutes were spent on fetching its parts."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise SandboxError(
            "A real node needs Linux and root: it creates namespaces, mounts and network interfaces.",
            "As root: deviceshare sandbox up --real-node",
        )


def find(progress: Progress) -> Programs:
    """Finds them, and installs what is missing; raises SandboxError when that can't be done."""
    packages = {package for program, package in _PACKAGES.items() if shutil.which(program, path=PATH) is None}
    packages |= set() if _plugins() else {_PLUGINS_PACKAGE}
    if packages:
        debian.install(sorted(packages), progress)
    if not (plugins := _plugins()):
        directories = ", ".join(map(str, _PLUGIN_DIRECTORIES))
        raise SandboxError(f"None of {directories} holds the CNI plugins {', '.join(_PLUGINS)}.")
    return Programs(
        containerd=_path("containerd"),
        ctr=_path("ctr"),
        ip=_path("ip"),
        plugins=str(plugins),
        busybox=str(debian.fetch_busybox(progress)),
    )


def _plugins() -> Path | None:
    return next((each for each in _PLUGIN_DIRECTORIES if not missing(each, _PLUGINS)), None)


def _path(program: str) -> str:
    found = shutil.which(program, path=PATH)
    if found is None:
        raise SandboxError(f"{_PACKAGES[program]} is installed, but {program} isn't on PATH.")
    return found
