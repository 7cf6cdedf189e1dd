"""The plugin's archive and manifest for krew, the plugin manager of kubectl.

https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

import hashlib
from pathlib import Path
from typing import Final

import yaml

from release import archives

NAME: Final = "deviceshare.yaml"
"""krew takes the plugin's name from the file's."""
PROGRAM: Final = "kubectl-deviceshare"
PLATFORMS: Final = (("linux", "amd64"), ("linux", "arm64"), ("darwin", "arm64"))
_DESCRIPTION: Final = """\
Shows who holds which GPUs of which node and which pods wait (inspect), why a pod
waits and what would help (explain), where manifests would land (plan), what devices
and processes do now (top), and checks an installation of deviceshare (doctor).
"""
_CAVEATS: Final = """\
Needs Python 3.11 to 3.14 as python3 on PATH, and deviceshare in the cluster.
"""


def write_archive(folder: Path, program: Path, licence: Path) -> Path:
    """Writes what krew unpacks: the single-file CLI under the plugin's name, and the licence, which krew demands."""
    target = folder / f"{PROGRAM}.tar.gz"
    files = {PROGRAM: program.read_bytes(), "LICENSE": licence.read_bytes()}
    archives.write_tar(target, files, executable=frozenset({PROGRAM}))
    return target


def manifest(version: str, archive: Path, url: str) -> str:
    """The manifest `deviceshare.yaml`; `url` is the folder from which the release's files are downloaded."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    platforms = [
        {
            "selector": {"matchLabels": {"os": system, "arch": machine}},
            "uri": f"{url.rstrip('/')}/{archive.name}",
            "sha256": digest,
            "bin": PROGRAM,
            "files": [{"from": name, "to": "."} for name in (PROGRAM, "LICENSE")],
        }
        for system, machine in PLATFORMS
    ]
    return yaml.safe_dump(
        {
            "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
            "kind": "Plugin",
            "metadata": {"name": "deviceshare"},
            "spec": {
                "version": f"v{version}",
                # A folder of downloads is no page for people.
                "homepage": url.rstrip("/").split("/releases/")[0],
                "shortDescription": "See and explain GPUs that pods share",
                "description": _DESCRIPTION,
                "caveats": _CAVEATS,
                "platforms": platforms,
            },
        },
        sort_keys=False,
    )
