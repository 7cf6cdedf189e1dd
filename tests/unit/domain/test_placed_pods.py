"""Pods behind deviceshare's scheduling gate: what the webhooks make of them, and whose word says that one is placed."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.admission.pod_review import review_changed_pod, review_new_pod
from deviceshare.domain.admission.settings import GATES, InjectionSettings
from deviceshare.domain.answers.explanation import Case, explain_pod
from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.nodes import Affinity, admits
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement import shared_resources
from deviceshare.domain.placement.node_choice import pinned_to
from deviceshare.domain.placement.shared_resources import UNCOUNTED, capacity_patch, lacking
from tests.unit.domain.jsonpatch import applied
from tests.unit.domain.objects import a_fleet, a_group, a_ledger, a_node, gpus

SETTINGS = InjectionSettings(placement=GATES)
OURS = {"name": contract.PLACEMENT_GATE}
KUEUE = {"name": "kueue.x-k8s.io/admission"}


def a_draft(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "annotations": {contract.GROUP: "team", **(annotations or {})},
        },
        "spec": {"containers": [{"name": "main"}], **spec},
    }


def injected(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = applied(body, inject(msgspec.convert(body, Draft), None, settings=SETTINGS).patch)
    return found


def read(body: dict[str, Any]) -> Pod:
    return msgspec.convert(body, Pod)


def placed(node: str = "n1", **changes: Any) -> dict[str, Any]:
    """As the leader's patch leaves it."""
    body = injected(a_draft(**changes))
    told = {contract.PLACED_ON: node, contract.POD_UID: "u", contract.GROUP_UID: "uid-of-team"}
    body["metadata"]["annotations"] |= told | {contract.SELECTED_DEVICES: '{"nvidia.com/gpu":"0,1"}'}
    del body["spec"]["schedulingGates"]
    return body


# Admission.


@pytest.mark.parametrize(
    ("spec", "scheduler", "gates"),
    [
        ({}, None, [OURS]),
        ({"schedulerName": "default-scheduler"}, "default-scheduler", [OURS]),
        ({"schedulerName": "deviceshare-scheduler"}, "default-scheduler", [OURS]),
        ({"schedulerName": "volcano"}, "volcano", [OURS]),
        ({"schedulingGates": [KUEUE]}, None, [KUEUE, OURS]),
        ({"schedulingGates": [OURS]}, None, [OURS]),
        ({"nodeName": "n1"}, None, None),
    ],
)
def test_a_pod_gets_the_gate_and_keeps_its_scheduler(spec: dict[str, Any], scheduler: str | None, gates: Any) -> None:
    """But for one that doesn't run in this mode. One with a node can't have gates, and is refused for its node."""
    found = injected(a_draft(**spec))["spec"]
    assert (found.get("schedulerName"), found.get("schedulingGates")) == (scheduler, gates)


def test_a_pod_with_a_share_is_taken_from_other_systems_schedulers() -> None:
    """They would look for devices that no node advertises."""
    limits = {"limits": {"deviceshare.io/gpu-mem": 3}}
    body = a_draft(schedulerName="gpushare-scheduler", containers=[{"name": "main", "resources": limits}])
    assert injected(body)["spec"]["schedulerName"] == "default-scheduler"


def test_injection_is_idempotent() -> None:
    """API servers may call the webhook twice."""
    once = injected(a_draft())
    assert injected(once) == once


def test_a_pod_that_was_copied_from_a_placed_one_is_not_placed() -> None:
    """What only deviceshare may write goes, at creation."""
    body = a_draft({contract.PLACED_ON: "n1", contract.POD_UID: "u", contract.GROUP_UID: "g"})
    pod = read(injected(body))
    assert pod.placed_on == "" and pod.pending and pod.awaits_placement


