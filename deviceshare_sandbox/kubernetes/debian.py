"""Builds of Kubernetes from Debian's source package, where no release can be downloaded.

Debian 12's source package `kubernetes` (1.20.2) carries all its Go modules, so the machine's own Debian mirror is all
the build needs.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deviceshare_sandbox.errors import SandboxError
from deviceshare_sandbox.kubernetes.apt import Apt
from deviceshare_sandbox.kubernetes.cache import (
    add,
    architecture,
    cache_root,
    etcd_cache,
    kubernetes_cache,
    locked,
    missing,
)
from deviceshare_sandbox.progress import Progress

_TOOLS = {"go": "golang-go", "rsync": "rsync", "dpkg-source": "dpkg-dev", "make": "make", "patch": "patch"}
"""What the build runs, and the package that has it."""


def build(binaries: Sequence[str], wanted: str, progress: Progress) -> Path:
    """Builds what the cache lacks into it and returns the directory; raises SandboxError when this machine can't.

    Takes 5 to 10 minutes on two cores and 4 GB of disk, which are freed afterwards.
    """
    with _apt("build", progress) as (apt, scratch):
        with progress.stage("Reading Debian's package lists"):
            apt.update()
            version = upstream_version(apt.source_version("kubernetes"))
        if wanted and version != wanted:
            raise SandboxError(f"Debian's source package is Kubernetes {version}, not {wanted}.")
        target = kubernetes_cache() / version / "bin"
        lacking = missing(target, binaries)
        if not lacking:  # Another process built it while this one waited for the lock.
            return target
        packages = [package for tool, package in _TOOLS.items() if shutil.which(tool, path=_PATH) is None]
        if packages:
            apt.authorize()
            with progress.stage(f"Installing {', '.join(packages)}"):
                apt.install(packages)
        tree = scratch / "tree"
        with progress.stage(f"Fetching the source of Kubernetes {version} from Debian"):
            apt.source("kubernetes", tree)
        with progress.stage(f"Building Kubernetes {version} (5 to 10 minutes, once per machine; log: {apt.log})"):
            made = _make(tree, lacking, version, apt)
        add(made, target)
    return target


def fetch_etcd(progress: Progress) -> Path:
    """Unpacks Debian's etcd into the cache and returns it; raises SandboxError.

    The package is unpacked, not installed: installing it would start an etcd service on the machine.
    """
    return _fetch("etcd-server", "usr/bin/etcd", etcd_cache() / "etcd", progress)


def fetch_busybox(progress: Progress) -> Path:
    """Unpacks Debian's static busybox into the cache, unless it is there, and returns it; raises SandboxError.

    Not installed either: it would take the place of another busybox.
    """
    target = cache_root() / "busybox"
    return target if target.exists() else _fetch("busybox-static", "bin/busybox", target, progress)


def install(packages: Sequence[str], progress: Progress) -> None:
    """Installs packages on this machine; raises SandboxError with the command that does the same."""
    with _apt("install", progress) as (apt, _):
        apt.authorize()
        with progress.stage(f"Installing {', '.join(packages)}"):
            apt.update()
            apt.install(packages)


def _fetch(package: str, member: str, target: Path, progress: Progress) -> Path:
    with _apt("fetch", progress) as (apt, scratch):
        with progress.stage(f"Fetching {target.name} from Debian"):
            apt.update()
            apt.unpack(package, scratch / "unpacked")
        target.parent.mkdir(parents=True, exist_ok=True)
        (scratch / "unpacked" / member).rename(target)
    return target


_NEWER_GO = Path(__file__).with_name("newer-go.patch")
"""Without it, a kube-apiserver built with Go 1.18 or later dies at the first custom resource."""

# Debian's own Go comes first: the one this build is known to work with.
_PATH = os.pathsep.join(["/usr/bin", "/bin", "/usr/sbin", "/sbin", os.environ.get("PATH", "")])


@contextmanager
def _apt(purpose: str, progress: Progress) -> Iterator[tuple[Apt, Path]]:
    """apt with a log of its own, and the directory for what it fetches; one process at a time."""
    with locked(progress), tempfile.TemporaryDirectory(dir=cache_root(), prefix=f"{purpose}-") as scratch:
        log = cache_root() / f"{purpose}.log"
        log.write_text("")
        yield Apt(Path(scratch), log), Path(scratch)


def upstream_version(debian_version: str) -> str:
    """`1.20.5+really1.20.2-1.1+deb12u1` is v1.20.2."""
    match = re.search(r"(?:really|^)(\d+\.\d+\.\d+)(?!.*really)", debian_version)
    if match is None or "+ds" in debian_version:
        raise SandboxError(
            f"Debian's source package kubernetes {debian_version} lacks the Go modules it needs; Debian 12's has them."
        )
    return f"v{match.group(1)}"


def _make(tree: Path, binaries: Sequence[str], version: str, apt: Apt) -> Path:
    """Runs Kubernetes's own make in the way of GOPATH, which is what its vendored modules were laid out for."""
    home = tree / "home"
    home.mkdir()
    package = tree / ".go" / "src" / "k8s.io"
    package.mkdir(parents=True)
    (package / "kubernetes").symlink_to(tree)
    environment: Mapping[str, str] = {
        "PATH": _PATH,
        "HOME": str(home),
        "GOPATH": str(tree / ".go"),
        "GO111MODULE": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION": version,
    }
    apt.run(["patch", "-p1", "-i", str(_NEWER_GO)], cwd=tree)
    apt.run(["make", "WHAT=" + " ".join(f"cmd/{name}" for name in binaries)], cwd=tree, environment=environment)
    output, made = tree / "_output" / "local" / "bin" / "linux" / architecture(), tree / "bin"
    made.mkdir()
    for name in binaries:
        shutil.move(output / name, made / name)
        subprocess.run([made / name, "--help"], stdout=subprocess.DEVNULL, timeout=60, check=True)
    return made
