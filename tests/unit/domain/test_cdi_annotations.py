"""Annotations by which runtimes' plugins inject devices, and the RuntimeClass, on pods of groups."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.admission.pod_review import review_changed_pod, review_new_pod
from deviceshare.domain.admission.settings import InjectionSettings
from deviceshare.domain.objects.pods import Pod
from tests.unit.domain.jsonpatch import applied

KEYS = ["nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.main"]
ALL = "management.nvidia.com/gpu=all"

Json = dict[str, Any]


def a_pod(**annotations: str) -> Json:
    return {
        "metadata": {"name": "pod", "annotations": {"deviceshare.io/group": "team", **annotations}},
        "spec": {"containers": [{"name": "main"}]},
    }


def admitted(pod: Json, runtime_class: str = "") -> tuple[Json, list[str]]:
    """The pod as the mutating webhook leaves it, and the warnings, without the one that there is no such group."""
    injection = inject(msgspec.convert(pod, Draft), None, group_known=False, settings=InjectionSettings(runtime_class))
    return applied(pod, injection.patch), list(injection.warnings)


@pytest.mark.parametrize("key", KEYS)
def test_devices_by_annotation_are_stripped_from_a_new_pod(key: str) -> None:
    """A key for one container would win over the one that the Binding brings."""
    pod, warnings = admitted(a_pod(**{key: ALL}))
    assert pod["metadata"]["annotations"] == {"deviceshare.io/group": "team"}
    assert [warning.split(" is removed")[0] for warning in warnings] == [f"metadata.annotations[{key}]"]


@pytest.mark.parametrize("key", KEYS)
def test_where_they_were_not_stripped_the_pod_is_refused(key: str) -> None:
    """The mutating webhook was away."""
    pod, _ = admitted(a_pod())
    assert review_new_pod(msgspec.convert(pod, Pod), None) == ""
    pod["metadata"]["annotations"][key] = ALL
    assert review_new_pod(msgspec.convert(pod, Pod), None).startswith(
        f"metadata.annotations[{key}] is written by deviceshare"
    )


@pytest.mark.parametrize("key", KEYS)
def test_nobody_but_deviceshare_changes_them(key: str) -> None:
    """They count when the pod's sandbox is recreated, as after a reboot."""
    bare, given = (msgspec.convert(a_pod(), Pod), msgspec.convert(a_pod(**{key: ALL}), Pod))
    for old, new in ((bare, given), (given, bare)):
        assert review_changed_pod(old, new, by_deviceshare=False).startswith(f"metadata.annotations[{key}]")
        assert review_changed_pod(old, new, by_deviceshare=True) == ""


def test_others_annotations_of_like_names_are_left_alone() -> None:
    """Only what NVIDIA's plugin reads is ours."""
    pod, warnings = admitted(a_pod(**{"nvidia.cdi.k8s.iox": "1", "cdi.k8s.io/x": "2"}))
    assert len(pod["metadata"]["annotations"]) == 3
    assert warnings == []


def test_a_pod_gets_the_runtime_class_of_the_setting() -> None:
    """Where it names none, and only then."""
    pod, warnings = admitted(a_pod(), "nvidia")
    assert (pod["spec"]["runtimeClassName"], warnings) == ("nvidia", [])
    again, warnings = admitted(pod, "nvidia")
    assert (again, warnings) == (pod, [])
    assert "runtimeClassName" not in admitted(a_pod())[0]["spec"]


def test_a_pods_own_runtime_class_wins_with_a_warning() -> None:
    """Its author may know why; who doesn't finds out."""
    own = a_pod()
    own["spec"]["runtimeClassName"] = "kata"
    pod, [warning] = admitted(own, "nvidia")
    assert pod["spec"]["runtimeClassName"] == "kata"
    assert warning.startswith("spec.runtimeClassName: 'kata' is kept")
    assert admitted(own)[1] == []
