"""deviceshare's version, which git gives: `python -m release.version`, with `--tag` as an image's tag and a label.

0.1.0.dev873+g25e2181 is commit 873, before the tag v0.1.0; hatch-vcs counts. A checkout without git is 0.1.0.dev0.
"""

import re
import sys
from pathlib import Path
from typing import Final

from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from release import wheels

UNKNOWN: Final = "0.1.0.dev0"
"""Of a checkout without git (`fallback_version` in pyproject.toml)."""
_PEP_440: Final = re.compile(r"(\d+\.\d+\.\d+)\.?([a-z]+\d+)?(?:\.?(dev\d+))?(\+[a-z0-9.]+)?")


def version(checkout: Path = wheels.ROOT) -> str:
    """As Python has it (PEP 440)."""
    return str(ProjectMetadata(str(checkout), PluginManager()).version)


def semantic(version: str) -> str:
    """As Helm has it (https://semver.org): `0.1.0-dev.873+g25e2181`; raises ValueError where there is no such form."""
    found = _PEP_440.fullmatch(version)
    if found is None:
        raise ValueError(f"{version} has no form of Semantic Versioning")
    release, candidate, commit, local = found.groups()
    before = ".".join(re.sub(r"(?<=[a-z])(?=\d)", ".", each) for each in (candidate, commit) if each)
    return release + (f"-{before}" if before else "") + (local or "")


def tag(version: str) -> str:
    """As images' tags and labels have it, neither of which may contain a `+`; the chart does the same."""
    return version.replace("+", "_")


if __name__ == "__main__":
    sys.stdout.write(f"{tag(version()) if '--tag' in sys.argv else version()}\n")
