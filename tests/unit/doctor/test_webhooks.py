"""What the doctor makes of the webhooks' configurations, and of the pod that it sent through them."""

import base64
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from deviceshare.certificates import issuance
from deviceshare.doctor import admission, canary
from deviceshare.doctor.findings import UNTESTED, WARNING
from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import WebhookConfiguration
from deviceshare.loops.ports import Forbidden, Unavailable
from tests.unit.doctor.test_findings import only

NOW = datetime(2026, 11, 21, tzinfo=UTC)
RELEASE = contract.NAMESPACE


def configuration(*names: str, until: datetime = NOW + timedelta(days=300)) -> WebhookConfiguration:
    """With a CA that is valid until then."""
    authority = issuance.new_authority(
        "test", now=until - timedelta(days=400), lifetime=timedelta(days=400), skew=timedelta()
    )
    client = {"caBundle": base64.b64encode(authority.certificate.encode()).decode()}
    return WebhookConfiguration(webhooks=[{"name": name, "clientConfig": client} for name in names])


def test_a_webhook_that_is_missing_or_trusts_nobody_is_found() -> None:
    """Each lack with what it means."""
    wanted = ["a.deviceshare.io"]
    whole = configuration("a.deviceshare.io")
    assert [*admission.judge_webhooks("Kind", whole, wanted, NOW)] == []
    assert "lacks a.deviceshare.io" in only(admission.judge_webhooks("Kind", configuration(), wanted, NOW))
    unguarded = admission.judge_webhooks("Kind", whole, [*wanted, admission.OF_AGENTS], NOW)
    assert "an agent may write what other nodes have" in only(unguarded)
    for bundle in ("", "bm9uZQ==", "not base64!"):
        blind = WebhookConfiguration(webhooks=[{"name": "a.deviceshare.io", "clientConfig": {"caBundle": bundle}}])
        assert "caBundle holds no certificate" in only(admission.judge_webhooks("Kind", blind, wanted, NOW))


def test_webhooks_that_leave_out_other_namespaces_than_the_setting_are_found() -> None:
    """More of them, and pods there are believed that anybody writes; fewer, and pods there wait for ever."""

    def leaving_out(*names: str) -> WebhookConfiguration:
        expression = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": list(names)}
        selector = {"namespaceSelector": {"matchExpressions": [expression]}}
        others = {"name": "validate-groups.deviceshare.io"}
        return WebhookConfiguration(webhooks=[{"name": "validate-pods.deviceshare.io", **selector}, others])

    assert [*admission.judge_left_out(leaving_out("a", "b"), {"a", "b"})] == []
    loose = only(admission.judge_left_out(leaving_out("a", "b", "c"), {"a", "b"}))
    assert "leaves out c, but deviceshare trusts the annotations of pods there" in loose
    assert "webhooks.excludedNamespaces" in loose and "--excluded-namespaces=a,b,c" in loose
    stuck = only(admission.judge_left_out(leaving_out("a"), {"a", "b"}), WARNING)
    assert "deviceshare takes no pod of b into a group" in stuck


def test_a_ca_that_ends_is_found_before_and_after() -> None:
    """Before, it is a warning: it should have been replaced by then."""
    soon, past = NOW + timedelta(days=3), NOW - timedelta(days=3)
    assert "the CA ends on 2026-11-24" in only(
        admission.judge_webhooks("Kind", configuration("a", until=soon), ["a"], NOW), WARNING
    )
    assert "the CA ended on 2026-11-18" in only(
        admission.judge_webhooks("Kind", configuration("a", until=past), ["a"], NOW)
    )


CALL = 'POST …: 500 InternalError failed calling webhook "validate-pods.deviceshare.io": Post "https://…": '


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("x509: certificate signed by unknown authority", "caBundle"),
        ('no endpoints available for service "deviceshare"', "no replica is ready"),
        ('service "deviceshare" not found', "Service is missing"),
        ("dial tcp 10.0.0.1:443: connect: connection refused", "no replica answers"),
        ("context deadline exceeded", "port 9443"),
        ("something Go has not said yet", "port 9443"),
    ],
)
def test_why_webhooks_can_not_be_asked_decides_the_cure(said: str, cure: str) -> None:
    """The API server's words are the only witness."""
    assert cure in only(admission.judge_injection(Unavailable(CALL + said), "default", RELEASE))


def test_a_pod_that_comes_back_as_it_was_sent_is_found() -> None:
    """The namespace is left out, or nobody is asked."""
    sent = msgspec.convert(canary.pod("p"), Pod)
    assert "is not injected" in only(admission.judge_injection(sent, "kube-system", RELEASE))


def test_who_else_refuses_the_dry_run_is_not_taken_for_us() -> None:
    """A quota, a policy, or RBAC: then the webhooks were not reached, and nothing is known."""
    ours = 'admission webhook "validate-pods.deviceshare.io" denied the request: …'
    assert "the mutating webhook is not called" in only(admission.judge_injection(Forbidden(ours), "default", RELEASE))
    policy = "pods is forbidden: ValidatingAdmissionPolicy 'deviceshare-pods' with binding 'deviceshare-pods' denied …"
    assert "should be injected" in only(admission.judge_injection(Forbidden(policy), "default", RELEASE))
    for said in (
        'User "bob" cannot create resource "pods"',
        "exceeded quota: compute",
        "ValidatingAdmissionPolicy 'mine' …",
    ):
        assert "--namespace" in only(admission.judge_injection(Forbidden(said), "default", RELEASE), UNTESTED)
