"""The benchmark of filter works, and all are found by one command; what they measure is nobody's test."""

import json
import re
from pathlib import Path

from click.testing import CliRunner

from tests import benchmarks
from tests.benchmarks import __main__, filtering, large_fleet, placement


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


def test_every_benchmark_is_listed_by_one_command() -> None:
    """Each module with a command of its own; those that only help are left out."""
    sources = [path for folder in benchmarks.__path__ for path in Path(folder).glob("[!_]*.py")]
    own = {path.stem for path in sources if re.search(r"^@click\.(command|group)", path.read_text(), re.MULTILINE)}
    listed = CliRunner().invoke(__main__.main, ["--help"], catch_exceptions=False).output
    assert "scheduling" in own
    assert set(re.findall(r"^  (\w+)  ", listed.partition("Commands:")[2], re.MULTILINE)) == own


def test_the_trace_leaves_more_whole_nodes_than_by_devices_alone() -> None:
    """And allocates no less; the figures of the real trace are in docs/performance.md."""
    trace = placement.read_trace(Path(placement.__file__).parent / "traces")
    tasks = placement.draw(trace, seed=7)
    found = {name: placement.replay(name, rule, trace, tasks) for name, rule in placement.rules(trace).items()}
    ours, before = found["deviceshare"], found["devices alone"]
    assert ours.whole_nodes_at_50 >= max(each.whole_nodes_at_50 for each in found.values())
    assert ours.whole_nodes_at_50 > before.whole_nodes_at_50 + 0.3
    assert ours.allocated_at_130 >= max(each.allocated_at_130 for each in found.values()) - 0.01
