"""Packages from Debian's archive, by apt with a configuration and lists of its own.

The source list is derived from the machine's own entries; package lists and caches are private too. So third-party
entries can't get in the way, and everything but installing works without root.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from deviceshare_sandbox.errors import SandboxError, tail

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
