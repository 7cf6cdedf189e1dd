"""The parts of the documentation that follow from the code."""

import re
from pathlib import Path
from typing import Final

import pytest

from charts import helm
from docs import generate

PAGES: Final = sorted(
    each for each in [*generate.ROOT.glob("*.md"), *generate.ROOT.glob("docs/**/*.md")] if "zh-CN" not in each.name
)


def test_generated_tables_are_up_to_date() -> None:
    """From the code, the chart and the contracts."""
    assert list(generate.stale()) == [], "run: python -m docs.generate"


def test_every_metric_is_in_the_reference() -> None:
    """The table holds what the registry was used for; a kind that the generator doesn't know would be missing."""
    sources = [
        generate.ROOT / "deviceshare" / name
        for name in ("agent/metrics.py", "metrics.py", "run/process.py", "domain/answers/census.py")
    ]
    named = {name for file in sources for name in re.findall(r'"(deviceshare_\w+)"', file.read_text())}
    named |= {f"deviceshare_device_{name}" for name in re.findall(r'_family\(\s*"(\w+)"', sources[0].read_text())}
    listed = set(re.findall(r"^\| `(deviceshare_\w+)`", generate.metrics(), re.MULTILINE))
    assert named
    assert listed == named


def test_every_role_of_the_chart_is_in_the_reference() -> None:
    """A rule in a template that the generator passes over would be granted without a word."""
    listed = re.findall(r"^### (\w+) ([\w-]+)", generate.rights(helm.render_files(generate.ALL_ROLES)), re.MULTILINE)
    objects = [each for each in helm.render(generate.ALL_ROLES) if each["kind"] in ("Role", "ClusterRole")]
    assert objects
    assert sorted(listed) == sorted((each["kind"], each["metadata"]["name"]) for each in objects)


@pytest.mark.parametrize(
    "row", ["| `--log-level` | `DEVICESHARE_LOG_LEVEL` | `info` |", "| `--tls-key` | `DEVICESHARE_TLS_KEY` |  |"]
)
def test_a_setting_tells_its_variable_and_its_default(row: str) -> None:
    """A flag without a default has an empty cell."""
    assert any(line.startswith(row) for line in generate.settings().splitlines())


def test_every_module_that_a_page_names_exists() -> None:
    """A page outlives the file that it sends its reader to."""
    named = {
        (page.name, path)
        for page in (*generate.ROOT.glob("*.md"), *generate.ROOT.glob("docs/*.md"))
        if page.name != "CHANGELOG.md"
        for path in re.findall(r"`(?:deviceshare/)?((?:\w+/)+\w+\.py)`", page.read_text())
    }
    assert ("architecture.md", "web/admission.py") in named
    homes = [generate.ROOT / home for home in ("", "deviceshare", "tests", "tests/unit", "tests/controlplane")]
    assert [each for each in sorted(named) if not any((home / each[1]).exists() for home in homes)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_sentence_is_longer_than_300_characters(page: Path) -> None:
    """As they are read: without the addresses of links. Names of programs may begin one."""
    text = re.sub(r"```.*?```|\]\([^)]*\)", "", page.read_text(), flags=re.DOTALL)
    parts = re.split(r"\n\s*\n|\n(?=\s*[-*|#\d])|\|", re.sub(r"^#.*$", "", text, flags=re.MULTILINE))
    sentences = [
        " ".join(each.split()) for part in parts for each in re.split(r"(?<=[.!?])\s+|(?<=[:;])\s+(?=[A-Z`*\[(])", part)
    ]
    assert [each for each in sentences if len(each) > 300] == []
