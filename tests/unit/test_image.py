"""The image has no sandbox, nor has the wheel, and nothing in them misses it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_EVERYTHING = """
import pkgutil, sys, deviceshare
assert deviceshare.__file__.startswith(sys.argv[1])
for module in pkgutil.walk_packages(deviceshare.__path__, "deviceshare."):
    if module.name != "deviceshare.__main__":
        __import__(module.name)
print(*sorted(name for name in sys.modules if "sandbox" in name))
"""


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """The directory of the packages that the image's build sees and copies."""
    seen = re.findall(r"^!(deviceshare\w*)$", (ROOT / ".containerignore").read_text(), re.MULTILINE)
    for name in re.findall(r"^COPY (\w+) \1$", (ROOT / "Containerfile").read_text(), re.MULTILINE):
        if name in seen:
            shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def python(shipped: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(shipped), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=shipped, env=environment, capture_output=True, text=True, check=False
    )


def test_the_image_has_no_sandbox_and_no_module_needs_one(shipped: Path) -> None:
    """A sandbox downloads programs and runs them as root, which is nothing that a cluster should be able to."""
    done = python(shipped, "-c", IMPORT_EVERYTHING, str(shipped))
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


def test_the_wheel_has_no_sandbox() -> None:
    """It is a package of its own."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["deviceshare"]


def test_the_command_line_of_the_image_offers_no_sandbox(shipped: Path) -> None:
    """Neither as a command nor in the examples; who names it is told how to get it. A checkout offers it in both."""
    offered = python(shipped, "-m", "deviceshare", "--help")
    assert offered.returncode == 0, offered.stderr
    assert "doctor" in offered.stdout
    assert "sandbox" not in offered.stdout
    refused = python(shipped, "-m", "deviceshare", "sandbox", "up")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pip install ./deviceshare_sandbox" in refused.stderr
    everywhere = python(ROOT, "-m", "deviceshare", "--help").stdout
    assert everywhere.count("deviceshare sandbox") == 2
    assert re.search(r"^  sandbox ", everywhere, re.MULTILINE)
