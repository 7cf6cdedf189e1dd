"""Wheels: deviceshare's own, and those of its dependencies for all platforms on which a release runs.

pip and hatchling do the work, configured as on this machine: no place that packages come from is written down.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final, NamedTuple

from release import archives

ROOT: Final = Path(__file__).parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_GLIBC: Final = tuple(f"2_{minor}" for minor in range(28, 16, -1))
_NEWER_GLIBC: Final = tuple(f"2_{minor}" for minor in range(39, 28, -1))


class WheelTarget(NamedTuple):
    """A Python on a platform, by what wheels and interpreters call them."""

    system: str
    """As `sys.platform`."""
    machine: str
    """As `platform.machine()`."""
    python: str
    newer: bool = False
    """Whether its glibc may be newer than 2.28: pip prefers other wheels there, whose hashes an image needs, too."""

    @property
    def key(self) -> str:
        """The name by which the single-file CLI finds what belongs to it (start.py)."""
        return f"{self.system}-{self.machine}-cpython-{self.python.replace('.', '')}"

    @property
    def tags(self) -> list[str]:
        """pip's platforms, best first."""
        if self.system == "darwin":
            return [f"macosx_12_0_{self.machine}"]
        manylinux = [f"manylinux_{glibc}_{self.machine}" for glibc in (*(_NEWER_GLIBC if self.newer else ()), *_GLIBC)]
        return [*manylinux, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]


MACHINES: Final = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
"""Not macOS on x86-64: cryptography has no wheels for it any more."""
TARGETS: Final = [WheelTarget(system, machine, python) for system, machine in MACHINES for python in PYTHONS]
LINUX: Final = [target for target in TARGETS if target.system == "linux"]
NEWER_LINUX: Final = [target._replace(newer=True) for target in LINUX]


def build(folder: Path) -> list[Path]:
    """Writes deviceshare's sdist and wheel; hatchling makes them reproducible."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(archives.epoch())}
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
    _run(command, environment)
    return [*folder.glob("deviceshare-*.whl"), *folder.glob("deviceshare-*.tar.gz")]


def pins(parts: Sequence[Distribution]) -> list[str]:
    """Requirements of exactly these versions."""
    return [f"{each.name}=={each.version}" for each in parts]


def fetch(folder: Path, requirements: Sequence[str], target: WheelTarget) -> None:
    """Downloads the wheels of exactly these requirements for a target; those that are there already stay."""
    _run([sys.executable, "-m", "pip", "download", "--dest", str(folder), *_for(target), *requirements])


def unpack(folder: Path, requirements: Sequence[str], target: WheelTarget, tree: Path) -> None:
    """Installs for a target into a directory, from the folder of wheels alone."""
    offline = ["--no-index", "--find-links", str(folder), "--no-compile", "--target", str(tree)]
    _run([sys.executable, "-m", "pip", "install", *offline, *_for(target), *requirements])


def _for(target: WheelTarget) -> list[str]:
    platforms = [word for tag in target.tags for word in ("--platform", tag)]
    how = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
    return [*how, "--python-version", target.python, *platforms]


def _run(command: list[str], environment: dict[str, str] | None = None) -> None:
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=sys.stderr)
