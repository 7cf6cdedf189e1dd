"""The programs of one sandbox: Kubernetes's of one release, and those of a real node; found, downloaded or built.

The pieces of a control plane must come from one release, so a *place* is one directory that holds all of them. A lone
kubectl on PATH, as every laptop has, is therefore not a place; neither is envtest's usual KUBEBUILDER_ASSETS, which has
no scheduler. Only etcd may come from elsewhere: its API has been stable for years. A real node's container runtime,
network plugins and iptables are the machine's; what it lacks comes from Debian's packages.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from deviceshare_sandbox import debian, release
from deviceshare_sandbox.cache import etcd_cache, kubernetes_cache, missing
from deviceshare_sandbox.reports import Progress, SandboxError

REQUIRED = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
NODE = ("kubelet", "kube-proxy")
"""What a real node needs besides, and only that."""
_SYSTEM_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/usr/sbin")


class Binaries(msgspec.Struct, frozen=True):
    """The executables of one sandbox, and the Kubernetes release they are."""

    kube_apiserver: str
    kube_controller_manager: str
    kube_scheduler: str
    kubectl: str
    etcd: str
    version: str
    """As `kube-apiserver --version` says it, for example `v1.20.2`."""
    kubelet: str = ""
    kube_proxy: str = ""

    @property
    def minor(self) -> int:
        """The 20 of v1.20.2."""
        return int(self.version.split(".")[1])


def find(progress: Progress, *, node: bool = False) -> Binaries:
    """The first complete set: KUBEBUILDER_ASSETS, PATH, the cache, the official release, a build from Debian's source.

    With `node`, a set is complete when it has kubelet and kube-proxy too. DEVICESHARE_KUBERNETES_VERSION (`v1.33.0`)
    admits that release only. Raises SandboxError, which says what each place lacked, when there is none.
    """
    reasons: list[str] = []
    needed = (*REQUIRED, *NODE) if node else REQUIRED
    wanted = os.environ.get("DEVICESHARE_KUBERNETES_VERSION", "")
    for name, directory in _existing_places():
        lacking = missing(directory, needed)
        if lacking:
            if name == "KUBEBUILDER_ASSETS":
                progress.note(f"KUBEBUILDER_ASSETS={directory} lacks {', '.join(lacking)}; looking further")
                reasons.append(f"KUBEBUILDER_ASSETS={directory} lacks {', '.join(lacking)}")
            continue
        version = _version(directory / "kube-apiserver")
        if wanted and version != wanted:
            reasons.append(f"{name} ({directory}) has {version}, not {wanted}")
            continue
        return _complete(directory, needed, version, progress)
    reasons.append(f"no directory of PATH or of {kubernetes_cache()} holds all of {', '.join(needed)}")
    made = _first(
        reasons,
        lambda: release.download(needed, wanted, progress),
        # All of them in any case: the two more take a minute now, and several in a build of their own.
        lambda: debian.build((*REQUIRED, *NODE), wanted, progress),
    )
    if made is not None:
        return _complete(made, needed, _version(made / "kube-apiserver"), progress)
    raise SandboxError(
        "No Kubernetes control plane binaries could be had:\n" + "\n".join(f"  - {reason}" for reason in reasons),
        f"Put {', '.join(needed)} and etcd into one directory and set KUBEBUILDER_ASSETS to it.",
    )


def _existing_places() -> Iterator[tuple[str, Path]]:
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        yield "KUBEBUILDER_ASSETS", Path(assets)
    for entry in os.get_exec_path():
        yield "PATH", Path(entry)
    for directory in sorted(kubernetes_cache().glob("v*/bin"), key=_newest_first):
        yield "the cache", directory


def _newest_first(directory: Path) -> tuple[int, ...]:
    return tuple(-int(number) for number in re.findall(r"\d+", directory.parent.name))


def _first(reasons: list[str], *ways: Callable[[], Path]) -> Path | None:
    """What the first way makes that works; `reasons` get why the others didn't."""
    for make in ways:
        try:
            return make()
        except SandboxError as error:
            reasons.append(str(error).replace("\n", "\n    "))
    return None


def _complete(directory: Path, names: Sequence[str], version: str, progress: Progress) -> Binaries:
    paths = {name.replace("-", "_"): str(directory / name) for name in names}
    return Binaries(**paths, etcd=str(_etcd(directory, progress)), version=version)


def _etcd(directory: Path, progress: Progress) -> Path:
    """etcd beside the other binaries, else the machine's own, else one fetched into the cache."""
    search_path = os.pathsep.join([str(directory), *os.get_exec_path(), *_SYSTEM_DIRECTORIES, str(etcd_cache())])
    if found := shutil.which("etcd", path=search_path):
        return Path(found)
    reasons: list[str] = []
    if fetched := _first(reasons, lambda: release.download_etcd(progress), lambda: debian.fetch_etcd(progress)):
        return fetched
    raise SandboxError(
        "etcd is missing:\n" + "\n".join(f"  - {reason}" for reason in reasons),
        "Install it (Debian: apt-get install etcd-server) or put it on PATH.",
    )


def _version(apiserver: Path) -> str:
    try:
        answer = subprocess.run([apiserver, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(
            f"{apiserver} doesn't run: {error}", "Remove it, or point KUBEBUILDER_ASSETS elsewhere."
        ) from error
    match = re.search(r"v\d+\.\d+\.\d+", answer.stdout)
    if match is None:
        raise SandboxError(f"{apiserver} --version says {answer.stdout.strip()!r}, which names no release.")
    return match.group()


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


def find_programs(progress: Progress) -> Programs:
    """Finds the programs of a real node, and installs what is missing; raises SandboxError when that can't be done."""
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
