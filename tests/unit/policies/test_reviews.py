"""Reviews by policy of what happens to pods and groups later, beside the domain's."""

import copy
from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.own_resource_review import GroupFields, review_deleted_group, review_fields
from deviceshare.domain.objects.groups import DELETION_POLICIES, Group, GroupLife, GroupMeta, GroupSpec, GroupStatus
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec, PodStatus
from deviceshare.domain.objects.pods import Pod
from tests.unit.policies import sameness
from tests.unit.policies.evaluation import a_request, policies
from tests.unit.policies.stored_form import stored_form

Json = dict[str, Any]
SHARE = {"limits": {"deviceshare.io/gpu-mem": "3"}}


def a_pod(group: str = "team", **container: Any) -> Json:
    """A pod as it is stored."""
    annotations = {"deviceshare.io/group": group} if group else {}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main", **container}]}}
    request = a_request(new=stored_form(pod))
    return policies()["deviceshare-mutate-pods"].patched(request)


PLAIN: Json = {"metadata": {}, "spec": {"containers": [{"name": "main"}]}}
CHANGES: list[Json] = [
    {"annotations": {"note": "mine"}},
    {"annotations": {"deviceshare.io/group": "other"}},
    {"annotations": {"deviceshare.io/group-uid": "1"}},
    {"annotations": {"deviceshare.io/strategy": "spread"}},
    {"annotations": {"deviceshare.io/isolation": "required"}},
    {"annotations": {"deviceshare.io/resize": "main=4096Mi"}},
    {"annotations": {"deviceshare.io/resize": "main=half", "deviceshare.io/shares": "[]"}},
    {"annotations": {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all"}},
    {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all", "devices.nri.io": "x"}},
    {"annotations": {"deviceshare.io/woken-at": "1", "deviceshare.io/shares": "[]"}},
    {"labels": {"deviceshare.io/group": "other"}},
    {"labels": {"app": "a"}},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("pod", [a_pod(), a_pod("", resources=SHARE), PLAIN], ids=["group", "share", "plain"])
def test_changed_metadata_are_judged_as_by_the_webhook(pod: Json, change: Json) -> None:
    """What is added, altered and removed, by users and by deviceshare."""
    altered, removed = copy.deepcopy(pod), copy.deepcopy(pod)
    for field, names in change.items():
        altered["metadata"].setdefault(field, {}).update(names)
        for name in names:
            removed["metadata"].get(field, {}).pop(name, None)

    sameness.changed_the_same(pod, altered)
    sameness.changed_the_same(altered, removed)
    sameness.changed_the_same(altered, altered)


@pytest.mark.parametrize("left", [[], [{"name": "example.com/quota"}]], ids=["no gate", "another's gate"])
def test_a_gate_that_is_removed_is_judged_as_by_the_webhook(left: list[Json]) -> None:
    """By deviceshare, with the devices, and by nobody else."""
    gated = a_pod()
    gated["spec"]["schedulingGates"] = [{"name": "deviceshare.io/placement"}, {"name": "example.com/quota"}]
    lifted = copy.deepcopy(gated)
    lifted["spec"]["schedulingGates"] = left

    assert "spec.schedulingGates" in sameness.changed_the_same(gated, lifted)
    assert sameness.changed_the_same(gated, gated) == ""
    assert sameness.changed_the_same(lifted, lifted) == ""


def test_annotations_that_grow_past_their_bound_are_judged_as_by_the_webhook() -> None:
    """A pod that is past it already may be changed, and shrink."""
    full, over, more = a_pod(), a_pod(), a_pod()
    for pod, size in ((full, 180_000), (over, 196_600), (more, 250_000)):
        pod["metadata"]["annotations"]["x"] = "x" * size

    assert sameness.changed_the_same(full, over).startswith("metadata.annotations take more than 192 KiB")
    assert sameness.changed_the_same(over, more) != ""
    for before, after in ((more, over), (over, over), (over, full)):
        assert sameness.changed_the_same(before, after) == ""


@pytest.mark.parametrize("token", ["2026-11-22T03:00:00+01:00-a.b_c", "", "a b", "a" * 63, "a" * 64, "é"])
@pytest.mark.parametrize("shares", [{}, {"deviceshare.io/shares": "[]"}], ids=["without shares", "with shares"])
def test_a_request_for_other_devices_is_judged_as_by_the_webhook(shares: Json, token: str) -> None:
    """The one of deviceshare's annotations that users change later, on pods with shares."""
    pod = a_pod("", resources=SHARE)
    pod["metadata"].setdefault("annotations", {}).update(shares)
    asked = copy.deepcopy(pod)
    asked["metadata"]["annotations"]["deviceshare.io/rebind"] = token

    refused = sameness.changed_the_same(pod, asked)
    sameness.changed_the_same(asked, pod)

    assert (refused == "") == (bool(shares) and token in ("2026-11-22T03:00:00+01:00-a.b_c", "a" * 63))


@pytest.mark.parametrize("pod", [a_pod(), a_pod("", resources=SHARE), PLAIN], ids=["group", "share", "plain"])
@pytest.mark.parametrize(
    "debug",
    [
        {},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
        {"securityContext": {"privileged": True}},
        {"volumeMounts": [{"mountPath": "/run/nvidia-container-devices/0"}]},
    ],
    ids=str,
)
def test_new_ephemeral_containers_are_injected_and_judged_as_by_the_webhook(pod: Json, debug: Json) -> None:
    """The first, and one beside another that is there."""
    first, second = copy.deepcopy(pod), copy.deepcopy(pod)
    first["spec"]["ephemeralContainers"] = [{"name": "one", **debug}]
    second["spec"]["ephemeralContainers"] = [{"name": "one", **debug}, {"name": "two", **debug}]
    privileged = copy.deepcopy(pod)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    later = copy.deepcopy(privileged)
    later["spec"]["ephemeralContainers"] = [{"name": "one", **debug}]

    sameness.debugged_the_same(pod, first)
    sameness.debugged_the_same(first, second)
    sameness.debugged_the_same(privileged, later)


@pytest.mark.parametrize(
    "resources",
    [
        {"huawei.com/Ascend910": 1, "huawei.com/Ascend310": 1, "huawei.com/Ascend310P": 1},
        {"nvidia.com/gpu": 1, "huawei.com/Ascend910": 1},
        {"huawei.com/Ascend": 1},
        {"huawei.com/Ascend/x": 1, "huawei.com/Ascend-": 1},
        {"nvidia.com/gpus": 1, "x" * 100: 1, "a b/c": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("selector", [{}, {"zone": "a"}, {"a b": "c", "x/y/z": "", "x.y/z": "d"}], ids=str)
def test_groups_that_the_schema_admits_are_judged_as_by_the_webhook(
    resources: dict[str, int], selector: dict[str, str]
) -> None:
    """New, changed, and changed while bound."""
    old = Group(GroupMeta(name="team"), GroupSpec({"nvidia.com/gpu": 1}))
    bound = Group(GroupMeta(name="team"), old.spec, GroupStatus(node_name="node-1"))
    new = Group(GroupMeta(name="team"), GroupSpec(resources, "spread", selector))

    sameness.grouped_the_same(None, new)
    sameness.grouped_the_same(old, new)
    sameness.grouped_the_same(bound, new)
    sameness.grouped_the_same(bound, bound)


@pytest.mark.parametrize("old", [{}, {"later": 1}, {"later": 1, "allowedNamespaces": {"Names": []}}])
@pytest.mark.parametrize(
    "added",
    [
        {},
        {"later": 2},
        {"releaseafter": "1h", "Resources": {}},
        {"allowedNamespaces": {"from": "All"}},
        {"allowedNamespaces": {"Names": [], "form": "All", "x" * 90: 1}},
    ],
)
def test_fields_that_no_group_has_are_refused_alike(old: Json, added: Json) -> None:
    """The CRD keeps them. Those that are there may stay, as a later release may have written them."""
    base = {"resources": {"nvidia.com/gpu": 1}}
    before, after = ({"metadata": {"name": "team"}, "spec": {**base, **more}} for more in (old, added))
    was, now = (msgspec.json.decode(msgspec.json.encode(each), type=GroupFields) for each in (before, after))

    policy = policies()["deviceshare-groups"]

    assert policy.refusal(a_request(new=after)) == review_fields(GroupFields(), now)
    assert policy.refusal(a_request("UPDATE", old=before, new=after)) == review_fields(was, now)
    assert bool(review_fields(GroupFields(), now)) == (added not in ({}, {"allowedNamespaces": {"from": "All"}}))


@pytest.mark.parametrize("default", DELETION_POLICIES)
@pytest.mark.parametrize("own", ["", *DELETION_POLICIES])
@pytest.mark.parametrize("theirs", [[], ["example.com/backup"], ["deviceshare.io/pods"]], ids=str)
@pytest.mark.parametrize("managers", [[], ["Update"], ["Apply", "Update"]], ids=str)
def test_a_new_group_is_changed_as_by_the_webhook(
    managers: list[str], theirs: list[str], own: str, default: str
) -> None:
    """Its finalizer, by its policy or the default, and its managed fields, unless somebody applies it server-side."""
    meta: Json = {"name": "team", **({"finalizers": theirs} if theirs else {})}
    meta |= {"managedFields": [{"operation": each} for each in managers]} if managers else {}
    group = {"metadata": meta, "spec": {"resources": {}, **({"deletionPolicy": own} if own else {})}}

    stored = sameness.finalized_the_same(group, GroupLife(deletion_policy=default))

    ours = ["deviceshare.io/pods"] if (own or default) == "AfterLastPod" and "deviceshare.io/pods" not in theirs else []
    assert stored["metadata"].get("finalizers", []) == [*theirs, *ours]
    assert ("managedFields" in stored["metadata"]) == ("Apply" in managers)
    assert sameness.finalized_the_same(stored, GroupLife(deletion_policy=default)) == stored


@pytest.mark.parametrize("number", [0, 1, 2, 3, 10, 11, 25])
def test_a_group_that_pods_use_is_not_deleted(number: int) -> None:
    """The webhook knows them from the pods, the policy from the status, in which deviceshare lists the same."""
    names = [f"pod-{each:02}" for each in range(number)]
    team = {"deviceshare.io/group": "team"}
    users = [
        Pod(ObjectMeta(name=name, namespace="a", labels=team, annotations=team), PodSpec("n"), PodStatus("Running"))
        for name in names
    ]
    group: Json = {"metadata": {"name": "team"}, "spec": {"resources": {"nvidia.com/gpu": 1}}}
    if number:
        group["status"] = {"allocatedPods": [f"a/{name}" for name in reversed(names)]}

    said = policies()["deviceshare-groups"].refusal(a_request("DELETE", old=group))

    assert said == review_deleted_group(Group(GroupMeta(name="team")), users)
    assert bool(said) == bool(number)
