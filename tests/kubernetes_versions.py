"""Tests that hold on some Kubernetes versions only: collected where the binaries are of such a version, and counted.

    pytestmark = since(36)

A conftest that imports the two hooks collects in this way, and says in its report on which version it ran.
"""

import re

import pytest

from deviceshare_sandbox import binaries
from deviceshare_sandbox.reports import Progress

_FOUND = pytest.StashKey[str]()
_LEFT_OUT = pytest.StashKey[int]()


def since(minor: int) -> pytest.MarkDecorator:
    """For tests of what Kubernetes 1.`minor` and later do."""
    return pytest.mark.kubernetes(since=minor, before=None)


def before(minor: int) -> pytest.MarkDecorator:
    """For tests of what releases before Kubernetes 1.`minor` do."""
    return pytest.mark.kubernetes(since=None, before=minor)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what doesn't hold on the version of the binaries; raises SandboxError where there are none."""
    node = any("tests/node" in item.nodeid for item in items)
    config.stash[_FOUND] = version = binaries.find(Progress(), node=node).version
    left_out = [item for item in items if not holds(item, minor_of(version))]
    kept = [item for item in items if holds(item, minor_of(version))]
    config.stash[_LEFT_OUT] = len(left_out)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The line by which a log can be told from one of another version."""
    if version := config.stash.get(_FOUND, ""):
        left_out = config.stash[_LEFT_OUT]
        terminalreporter.write_line(f"Kubernetes {version}; {left_out} tests of other versions were left out")


def minor_of(version: str) -> int:
    """The 20 of v1.20.2."""
    return int(re.findall(r"\d+", version)[1])


def holds(item: pytest.Item, minor: int) -> bool:
    """Whether the test is one of Kubernetes 1.`minor`; a module's mark and a test's own both count."""
    marks = [mark.kwargs for mark in item.iter_markers("kubernetes")]
    return all(
        (each["since"] is None or minor >= each["since"]) and (each["before"] is None or minor < each["before"])
        for each in marks
    )
