"""Container images that are built here, as no registry can be asked: one layer with a few static programs.

The format is what `docker save` writes and containerd imports, an archive of layers with a manifest.json.
https://github.com/moby/docker-image-spec/blob/main/spec.md
"""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deviceshare_sandbox.cache import architecture

BUSYBOX: Final = "docker.io/library/busybox:1.36"
"""The image that the examples use, here with Debian's busybox."""
PAUSE: Final = "deviceshare.io/sandbox/pause:1"
"""What holds a pod's network while its containers come and go."""

_EXECUTABLE = 0o755


def write_busybox(target: Path, busybox: Path) -> None:
    """Writes an archive of BUSYBOX: all that this busybox can do, under the usual names."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, timeout=30, check=True)
    applets = {f"bin/{name}": "busybox" for name in listed.stdout.split() if name != "busybox"}
    write(target, BUSYBOX, {"bin/busybox": busybox}, links=applets, command=["sh"])


def write_pause(target: Path, busybox: Path) -> None:
    """Writes an archive of PAUSE."""
    write(target, PAUSE, {"bin/busybox": busybox}, command=["busybox", "sleep", str(2**31 - 1)])


def write(
    target: Path,
    tag: str,
    files: Mapping[str, Path],
    *,
    links: Mapping[str, str] | None = None,
    command: Sequence[str],
    environment: Sequence[str] = (),
) -> None:
    """Writes an image archive: `files` are path in the image → file here, `links` path in the image → what it names.

    `environment` are `NAME=value`.
    """
    layer = _layer(files, links or {})
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *environment], "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        _add(archive, "config.json", _json(config))
        _add(archive, "layer.tar", layer)
        _add(archive, "manifest.json", _json(manifest))


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        for path, source in files.items():
            _add(archive, path, source.read_bytes())
        for path, name in links.items():
            link = tarfile.TarInfo(path)
            link.type, link.linkname = tarfile.SYMTYPE, name
            archive.addfile(link)
    return layer.getvalue()


def _add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), _EXECUTABLE
    archive.addfile(entry, io.BytesIO(content))


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()
