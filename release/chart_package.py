"""The chart as a package, `deviceshare-VERSION.tgz`, as `helm package` makes it but with the same bytes each time."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import helm_python
import yaml

from charts import helm
from release import archives
from release.version import semantic, tag


def metadata() -> dict[str, Any]:
    """What Chart.yaml says; annotations for Artifact Hub are among it."""
    said: dict[str, Any] = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    return said


@contextmanager
def numbered(version: str) -> Iterator[Path]:
    """A copy of the chart that has this version, and by default the image of it."""
    with tempfile.TemporaryDirectory() as scratch:
        chart = shutil.copytree(helm.CHART, Path(scratch) / "deviceshare")
        text = (chart / "Chart.yaml").read_text()
        text = re.sub(r"^version: .*", f"version: {semantic(version)}", text, flags=re.MULTILINE)
        text = re.sub(r"^appVersion: .*", f'appVersion: "{tag(version)}"', text, flags=re.MULTILINE)
        (chart / "Chart.yaml").write_text(text)
        yield chart


def write(folder: Path, chart: Path) -> Path:
    """Writes the package; Helm decides which files belong to it (.helmignore).

    Raises:
        HelmError: the chart isn't valid.
    """
    with tempfile.TemporaryDirectory() as scratch:
        helm_python.package(chart, destination=scratch)
        [made] = Path(scratch).glob("*.tgz")
        files = archives.read_tar(made)
    target = folder / made.name
    archives.write_tar(target, files)
    return target
