"""Downloads of the official release binaries, verified by their published checksums.

Kubernetes publishes each binary with a `.sha256` beside it (https://kubernetes.io/releases/download/#binaries), etcd a
SHA256SUMS per release. Behind a mirror or a proxy the addresses can be changed; without a network this must fail within
seconds, since a build from source is the next thing to try.
"""

import hashlib
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from deviceshare_sandbox.cache import add, architecture, cache_root, etcd_cache, kubernetes_cache, locked, missing
from deviceshare_sandbox.reports import Progress, SandboxError

KUBERNETES_VERSION = "v1.33.0"
ETCD_VERSION = "v3.5.21"
KUBERNETES_URL = "https://dl.k8s.io"
ETCD_URL = "https://github.com/etcd-io/etcd/releases/download"
_TIMEOUT = 5.0
"""Seconds for the connection and for each read; a slow download goes on as long as bytes come."""
_CHUNK = 1 << 20


def download(binaries: Sequence[str], wanted: str, progress: Progress) -> Path:
    """Puts what the cache lacks of a release into it and returns the directory; raises SandboxError.

    The address is DEVICESHARE_RELEASE_URL, by default the official site.
    """
    version = wanted or KUBERNETES_VERSION
    base = os.environ.get("DEVICESHARE_RELEASE_URL", KUBERNETES_URL).rstrip("/")
    source = f"{base}/{version}/bin/linux/{_architecture()}"
    target = kubernetes_cache() / version / "bin"
    with locked(progress):
        lacking = missing(target, binaries)
        if not lacking:
            return target
        with tempfile.TemporaryDirectory(dir=cache_root(), prefix="download-") as scratch:
            directory = Path(scratch) / "bin"
            directory.mkdir()
            # All checksums first: where the site is out of reach, this is what notices, before any stage is announced.
            checksums = {name: _read(f"{source}/{name}.sha256").split()[0] for name in lacking}
            for name in lacking:
                with progress.stage(f"Downloading {name} {version}"):
                    _fetch(f"{source}/{name}", directory / name, checksums[name])
                (directory / name).chmod(0o755)
            add(directory, target)
    return target


def download_etcd(progress: Progress) -> Path:
    """Puts etcd into the cache and returns it; raises SandboxError. The address is DEVICESHARE_ETCD_RELEASE_URL."""
    base = os.environ.get("DEVICESHARE_ETCD_RELEASE_URL", ETCD_URL).rstrip("/")
    archive = f"etcd-{ETCD_VERSION}-linux-{_architecture()}.tar.gz"
    target = etcd_cache() / "etcd"
    with locked(progress), tempfile.TemporaryDirectory(dir=cache_root(), prefix="download-") as scratch:
        lines = [line.split() for line in _read(f"{base}/{ETCD_VERSION}/SHA256SUMS").splitlines() if line]
        sums = {name: checksum for checksum, name in lines}
        if archive not in sums:
            raise SandboxError(f"{base}/{ETCD_VERSION}/SHA256SUMS doesn't list {archive}")
        packed, unpacked = Path(scratch) / archive, Path(scratch) / "etcd"
        with progress.stage(f"Downloading etcd {ETCD_VERSION}"):
            _fetch(f"{base}/{ETCD_VERSION}/{archive}", packed, sums[archive])
        with tarfile.open(packed) as tar:
            member = tar.extractfile(f"{archive.removesuffix('.tar.gz')}/etcd")
            if member is None:
                raise SandboxError(f"{archive} holds no etcd")
            with unpacked.open("wb") as file:
                shutil.copyfileobj(member, file)
        unpacked.chmod(0o755)
        target.parent.mkdir(parents=True, exist_ok=True)
        unpacked.rename(target)
    return target


def _architecture() -> str:
    if sys.platform != "linux" or architecture() not in ("amd64", "arm64"):
        raise SandboxError(f"Kubernetes publishes no control plane for {sys.platform} on {platform.machine()}.")
    return architecture()


def _read(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            return str(answer.read(_CHUNK).decode())
    except (OSError, ValueError) as error:
        raise _unreachable(url, error) from error


def _fetch(url: str, target: Path, checksum: str) -> None:
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer, target.open("wb") as file:
            while chunk := answer.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
    except OSError as error:
        raise _unreachable(url, error) from error
    if digest.hexdigest() != checksum:
        raise SandboxError(
            f"{url} has the SHA-256 {digest.hexdigest()}, but {checksum} was published for it; it was deleted.",
            "Retry, or set another address (DEVICESHARE_RELEASE_URL, DEVICESHARE_ETCD_RELEASE_URL).",
        )


def _unreachable(url: str, error: Exception) -> SandboxError:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return SandboxError(f"{url} can't be read: {cause}")
