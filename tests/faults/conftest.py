"""Options of the faults' tests: `tox run -e faults -- --runs 1000 --seed 7`.

The long mode, with FAULTS_LONG=1 or `--runs`, takes an hour; with FAULTS_LONG=1 the other tests of this directory are
longer, too.
"""

import os
import random

import pytest

from tests.kubernetes_versions import pytest_collection_modifyitems, pytest_terminal_summary

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]

LONG = os.environ.get("FAULTS_LONG") == "1"
SHORT_RUNS, LONG_RUNS = 100, 1000
SHORT_SECONDS = 330.0
SHORT_SEED = 7
"""The short mode ends after its runs or after this long, whichever comes first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runs", type=int, default=0, help="how many runs of a story under a fault; implies the long mode"
    )
    parser.addoption("--seed", type=int, default=0, help="of the random choices; printed by each session")
    parser.addoption("--fault", default="", help="only faults whose name contains this")
    parser.addoption("--story", default="", help="only stories whose name contains this")


def is_long(config: pytest.Config) -> bool:
    """Whether all of it is wanted."""
    return LONG or bool(config.getoption("--runs"))


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--runs")) or (LONG_RUNS if is_long(request.config) else SHORT_RUNS)


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The short mode draws the same each time, so that CI judges a change and not the dice."""
    chosen = int(request.config.getoption("--seed"))
    return chosen or (random.randrange(1, 10**6) if is_long(request.config) else SHORT_SEED)
