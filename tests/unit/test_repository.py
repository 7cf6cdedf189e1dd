"""The rules that CONTRIBUTING.md sets for the repository, where no other tool holds them."""

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceshare import assets

ROOT = Path(__file__).parents[2]
LONGEST_FILE = 500
PACKAGES = ("deviceshare", "deviceshare_sandbox")

# Hosts of registries and mirrors differ from machine to machine: a file that names one breaks behind someone's proxy.
REGISTRY = re.compile(
    r"""
      (?:index-url|find-links|registry)[^a-z\n]{1,4}https?://   # pip's configuration and its like
    | ^\s*(?:deb|deb-src|URIs:)\s+(?:\[[^]]*\]\s+)?https?://  # apt's
    | \bpythonhosted[.]org | \bpypi[.]org
    | \b(?:deb|security|snapshot|ftp)[.]debian[.]org
    """,
    re.VERBOSE | re.MULTILINE,
)

GONE = re.compile(
    r"made again|makes? it again|started again|\bmend(?:s|ed|ing)?\b|gave (?:it |them )?away|hand(?:s|ed|ing)? out\b"
    r"|(?:tries|tried) (?:again )?by itself|tried again|who waits|pods that wait\b",
    re.IGNORECASE,
)
"""What Kubernetes has words for: recreate, reboot, repair, allocate, retry, waiting pods."""


def tracked() -> list[Path]:
    """The files that a clone would have."""
    # CI may have cloned as another user than the one who tests, which git distrusts.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_package_registry() -> None:
    """Where packages come from is the machine's business."""
    assert {
        path.relative_to(ROOT): found.group()
        for path in tracked()
        if (found := REGISTRY.search(path.read_text(errors="replace")))
    } == {}


@pytest.mark.parametrize(
    "defanged",
    [
        "index-url = https[:]//mirror.example/simple",
        "URIs: http[:]//mirror.example/debian",
        "deb [signed-by=/key] http[:]//mirror.example/debian bookworm main",
        "see https[:]//pypi[.]org/project/x",
    ],
)
def test_an_address_of_a_registry_is_recognised(defanged: str) -> None:
    """The pattern itself could match nothing; written plainly here, the lines would be found in this very file."""
    assert REGISTRY.search("first\n" + defanged.replace("[:]", ":").replace("[.]", "."))


def test_no_module_is_long() -> None:
    """A file that outgrows this can't be read from top to bottom any more."""
    lengths = {path: path.read_text().count("\n") for each in PACKAGES for path in (ROOT / each).rglob("*.py")}
    assert lengths
    assert {path.relative_to(ROOT): lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    """Each by its path, with what it says."""
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


@pytest.mark.parametrize("packages", [PACKAGES, ("tests",)], ids=" ".join)
def test_a_class_name_stands_once(packages: tuple[str, ...]) -> None:
    """Who reads it in a log, a type or a search knows which is meant."""
    places = defaultdict(list)
    for path, module in modules(*packages):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert len(places) > 100
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_modules_first_line_is_a_statement_of_its_own() -> None:
    """It names the thing, so that no neighbour's first line could replace it."""
    lines = {path: (ast.get_docstring(module) or "").partition("\n")[0] for path, module in modules(*PACKAGES)}
    assert {path: line for path, line in lines.items() if not line.endswith((".", ":"))} == {}
    assert len(set(lines.values())) == len(lines)


def test_texts_speak_as_the_kubernetes_documentation_does() -> None:
    """CONTRIBUTING.md has the words. Also across the end of a line; CHANGELOG.md quotes what earlier releases said."""
    texts = {
        name: re.sub(r"\s+(?:#\s+)?", " ", path.read_text(errors="replace"))
        for path in tracked()
        if (name := str(path.relative_to(ROOT))).startswith(
            ("deviceshare/", "deviceshare_sandbox/", "docs/", "charts/", "manifests/", "README")
        )
    }
    assert len(texts) > 200
    found = {name: sorted(set(map(str.lower, GONE.findall(text)))) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_constraints_are_names_and_exact_versions_only() -> None:
    """No address, no hash, no marker: they must work on any machine and any supported Python."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []


def test_every_dependency_is_pinned() -> None:
    """An unpinned dependency changes under a fresh clone."""
    project = (ROOT / "pyproject.toml").read_text()
    wanted = re.findall(r'"([a-zA-Z][a-zA-Z-]*)>=', project)
    pinned = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert "aiohttp" in wanted
    assert [name for name in wanted if name.lower() not in pinned] == []


def test_examples_use_only_names_that_there_are() -> None:
    """Those for other projects' charts are applied by no test: a name with a typo would be found by a reader."""
    known = set(re.findall(r"`([a-z0-9.]*deviceshare\.io/[\w.-]+)`", (ROOT / "docs/reference/names.md").read_text()))
    files = [path for path in assets.examples().rglob("*.yaml") if path.parent != assets.examples()]
    used = {
        (path.parent.name, name) for path in files for name in re.findall(r"deviceshare\.io/[\w.-]+", path.read_text())
    }
    assert {folder for folder, _ in used} == {"jupyterhub", "kserve", "kuberay", "production-stack"}
    assert {name for _, name in used} - known - {"deviceshare.io/v1alpha1"} == set()


def test_the_installation_finds_its_manifests_and_examples() -> None:
    """They must travel with the wheel (the one tox installs) as well as with a checkout."""
    assert list((assets.manifests() / "crds").glob("*.yaml"))
    assert list(assets.examples().glob("*.yaml"))