def test_a_pod_without_the_gate_is_refused() -> None:
    """Older API servers drop the field; the cluster's scheduler would place the pod without devices."""
    body = injected(a_draft())
    assert review_new_pod(read(body), None, placement=GATES) == ""
    del body["spec"]["schedulingGates"]
    assert contract.PLACEMENT_GATE in review_new_pod(read(body), None, placement=GATES)


def test_the_gate_is_removed_by_deviceshare_alone() -> None:
    """A pod without it would be scheduled before it has devices. Other gates are others' business."""
    gated = read(injected(a_draft(schedulingGates=[KUEUE])))
    spec = replace(gated.spec, scheduling_gates=[])
    assert "schedulingGates" in review_changed_pod(gated, replace(gated, spec=spec), by_deviceshare=False)
    assert review_changed_pod(gated, replace(gated, spec=spec), by_deviceshare=True) == ""
    kept = replace(gated.spec, scheduling_gates=[g for g in gated.spec.scheduling_gates if g.name != KUEUE["name"]])
    assert review_changed_pod(gated, replace(gated, spec=kept), by_deviceshare=False) == ""


def test_where_a_pod_is_placed_is_protected() -> None:
    """Like every annotation of ours."""
    before, forged = injected(a_draft()), injected(a_draft())
    forged["metadata"]["annotations"][contract.PLACED_ON] = "n1"
    assert contract.PLACED_ON in review_changed_pod(read(before), read(forged), by_deviceshare=False)
    assert review_changed_pod(read(before), read(forged), by_deviceshare=True) == ""


# Whether a pod is placed.


def test_a_placed_pod_lives_on_its_node_though_nobody_bound_it() -> None:
    """Its claim must not go while kube-scheduler may bind it at any moment."""
    pod = read(placed())
    assert (pod.node, pod.placed_on, pod.lives, pod.pending, pod.gates) == ("n1", "n1", True, False, [])
    assert pod.holds("uid-of-team", "n1") and not pod.holds("uid-of-team", "n2")
    bound = replace(pod, spec=replace(pod.spec, node_name="n1"))
    assert (bound.node, bound.placed_on, bound.lives) == ("n1", "", True)


def change_uid(body: dict[str, Any]) -> None:
    body["metadata"]["uid"] = "another"


def drop_label(body: dict[str, Any]) -> None:
    del body["metadata"]["labels"]


def keep_gate(body: dict[str, Any]) -> None:
    body["spec"]["schedulingGates"] = [OURS]


def drop_annotations(body: dict[str, Any]) -> None:
    body["metadata"]["annotations"] = {contract.GROUP: "team"}


def delete(body: dict[str, Any]) -> None:
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def fail(body: dict[str, Any]) -> None:
    body["status"] = {"phase": "Failed"}


@pytest.mark.parametrize("change", [change_uid, drop_label, keep_gate, drop_annotations, delete, fail])
def test_a_pod_is_not_placed_by_anything_less(change: Any) -> None:
    """An annotation alone, a namesake's, a gate that somebody removed; or one that can't be bound any more."""
    body = placed()
    change(body)
    assert not read(body).lives


def test_nothing_is_believed_of_pods_that_no_webhook_reviews() -> None:
    """In excluded namespaces anybody may write anything."""
    body = placed()
    body["metadata"]["namespace"] = "kube-system"
    assert not PodGuard()(read(body)).lives


# The affinity.

labels = st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from(["a", "b"]))
requirements = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["zone", "disk"]),
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
        "values": st.lists(st.sampled_from(["a", "b"])),
    }
)
named = st.fixed_dictionaries(
    {"key": st.just("metadata.name"), "operator": st.sampled_from(["In", "NotIn"]), "values": st.just(["n1"])}
)
terms = st.lists(
    st.fixed_dictionaries({}, optional={"matchExpressions": st.lists(requirements), "matchFields": st.lists(named)})
)


