"""The cache of binaries, outside of any checkout: a build takes minutes, and a machine needs it once.

Follows the XDG base directory specification (https://specifications.freedesktop.org/basedir-spec/latest/).
"""

import fcntl
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deviceshare_sandbox.reports import Progress


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/deviceshare`, by default `~/.cache/deviceshare`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "deviceshare"


def kubernetes_cache() -> Path:
    """Holds `vX.Y.Z/bin` for each release."""
    return cache_root() / "kubernetes"


def etcd_cache() -> Path:
    """Holds an etcd that didn't come with Kubernetes."""
    return cache_root() / "etcd" / "bin"


def missing(directory: Path, names: Iterable[str]) -> list[str]:
    """Those of these executables that the directory lacks."""
    return [name for name in names if not ((path := directory / name).is_file() and os.access(path, os.X_OK))]


def architecture() -> str:
    """This machine's, as Go and container images call it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def add(made: Path, target: Path) -> None:
    """Moves the finished files of `made` to `target`, each in one step: no reader finds half a file there."""
    target.mkdir(parents=True, exist_ok=True)
    for file in made.iterdir():
        file.rename(target / file.name)


@contextmanager
def locked(progress: Progress) -> Iterator[None]:
    """Lets one process at a time fill the cache. The lock goes with the process that holds it, however it ends."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with progress.stage("Waiting for another process that is fetching binaries"):
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
