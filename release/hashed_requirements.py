"""Requirements with hashes, for pip's `--require-hashes`: versions and SHA-256 of the wheels, no address.

https://pip.pypa.io/en/stable/topics/secure-installs/
"""

import hashlib
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution
from pathlib import Path

from packaging.utils import parse_wheel_filename

from release.closure import normal


def requirements(parts: Sequence[Distribution], wheels: Iterable[Path]) -> str:
    """The exact versions of `parts`, each with the hashes of its wheels.

    Raises:
        ValueError: a part has no wheel.
    """
    hashes: dict[tuple[str, str], list[str]] = {}
    for wheel in sorted(wheels):
        name, version, *_ = parse_wheel_filename(wheel.name)
        hashes.setdefault((name, str(version)), []).append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    lines = ["# Made with the release of deviceshare: pip install --require-hashes --requirement FILE"]
    for part in parts:
        found = hashes.get((normal(part.name), part.version))
        if not found:
            raise ValueError(f"no wheel of {part.name} {part.version} was fetched")
        lines.append(" \\\n    ".join([f"{part.name}=={part.version}", *(f"--hash=sha256:{each}" for each in found)]))
    return "\n".join(lines) + "\n"
