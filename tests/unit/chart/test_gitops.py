"""The chart as Argo CD and Flux render it: often, and without looking at the cluster."""

import re
from pathlib import Path

import pytest

from charts import helm
from tests.unit.chart.objects import VARIANTS, able, variant

OFTEN = 3
APIS: tuple[list[str], ...] = ([], ["security.openshift.io/v1", "monitoring.coreos.com/v1"])
NOT_SETTLED = re.compile(
    r"\b(rand\w+|gen(?:CA|SelfSigned|Signed|PrivateKey)\w*|uuidv4|now|date\w*|htpasswd|lookup|getHostByName)\b"
)
"""Functions of Helm's templates that answer otherwise each time, or elsewhere."""


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("apis", APIS, ids=["plain", "openshift"])
def test_the_same_values_give_the_same_text(name: str, apis: list[str]) -> None:
    """Or an application would be out of sync for ever, and every sync would restart the pods."""
    for version in able(name, ("1.20.2", helm.CURRENT, helm.WITH_POLICIES)):
        first, *others = [helm.render_files(variant(name), version, apis) for _ in range(OFTEN)]
        assert all(other == first for other in others)


def test_one_template_alone_looks_at_the_cluster() -> None:
    """At an upgrade by Helm itself; where nothing is found, as without a cluster, it changes nothing."""
    found = {
        (str(file.relative_to(helm.CHART)), name)
        for file in _templates()
        for action in re.findall(r"\{\{.*?\}\}", file.read_text(), re.DOTALL)
        for name in NOT_SETTLED.findall(re.sub(r'"[^"]*"|/\*.*?\*/', "", action, flags=re.DOTALL))
    }

    assert found == {("templates/_admission.tpl", "lookup")}


def _templates() -> list[Path]:
    return sorted(file for file in (helm.CHART / "templates").rglob("*") if file.is_file())


def test_what_is_excluded_from_syncs_is_not_in_the_chart() -> None:
    """Argo CD leaves Leases, Endpoints and the like out by default, and warns of each that an application has."""
    kinds = {each["kind"] for name in VARIANTS for each in helm.render(variant(name), helm.WITH_POLICIES)}

    assert not kinds & {"Lease", "Endpoints", "EndpointSlice", "TokenReview", "CertificateRequest"}
    assert "Deployment" in kinds


def test_admission_that_is_fixed_follows_no_version() -> None:
    """As docs/gitops.md advises: an upgrade of the cluster changes it only when somebody says so."""
    for version in ("1.34.0", "1.36.0"):
        kinds = {each["kind"] for each in helm.render({"admission": "webhooks"}, version)}
        assert "MutatingWebhookConfiguration" in kinds and "MutatingAdmissionPolicy" not in kinds
