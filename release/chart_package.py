"""The chart as a package, `deviceshare-VERSION.tgz`, as `helm package` makes it but with the same bytes each time."""

import tempfile
from pathlib import Path
from typing import Any

import helm_python
import yaml

from charts import helm
from release import archives


def version() -> str:
    """The chart's version, which is deviceshare's."""
    return str(metadata()["version"])


def metadata() -> dict[str, Any]:
    """What Chart.yaml says; annotations for Artifact Hub are among it."""
    said: dict[str, Any] = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    return said


def write(folder: Path) -> Path:
    """Writes the package; Helm decides which files belong to it (.helmignore).

    Raises:
        HelmError: the chart isn't valid.
    """
    with tempfile.TemporaryDirectory() as scratch:
        helm_python.package(helm.CHART, destination=scratch)
        [made] = Path(scratch).glob("*.tgz")
        files = archives.read_tar(made)
    target = folder / made.name
    archives.write_tar(target, files)
    return target
