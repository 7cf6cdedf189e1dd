"""Verdicts on groups."""

import pytest
from msgspec.structs import replace

from deviceshare.domain.admission.own_resource_review import (
    review_changed_group,
    review_deleted_group,
    review_new_group,
)
from deviceshare.domain.objects.groups import DEFAULT_LIFE, Group, GroupLife, GroupMeta, GroupSpec, GroupStatus
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec, PodStatus
from deviceshare.domain.objects.pods import Pod


def a_group(name: str = "team", node: str = "", **resources: int) -> Group:
    counts = {key.replace("_", ".") + "/gpu": count for key, count in (resources or {"nvidia_com": 1}).items()}
    return Group(GroupMeta(name=name, uid=f"uid-of-{name}"), GroupSpec(counts), GroupStatus(node_name=node))


def with_life(group: Group, **spec: str) -> Group:
    return replace(group, spec=replace(group.spec, **spec))


def a_pod(name: str, *, node: str = "node-1", phase: str = "Running", group: str = "team", group_uid: str = "") -> Pod:
    annotations = {"deviceshare.io/group": group} | ({"deviceshare.io/group-uid": group_uid} if group_uid else {})
    labels = {"deviceshare.io/group": group}
    metadata = ObjectMeta(name=name, namespace="default", labels=labels, annotations=annotations)
    return Pod(metadata, PodSpec(node_name=node), PodStatus(phase))


def test_a_sound_group_is_admitted() -> None:
    """The usual case."""
    assert review_new_group(a_group()) == ""


@pytest.mark.parametrize(
    ("group", "field"),
    [
        (a_group(name="a" * 64), "metadata.name: "),
        (a_group(nvidia_com=0), "spec.resources[nvidia.com/gpu]: 0"),
        (a_group(nvidia_com=-1), "spec.resources[nvidia.com/gpu]: -1"),
        (a_group(nvidia_com=10**9), "spec.resources[nvidia.com/gpu]: 1000000000"),
        (a_group(nvidia_com=1, example_com=1), "spec.resources: unknown resource 'example.com/gpu'"),
    ],
)
def test_an_impossible_group_is_refused_by_field(group: Group, field: str) -> None:
    """No pod could ever join it."""
    assert review_new_group(group).startswith(field)


def test_the_spec_of_a_bound_group_stays() -> None:
    """Its devices are taken and its pods run."""
    refusal = review_changed_group(a_group(node="node-1"), a_group(node="node-1", nvidia_com=2))

    assert refusal.startswith("spec can't be changed")
    assert "kubectl delete sdg team" in refusal


def test_the_spec_of_an_unbound_group_may_change_to_a_sound_one() -> None:
    """A group that asks for too much can be corrected without deleting it."""
    assert review_changed_group(a_group(), a_group(nvidia_com=2)) == ""
    assert "spec.resources[nvidia.com/gpu]: 0" in review_changed_group(a_group(), a_group(nvidia_com=0))


def test_metadata_of_a_bound_group_may_change() -> None:
    """Labels and annotations are the user's, even where an old spec would not be admitted today."""
    old = a_group(node="node-1", nvidia_com=0)

    assert review_changed_group(old, a_group(node="node-1", nvidia_com=0)) == ""


def test_a_group_in_use_is_not_deleted_and_its_pods_are_named() -> None:
    """By the UID they were given devices under, or by name where they run without."""
    pods = [a_pod("b", group_uid="uid-of-team"), a_pod("a"), a_pod("other", group="other")]

    refusal = review_deleted_group(a_group(node="node-1"), pods, GroupLife(deletion_policy="Refuse"))

    assert "'team' is used by 2 pods: default/a and default/b; " in refusal
    assert "scale their workloads" in refusal


