"""The single-file CLI, `deviceshare.pyz`: one file for a laptop that needs a Python and no installation.

A zip archive that Python runs (https://docs.python.org/3/library/zipapp.html). Shared libraries can't be loaded out of
an archive, so start.py unpacks it at its first run. It serves several platforms and Pythons: each file is in it once,
named by its SHA-256, and `targets/KEY.json` says which path of that target's tree has which content.

What only runs in a cluster or builds one is left out, as are dependencies that only that needs, and extension modules
of packages that work without them.
"""

import hashlib
import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from release import archives
from release.closure import normal

NAME: Final = "deviceshare.pyz"
START: Final = Path(__file__).parent / "start.py"
DAEMONS: Final = frozenset({"grpclib", "h2", "hpack", "hyperframe", "protobuf", "uvloop"})
"""What only `deviceshare run` and `deviceshare agent` need."""
LEFT_OUT: Final = re.compile(
    r"""
      deviceshare/(?:agent|kubelet|run|web)/ | deviceshare/(?:daemon|cli/(?:agent|run))\.py$
    | kubernetes/(?:aio/)?client/(?:api|models)/.+
    | (?:aiohttp|frozenlist|multidict|propcache|yaml|yarl)/.+\.(?:so|pyx|pxd|h|c)$
    | (?:bin|share)/ | .+\.(?:pyc|pyi)$ | .+/tests?/
    """,
    re.VERBOSE,
)
"""Paths that aren't contained."""


def parts(closure: Iterable[Distribution]) -> list[Distribution]:
    """Of the dependency closure, what the single-file CLI contains."""
    return [each for each in closure if normal(each.name) not in DAEMONS]


def contained(tree: Path) -> dict[str, bytes]:
    """The files of an unpacked target that belong into it, by path."""
    paths = {path.relative_to(tree).as_posix(): path for path in sorted(tree.rglob("*")) if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not LEFT_OUT.match(name)}


def write(target: Path, trees: Mapping[str, Path], version: str) -> None:
    """Writes the archive; `trees` are the unpacked targets by their keys."""
    blobs: dict[str, bytes] = {}
    listings = {}
    for key, tree in sorted(trees.items()):
        files = contained(tree)
        listings[key] = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        blobs |= {listings[key][name]: content for name, content in files.items()}
    content = json.dumps(listings, sort_keys=True)
    identity = f"{version}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as archive:
            archives.add_to_zip(archive, "__main__.py", START.read_bytes())
            archives.add_to_zip(archive, "identity", identity.encode())
            for key, listing in sorted(listings.items()):
                archives.add_to_zip(archive, f"targets/{key}.json", json.dumps(listing, sort_keys=True).encode())
            for name, blob in sorted(blobs.items()):
                archives.add_to_zip(archive, f"blobs/{name}", blob)
    target.chmod(0o755)
