"""The single-file CLI, with this machine's own packages as its one target."""

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from release import single_file, start, wheels
from release.closure import closure

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, for this Python alone, of what is installed here and deviceshare's checkout."""
    folder = tmp_path_factory.mktemp("single")
    tree = folder / "tree"
    tree.mkdir()
    for part in single_file.parts(closure("deviceshare")):
        if part.name != "deviceshare":
            link(part, tree)
    for package, place in (("deviceshare", ROOT), ("manifests", tree / "deviceshare/_assets")):
        copy = tree / package if place == ROOT else place / package
        copy.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(ROOT / package), str(copy)], check=True)
    target = folder / single_file.NAME
    single_file.write(target, {start.key(): tree}, "1.2.3")
    return target


def link(part: Distribution, tree: Path) -> None:
    """The files of an installed package, without those that it installs elsewhere."""
    for file in part.files or ():
        if ".." not in file.parts and not single_file.LEFT_OUT.match(file.as_posix()):
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / file).symlink_to(Path(str(file.locate())))


def run(program: Path, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With no package to be found but those of the archive: -S takes the environment's away, -E its variables."""
    command = [sys.executable, "-E", "-S", str(program), *arguments]
    environment = {**os.environ, "DEVICESHARE_CACHE": str(cache), "KUBECONFIG": str(cache / "none")}
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)


def test_it_runs_without_an_installation(program: Path, tmp_path: Path) -> None:
    """It offers what people need, also when it is unpacked already; what needs a cluster says that it found none."""
    offered = run(program, tmp_path, "--help")
    assert offered.returncode == 0, offered.stderr
    assert {"doctor", "explain", "inspect", "plan", "top"} <= set(re.findall(r"^  (\w+)", offered.stdout, re.MULTILINE))
    assert not {"agent", "run", "sandbox"} & set(re.findall(r"^  (\w+)", offered.stdout, re.MULTILINE))
    checked = run(program, tmp_path, "doctor", "--help")
    assert checked.returncode == 0, checked.stderr
    asked = run(program, tmp_path, "inspect")
    assert asked.returncode != 0
    assert "kubeconfig" in asked.stderr
    assert "Traceback" not in asked.stderr
    assert len(list((tmp_path / "cli").iterdir())) == 1


def test_it_is_kubectls_plugin_by_its_name(program: Path, tmp_path: Path) -> None:
    """As krew installs it."""
    plugin = tmp_path / "kubectl-deviceshare"
    plugin.symlink_to(program)
    assert "Usage: kubectl deviceshare " in run(plugin, tmp_path, "--help").stdout


def test_another_python_is_told_which_ones_will_do(program: Path, tmp_path: Path) -> None:
    """Instead of a missing module."""
    other = tmp_path / "other.pyz"
    with zipfile.ZipFile(program) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            new.writestr(name.replace(start.key(), "plan9-mips-cpython-311"), old.read(name))
    refused = run(other, tmp_path, "inspect")
    assert refused.returncode == 1
    assert f"nothing for this Python and platform, {start.key()}. It is for: plan9-mips-cpython-311" in refused.stderr


def test_this_python_is_one_of_a_releases_targets() -> None:
    """Both sides call it the same."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert start.key() in {target.key for target in wheels.TARGETS if target.python == version}
