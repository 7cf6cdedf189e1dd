"""Debian's archive: builds of Kubernetes where no release can be downloaded, and packages, by an apt of our own.

Debian 12's source package `kubernetes` (1.20.2) carries all its Go modules, so the machine's own Debian mirror is all
the build needs. The source list is derived from the machine's own entries; package lists and caches are private too. So
third-party entries can't get in the way, and everything but installing works without root.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from deviceshare_sandbox.cache import add, architecture, cache_root, etcd_cache, kubernetes_cache, locked, missing
from deviceshare_sandbox.reports import Progress, SandboxError, tail

_ETC = Path("/etc/apt")
_OS_RELEASE = Path("/etc/os-release")
_DPKG_LOCK_SECONDS = 120
"""A fresh machine often upgrades itself first."""


class Apt:
    """apt-get with a private source list under `scratch`; the output of every command goes to `log`."""

    def __init__(self, scratch: Path, log: Path) -> None:
        if shutil.which("apt-get") is None:
            raise SandboxError("This machine has no apt-get, so nothing can be built from Debian's source package.")
        self.log = log
        self._scratch = scratch
        for directory in ("lists/partial", "cache/archives/partial", "packages"):
            (scratch / directory).mkdir(parents=True)
        sources = scratch / "deviceshare.sources"
        text = derive_sources(_read_entries(_ETC), _codename())
        if not text:
            raise SandboxError(
                f"No entry under {_ETC} names the distribution {_codename()!r}, so apt can't fetch its sources.",
                "Add the distribution's own entry to /etc/apt/sources.list.d/ and retry.",
            )
        sources.write_text(text)
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::Lists": scratch / "lists",
            "Dir::Cache": scratch / "cache",
            # As root, apt would become a user who can't write here.
            "APT::Sandbox::User": "root",
            "DPkg::Lock::Timeout": _DPKG_LOCK_SECONDS,
        }
        self._options = [argument for key, value in settings.items() for argument in ("-o", f"{key}={value}")]

    def update(self) -> None:
        """Fetches the package lists."""
        self.run(["apt-get", *self._options, "update"])

    def source_version(self, package: str) -> str:
        """Debian's version of a source package; raises SandboxError when the archive has none."""
        arguments = ["apt-cache", *self._options, "showsrc", "--only-source", package]
        answer = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        for line in answer.stdout.splitlines():
            if line.startswith("Version:"):
                return line.removeprefix("Version:").strip()
        raise SandboxError(f"The Debian archive of this machine has no source package {package}.")

    def source(self, package: str, target: Path) -> None:
        """Downloads a source package, checks its signature chain as apt does, and unpacks it to `target`."""
        downloads = self._scratch / "packages"
        self.run(["apt-get", *self._options, "source", "--only-source", "--download-only", package], cwd=downloads)
        (description,) = downloads.glob("*.dsc")
        self.run(["dpkg-source", "-x", str(description), str(target)], cwd=downloads)

    def unpack(self, package: str, target: Path) -> None:
        """Downloads a binary package and unpacks it to `target`, without installing it."""
        downloads = self._scratch / "packages"
        self.run(["apt-get", *self._options, "download", package], cwd=downloads)
        (archive,) = downloads.glob("*.deb")
        self.run(["dpkg-deb", "-x", str(archive), str(target)], cwd=downloads)

    def authorize(self) -> None:
        """Lets sudo ask for the password, where it must: later a progress display would hide the question."""
        if os.geteuid() != 0 and shutil.which("sudo") and sys.stdin.isatty():
            subprocess.run(["sudo", "--validate"], check=False)

    def install(self, packages: Sequence[str]) -> None:
        """Installs packages on the machine, with sudo where this isn't root; raises SandboxError with the command."""
        install = ["apt-get", *self._options, "install", "--yes", "--no-install-recommends", *packages]
        by_hand = f"Run this and retry: sudo apt-get install --no-install-recommends {' '.join(packages)}"
        if os.geteuid() != 0:
            if shutil.which("sudo") is None:
                raise SandboxError(f"{', '.join(packages)} are missing, and installing them needs root.", by_hand)
            install = ["sudo", "--non-interactive", "DEBIAN_FRONTEND=noninteractive", *install]
        try:
            self.run(install, environment={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
        except SandboxError as error:
            raise SandboxError(str(error), by_hand) from error

    def run(
        self, command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        """Runs a command to its end; raises SandboxError with the end of its output when it fails."""
        with self.log.open("a") as log:
            log.write(f"+ {' '.join(command)}\n")
            log.flush()
            done = subprocess.run(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        if done.returncode != 0:
            status = f"{command[0]} failed with exit status {done.returncode}"
            raise SandboxError(f"{status} (all of it in {self.log}):\n{tail(self.log)}")


def derive_sources(entries: Iterable[str], codename: str) -> str:
    """A deb822 source list for the distribution's own packages and sources, out of the machine's entries.

    `entries` are the contents of files, each in deb822 or in the old one-line format (sources.list(5)). Entries for
    other suites or without the component `main` are third parties' and are left out.
    """
    stanzas: list[str] = []
    for text in entries:
        for block in text.split("\n\n"):
            lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
            if any(line.lower().startswith("uris:") for line in lines):
                stanzas.append(_from_deb822(lines, codename))
            else:
                stanzas.extend(_from_one_line(line, codename) for line in lines)
    return "\n".join(dict.fromkeys(filter(None, stanzas)))


def _own(suites: Iterable[str], components: Iterable[str], codename: str) -> bool:
    return "main" in components and not {codename, f"{codename}-updates", f"{codename}-security"}.isdisjoint(suites)


def _from_deb822(lines: Sequence[str], codename: str) -> str:
    fields = {key.strip().lower(): value for key, _, value in (line.partition(":") for line in lines)}
    if fields.get("enabled", "yes").strip() == "no":
        return ""
    if not _own(fields.get("suites", "").split(), fields.get("components", "").split(), codename):
        return ""
    kept = [line for line in lines if not line.lower().startswith("types:")]
    return "\n".join(["Types: deb deb-src", *kept, ""])


_ONE_LINE = re.compile(
    r"deb(?:-src)?\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+(?P<components>.+)"
)


def _from_one_line(line: str, codename: str) -> str:
    """`deb [signed-by=/k] URI SUITE COMPONENT…` as a stanza; other options are left out, as they only narrow."""
    match = _ONE_LINE.fullmatch(line.split("#", maxsplit=1)[0].strip())
    if match is None or not _own([match["suite"]], match["components"].split(), codename):
        return ""
    stanza = [
        "Types: deb deb-src",
        f"URIs: {match['uri']}",
        f"Suites: {match['suite']}",
        f"Components: {match['components']}",
    ]
    keys = [option.removeprefix("signed-by=") for option in (match["options"] or "").split() if "signed-by=" in option]
    return "\n".join([*stanza, *(f"Signed-By: {key}" for key in keys), ""])


def _read_entries(etc: Path) -> list[str]:
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    return [file.read_text() for file in files if file.is_file() and file.suffix in (".list", ".sources")]


def _codename() -> str:
    if not _OS_RELEASE.is_file():
        return ""
    lines = _OS_RELEASE.read_text().splitlines()
    return next((line.split("=", 1)[1].strip('"') for line in lines if line.startswith("VERSION_CODENAME=")), "")


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