@given(st.none() | terms, labels, st.sampled_from(["n1", "n2"]))
def test_a_tightened_affinity_admits_the_node_if_it_did_before_and_no_other(
    before: list[dict[str, Any]] | None, has: dict[str, str], node: str
) -> None:
    """Terms are alternatives: each is tightened, none is added and none goes, as the API server demands."""
    body = None if before is None else {"nodeSelectorTerms": before}
    affinity = msgspec.convert({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": body}}, Affinity)
    patch = pinned_to(node, affinity)
    after = msgspec.convert(patch, Affinity)
    here, there = a_node(node), a_node("n3")
    for each in (here, there):
        each.metadata.labels.update(has)
    assert admits(None, after, here) == admits(None, affinity, here)
    assert not admits(None, after, there)
    tightened = patch["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for old, new in zip(before or [], tightened, strict=before is not None):
        assert new.get("matchExpressions", []) == old.get("matchExpressions", [])
        assert [each for each in new.get("matchFields", []) if each in old.get("matchFields", [])] == old.get(
            "matchFields", []
        )


def test_an_affinity_is_tightened_once() -> None:
    """Should the same node be chosen again for a pod whose patch was lost."""
    once = pinned_to("n1", None)
    assert pinned_to("n1", msgspec.convert(once, Affinity)) == once


# What people are told.


def test_explain_tells_of_a_placed_pod() -> None:
    """Who is to act next, and what happens where that fails."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1)),))
    body = placed(schedulerName="default-scheduler")
    said = explain_pod(Case(fleet, a_group(node="n1"), a_node(), []), read(body)).message
    assert said == "it is placed on node n1 with nvidia.com/gpu 0,1, and default-scheduler is to bind it there"
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no free ports"}
    body["status"] = {"conditions": [refusal]}
    found = explain_pod(Case(fleet, a_group(node="n1"), a_node(), []), read(body))
    assert "delete the pod and create it again" in found.message
    assert found.facts["kube-scheduler"] == "no free ports"
    body["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "controller": True}]
    assert "recreated" in explain_pod(Case(fleet, a_group(node="n1"), a_node(), []), read(body)).message


def test_a_gated_pod_does_not_wait_for_kube_scheduler() -> None:
    """It doesn't see the pod before deviceshare places it."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1)),))
    pod = read(injected(a_draft()))
    reason = WaitingReasons(fleet).of_pod(pod, a_group(node="n1"), None)
    assert reason.kind is ReasonKind.NOT_TRIED
    assert "deviceshare has not placed it yet" in str(reason) and "kube-scheduler" not in reason.text


def test_a_pod_whose_gate_somebody_removed_has_no_devices_and_says_so() -> None:
    """kube-scheduler bound it before deviceshare placed it."""
    body = injected(a_draft(nodeName="n1"))
    said = explain_pod(Case(a_fleet(a_node()), None, None, []), read(body)).message
    assert said == "it is on node n1 without devices, since deviceshare did not bind it: delete and recreate it"


# Shares.


def test_nodes_advertise_more_shares_than_anybody_asks_for() -> None:
    """The ledger counts; kube-scheduler and the kubelet have nothing to. What a plugin advertises is left alone."""
    wanted = ["aliyun.com/gpu-mem", "deviceshare.io/gpu-mem"]
    node = a_node(devices={"nvidia.com/gpu": 4, "aliyun.com/gpu-mem": 0})
    assert lacking(node, wanted) == wanted
    assert shared_resources.advertised(node) == {"aliyun.com/gpu-mem"}
    told = capacity_patch(node, wanted)["status"]["allocatable"]
    after = a_node(devices={"nvidia.com/gpu": 4, **told})
    assert lacking(after, wanted) == []
    assert shared_resources.advertised(after) == frozenset()
    assert shared_resources.allocating(after) == {}
    assert lacking(a_node(devices={"aliyun.com/gpu-mem": 64}), wanted) == ["deviceshare.io/gpu-mem"]
    assert UNCOUNTED > 1024 * 1024
