"""The benchmark of filter works; what it measures is nobody's test."""

import json

from click.testing import CliRunner

from tests.benchmarks import filtering, large_fleet


def test_filtering_measures_every_kind_of_pod() -> None:
    """Each against deviceshare's own extender in another process, which answers with nodes."""
    done = CliRunner().invoke(filtering.main, ["--nodes", "20", "--requests", "3", "--json"], catch_exceptions=False)
    measured = json.loads(done.stdout)
    assert set(measured) == {*large_fleet.SPECS, *large_fleet.SHARES}
    assert all(len(each["milliseconds"]) == 3 for each in measured.values())


def test_filtering_prints_a_table_for_people() -> None:
    """One line for each kind of pod."""
    done = CliRunner().invoke(filtering.main, ["--nodes", "20", "--requests", "3"], catch_exceptions=False)
    assert "filter of 20 node names" in done.stdout
    assert all(kind in done.stdout for kind in filtering.KINDS)
