"""Pods behind scheduling gates, such as Kueue's: they wait for somebody else than deviceshare, and all say so."""

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.doctor import canary
from deviceshare.doctor.findings import UNTESTED
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.explanation import Case, explain_group, explain_pod
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus

KUEUE = "kueue.x-k8s.io/admission"
TEXT = f"waits for its scheduling gate {KUEUE} to be removed"


def tried(pod: Pod, reason: str, **said: str) -> Pod:
    """The pod with `PodScheduled=False` for this reason."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, **said}
    return replace(pod, status=msgspec.convert({"conditions": [condition]}, type(pod.status)))


def gated(pod: Pod, *gates: str) -> Pod:
    """As Kubernetes shows it from its creation on."""
    named = [{"name": gate} for gate in gates or (KUEUE,)]
    spec = msgspec.convert({**msgspec.to_builtins(pod.spec), "schedulingGates": named}, type(pod.spec))
    return tried(replace(pod, spec=spec), "SchedulingGated", message="Scheduling is blocked due to non-empty gates")


@pytest.mark.parametrize(
    ("reason", "refused"),
    [("Unschedulable", True), ("SchedulerError", True), ("SchedulingGated", False), ("", False), ("Other", False)],
)
def test_only_a_try_in_vain_is_a_refusal(reason: str, refused: bool) -> None:
    """`PodScheduled=False` alone says no more than that the pod has no node."""
    assert bool(tried(a_pod(), reason).refusal) is refused


def test_a_gate_outweighs_what_a_condition_says() -> None:
    """Whoever may write a pod's status may write anything there; gates are Kubernetes' own."""
    forged = tried(gated(a_pod()), "Unschedulable")
    assert forged.refusal is None


def test_a_group_says_that_all_its_pods_are_gated() -> None:
    """It would fit, and nobody has to look for devices."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    held, free = gated(a_pod("p", "team")), a_pod("q", "team")
    found = group_status.bound(a_group(), fleet, [held])
    assert found == Reason(ReasonKind.GATED, f"none of its pods is to be scheduled yet: each {TEXT}")
    assert group_status.bound(a_group(), fleet, [held, free]).kind is ReasonKind.WAITING


def test_explain_tells_gated_pods_from_those_that_wait_for_devices() -> None:
    """In two lines, and not in the scheduler's words for a pod that it never tried."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1)),))
    pods = [gated(a_pod(f"p{number}")) for number in range(5)] + [
        tried(a_pod("q"), "Unschedulable", message="0/1 nodes")
    ]
    facts = explain_group(Case(fleet, a_group(node="n1"), a_node(), pods)).facts
    assert facts["waiting pods"] == "ns/q"
    assert facts["kube-scheduler"] == "0/1 nodes"
    assert facts["gated pods"] == f"ns/p0, ns/p1, ns/p2 and 2 more: each {TEXT}"


def test_explain_tells_what_a_gated_pod_waits_for() -> None:
    """The names of the gates, as many as can be read."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    assert explain_pod(Case(fleet, a_group(), None, []), gated(a_pod())).message == f"the pod {TEXT}"
    many = gated(a_pod(), "e.io/5", "a.io/1", "d.io/4", "b.io/2", "c.io/3")
    said = explain_pod(Case(fleet, a_group(), None, []), many).message
    assert said == "the pod waits for its scheduling gates a.io/1, b.io/2, c.io/3 and 2 more to be removed"


def test_inspect_counts_gated_pods_apart() -> None:
    """They wait, but not for devices."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    picture = draw(fleet, [a_group()], [gated(a_pod("p")), a_pod("q")])
    (group,) = picture.groups
    assert (group.waiting, group.gated) == (1, 1)
    assert {waiting.pod: waiting.reason for waiting in picture.waiting}["ns/p"] == f"the pod {TEXT}"


def test_a_canary_behind_a_gate_tells_nothing_about_deviceshare() -> None:
    """Kueue holds back every pod of a namespace that it manages."""
    sent = msgspec.convert({**canary.pod("c")}, Pod)
    (finding,) = canary.judge_pod(gated(sent), "deviceshare-system")
    assert finding.mark == UNTESTED
    assert KUEUE in finding.what and "--namespace" in finding.cure


def test_a_bound_pod_has_no_gates() -> None:
    """They were removed before; whatever the object says, it runs."""
    assert gated(a_pod(node="n1", devices=gpus(0))).gates == []
    assert GPU in explain_pod(Case(a_fleet(a_node()), None, None, []), gated(a_pod(node="n1", devices=gpus(0)))).message
