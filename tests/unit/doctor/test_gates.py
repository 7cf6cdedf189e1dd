"""What doctor says where deviceshare places pods behind scheduling gates."""

import msgspec
from msgspec.structs import replace

from charts import helm
from deviceshare.doctor import canary, installation, nodes
from deviceshare.doctor.findings import PROBLEM, Finding
from deviceshare.doctor.kinds import Installation, Rollout
from deviceshare.domain import contract
from deviceshare.domain.objects.object_decoder import OwnerReference
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.ports import Forbidden
from tests.unit.chart.objects import named
from tests.unit.domain.test_gates import gated, tried
from tests.unit.domain.test_placed_pods import placed, read

RELEASE = "deviceshare-system"
OURS = contract.PLACEMENT_GATE


def sent() -> Pod:
    return msgspec.convert(canary.pod("c"), Pod)


def judged(pods: list[Pod], *, gates: bool) -> list[Finding]:
    return [*nodes.judge_placement(pods, gates=gates)]


def test_the_mode_is_read_from_deviceshares_own_deployment() -> None:
    """Whoever asks, it is the cluster that knows."""
    for values, expected in (({"placement": "gates"}, True), ({}, False)):
        assert (
            Installation(RELEASE, msgspec.convert(named(helm.render(values), "Deployment"), Rollout)).by_gates
            is expected
        )
    assert Installation(RELEASE).by_gates is False


def test_the_mode_is_read_from_a_pod_where_no_deployment_says_it() -> None:
    """deviceshare may run by other means."""
    assert Installation(RELEASE, sample=gated(sent(), OURS)).by_gates
    assert not Installation(RELEASE, sample=sent()).by_gates
    assert not Installation(RELEASE, sample=Forbidden("pods is forbidden")).by_gates


def test_the_rights_that_it_needs_are_those_that_the_chart_grants() -> None:
    """A scheduler's are not among them."""
    needed = {
        (each.verb, each.resource, each.subresource)
        for each in installation.needed(Installation(RELEASE, sample=gated(sent(), OURS)))
    }
    assert ("patch", "nodes", "status") in needed
    assert ("create", "pods", "binding") not in needed
    assert {("delete", "pods", ""), ("patch", "pods", "")} <= needed


def test_a_canary_that_waits_names_who_is_to_act() -> None:
    """The leader, then the cluster's scheduler."""
    (leader,) = canary.judge_pod(gated(sent(), OURS), RELEASE)
    assert leader.mark == PROBLEM and "behind deviceshare's scheduling gate" in leader.what
    (scheduler,) = canary.judge_pod(read(placed(schedulerName="default-scheduler")), RELEASE)
    assert scheduler.mark == PROBLEM and "default-scheduler has not bound it, nor said why" in scheduler.what
    refused = tried(read(placed()), "Unschedulable", message="no free ports")
    assert "no free ports" in canary.judge_pod(refused, RELEASE)[0].what


def test_pods_of_the_other_placement_are_named() -> None:
    """They wait for what doesn't run any more."""
    ours = gated(sent(), OURS)
    (left,) = judged([ours], gates=False)
    assert "to lift its scheduling gate" in left.what and left.cure == "delete and recreate the pods"
    assert [*judged([ours], gates=True)] == []
    theirs = sent()
    assert theirs.spec.scheduler_name == contract.SCHEDULER_NAME
    (left,) = judged([theirs], gates=True)
    assert "a kube-scheduler of deviceshare's" in left.what
    assert [*judged([theirs], gates=False)] == []


def test_a_pod_that_does_not_fit_and_that_nobody_recreates_is_named() -> None:
    """Its author has to."""
    refused = tried(read(placed()), "Unschedulable", message="no free ports")
    (found,) = judged([refused], gates=True)
    assert "no free ports" in found.what and "create it again" in found.cure
    owner = [OwnerReference(kind="Job", controller=True)]
    assert [*judged([replace(refused, metadata=replace(refused.metadata, owner_references=owner))], gates=True)] == []