def test_many_pods_are_counted_rather_than_listed() -> None:
    """A refusal is read on a terminal."""
    refusal = review_deleted_group(a_group(), [a_pod(f"pod-{number:02}") for number in range(12)])

    assert "used by 12 pods: default/pod-00, " in refusal
    assert "default/pod-09 and 2 more; " in refusal
    assert "pod-10" not in refusal


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("finished", phase="Succeeded"),
        a_pod("waiting", node="", phase="Pending"),
        a_pod("of-an-earlier-group-of-that-name", group_uid="uid-of-another"),
    ],
    ids=lambda pod: pod.metadata.name,
)
def test_pods_that_use_nothing_of_the_group_do_not_hold_it(pod: Pod) -> None:
    """Only what lives on a node with this very group's devices does."""
    assert review_deleted_group(a_group(node="node-1"), [pod]) == ""


LATER = GroupLife(deletion_policy="AfterLastPod")


@pytest.mark.parametrize(("policy", "life"), [("AfterLastPod", DEFAULT_LIFE), ("", LATER)], ids=["its own", "default"])
def test_a_group_that_ends_after_its_last_pod_may_be_deleted_once_its_finalizer_is_there(
    policy: str, life: GroupLife
) -> None:
    """Before that a deletion would end it at once; the refusal says that a moment helps."""
    group = with_life(a_group(node="node-1"), deletion_policy=policy)
    kept = replace(group, metadata=replace(group.metadata, finalizers=["example.com/x", "deviceshare.io/pods"]))

    assert "retry in a moment" in review_deleted_group(group, [a_pod("a")], life)
    assert review_deleted_group(kept, [a_pod("a")], life) == ""


def test_a_group_that_says_refuse_is_not_deleted_whatever_the_default_and_its_finalizer() -> None:
    """The policy may have changed a moment ago. The refusal names the other one."""
    group = with_life(a_group(node="node-1"), deletion_policy="Refuse")
    kept = replace(group, metadata=replace(group.metadata, finalizers=["deviceshare.io/pods"]))

    assert "set spec.deletionPolicy to AfterLastPod" in review_deleted_group(kept, [a_pod("a")], LATER)


def test_a_group_that_is_being_deleted_may_be_deleted_again() -> None:
    """It changes nothing: kubectl and Argo CD repeat themselves."""
    group = a_group(node="node-1")
    deleted = replace(group, metadata=replace(group.metadata, deletion_timestamp="2026-11-22T12:00:00Z"))

    assert review_deleted_group(deleted, [a_pod("a")]) == ""


@pytest.mark.parametrize("after", ["0s", "00h0m", "0h0m0s", "1d", "-1s", "1.5h", "Never", "12", " 1h", "1h ", "٣h"])
def test_what_is_no_duration_is_refused(after: str) -> None:
    """No time at all, too: elsewhere it often means never."""
    refused = review_new_group(with_life(a_group(), release_after=after))

    assert (
        refused == f"spec.releaseAfter: '{after}' is neither a duration of at least 1s, such as 30m or 1h30m, nor never"
    )


@pytest.mark.parametrize("after", ["", "never", "1s", "30m", "12h", "1h30m", "0h1s", "99999h99999m999999s"])
def test_durations_are_admitted(after: str) -> None:
    """As Go writes them, in hours, minutes and seconds."""
    assert review_new_group(with_life(a_group(), release_after=after)) == ""


def test_the_life_of_a_bound_group_may_change_to_a_sound_one() -> None:
    """Its devices stay where they are."""
    bound = a_group(node="node-1")
    changed = with_life(bound, release_after="10s", deletion_policy="AfterLastPod")

    assert review_changed_group(bound, changed) == ""
    assert review_changed_group(changed, bound) == ""
    assert "spec.releaseAfter: '0s'" in review_changed_group(bound, with_life(bound, release_after="0s"))
    assert "spec.deletionPolicy: 'Orphan'" in review_changed_group(bound, with_life(bound, deletion_policy="Orphan"))


def test_only_a_change_of_the_spec_has_an_old_fault_looked_at() -> None:
    """A group stored before a rule came keeps its labels editable; its next change of the spec has to correct it."""
    old = with_life(a_group(node="node-1"), release_after="0s")
    labelled = replace(old, metadata=replace(old.metadata, labels={"team": "a"}))

    assert review_changed_group(old, labelled) == ""
    assert "'0s'" in review_changed_group(old, with_life(old, deletion_policy="Refuse"))
