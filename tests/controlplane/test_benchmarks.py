"""The benchmark of scheduling works; what it measures is nobody's test."""

import json

from click.testing import CliRunner

from tests.benchmarks import scheduling


def test_all_contenders_schedule_all_pods() -> None:
    """kube-scheduler alone, the agreeable extender, and deviceshare behind its webhooks, on one API server."""
    options = ["--nodes", "30", "--pods", "20", "--rounds", "1", "--json"]
    done = CliRunner().invoke(scheduling.main, options, catch_exceptions=False)
    measured = json.loads(done.stdout)
    assert set(measured) == {contender.name for contender in scheduling.CONTENDERS}
    for [one] in measured.values():
        assert one["pods_a_second"] > 0
        assert one["cpu_ms_a_pod"]["kube-apiserver"] > 0
