"""The benchmark of scheduling works; what it measures is nobody's test."""

import json
from collections.abc import Iterable

from click.testing import CliRunner

from deviceshare.domain.admission import settings
from tests.benchmarks import scheduling
from tests.benchmarks.scheduling import CONTENDERS, Contender, SharedClaims
from tests.kubernetes_versions import before, since


@before(34)
def test_all_contenders_schedule_all_pods() -> None:
    """kube-scheduler alone, the agreeable extender, and deviceshare behind its webhooks, on one API server."""
    measured_are(
        each for each in CONTENDERS if each.admission != settings.POLICIES and not isinstance(each, SharedClaims)
    )


@since(34)
@before(36)
def test_all_contenders_schedule_all_pods_and_pods_that_share_claims() -> None:
    """Where the API server serves DRA."""
    measured_are(each for each in CONTENDERS if each.admission != settings.POLICIES)


@since(36)
def test_all_contenders_schedule_all_pods_by_policies_too() -> None:
    """Where the API server serves them, and DRA."""
    measured_are(CONTENDERS)


def measured_are(contenders: Iterable[Contender]) -> None:
    """Asserts that these schedule their pods."""
    options = ["--nodes", "30", "--pods", "20", "--rounds", "1", "--json"]
    done = CliRunner().invoke(scheduling.main, options, catch_exceptions=False)
    measured = json.loads(done.stdout)
    assert set(measured) == {contender.name for contender in contenders}
    for [one] in measured.values():
        assert one["pods_a_second"] > 0
        assert one["cpu_ms_a_pod"]["kube-apiserver"] > 0
