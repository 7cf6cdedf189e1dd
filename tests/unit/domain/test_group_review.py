"""Verdicts on groups."""

import pytest

from deviceshare.domain.admission.group_review import review_changed_group, review_deleted_group, review_new_group
from deviceshare.domain.objects.groups import Group, GroupSpec, GroupStatus
from deviceshare.domain.objects.object_meta import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec, PodStatus
from deviceshare.domain.objects.pods import Pod


def a_group(name: str = "team", node: str = "", **resources: int) -> Group:
    counts = {key.replace("_", ".") + "/gpu": count for key, count in (resources or {"nvidia_com": 1}).items()}
    return Group(ObjectMeta(name=name, uid=f"uid-of-{name}"), GroupSpec(counts), GroupStatus(node_name=node))


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

    refusal = review_deleted_group(a_group(node="node-1"), pods)

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
