"""Verdicts on pods of a group."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.admission.pod_review import (
    MAX_ANNOTATIONS,
    review_changed_pod,
    review_ephemeral_containers,
    review_new_pod,
)
from deviceshare.domain.objects.pods import Pod
from tests.unit.domain.jsonpatch import applied

Json = dict[str, Any]


def a_pod(**annotations: str) -> Json:
    """A pod as the mutating webhook leaves it."""
    pod: Json = {
        "metadata": {"name": "pod", "namespace": "team-a", "annotations": {"deviceshare.io/group": "team"}},
        "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "init"}]},
    }
    pod = applied(pod, inject(msgspec.convert(pod, Draft), None).patch)
    pod["metadata"]["annotations"] |= {f"deviceshare.io/{key}": value for key, value in annotations.items()}
    return pod


def read(pod: Json) -> Pod:
    return msgspec.convert(pod, Pod)


def test_a_pod_that_the_webhook_made_ready_is_admitted() -> None:
    """The usual case."""
    assert review_new_pod(read(a_pod()), None) == ""


def test_a_pod_without_a_group_is_admitted_whatever_it_says() -> None:
    """It is none of our business."""
    assert review_new_pod(Pod(), None) == ""


def drop_env(pod: Json) -> None:
    del pod["spec"]["initContainers"][0]["env"]


def drop_label(pod: Json) -> None:
    del pod["metadata"]["labels"]


def drop_annotation(pod: Json) -> None:
    del pod["metadata"]["annotations"]["deviceshare.io/group"]


def name_badly(pod: Json) -> None:
    pod["metadata"]["annotations"]["deviceshare.io/group"] = "Team!"


def preset_node(pod: Json) -> None:
    pod["spec"]["nodeName"] = "node-1"


def other_scheduler(pod: Json) -> None:
    pod["spec"]["schedulerName"] = "default-scheduler"


def own_devices(pod: Json) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}}


def own_part_of_a_device(pod: Json) -> None:
    pod["spec"]["initContainers"] = [{"name": "side", "resources": {"limits": {"nvidia.com/mig-1g.5gb": 1}}}]
    pod["spec"]["initContainers"][0]["env"] = pod["spec"]["containers"][0]["env"]


def own_devices_as_a_whole(pod: Json) -> None:
    pod["spec"]["resources"] = {"limits": {"nvidia.com/gpu": "1e0"}}


def preset_devices(pod: Json) -> None:
    pod["metadata"]["annotations"]["deviceshare.io/nvidia-visible-devices"] = "0"


@pytest.mark.parametrize(
    ("fault", "field", "way_out"),
    [
        (drop_env, "spec.containers", "retry"),
        (drop_label, "spec.containers", "retry"),
        (drop_annotation, "metadata.labels[deviceshare.io/group]", "with the annotation"),
        (name_badly, "metadata.annotations[deviceshare.io/group]", "use lower case letters"),
        (preset_node, "spec.nodeName", "leave it out"),
        (other_scheduler, "spec.schedulerName", "deviceshare-scheduler"),
        (own_devices, "spec.containers[0].resources.limits[nvidia.com/gpu]", "leave the limit out"),
        (own_part_of_a_device, "spec.initContainers[0].resources.limits[nvidia.com/mig-1g.5gb]", "leave the limit out"),
        (own_devices_as_a_whole, "spec.resources.limits[nvidia.com/gpu]", "leave the limit out"),
        (preset_devices, "metadata.annotations[deviceshare.io/nvidia-visible-devices]", "leave it out"),
    ],
)
def test_a_pod_that_could_get_round_its_group_is_refused_with_the_way_out(
    fault: Callable[[Json], None], field: str, way_out: str
) -> None:
    """The text starts with the field at fault."""
    pod = a_pod()
    fault(pod)

    refusal = review_new_pod(read(pod), None)

    assert refusal.startswith((f"{field}: ", f"{field} "))
    assert way_out in refusal


@pytest.mark.parametrize("zero", ["0", 0, "0m", "0e9", None])
def test_a_limit_of_nothing_asks_for_nothing(zero: object) -> None:
    """Charts write such zeros; neither the group nor the node that the pod is on may suffer from it."""
    pod = a_pod()
    limits = {"cpu": "1", "nvidia.com/gpu": zero, "nvidia.com/gpu.shared": zero}
    pod["spec"]["containers"][0]["resources"] = pod["spec"]["resources"] = {"limits": limits}
    assert review_new_pod(read(pod), None) == ""
    assert read(pod).plugin_resources() == set()


def test_a_limit_that_dra_serves_is_no_device_plugins() -> None:
    """The ResourceClaim that kube-scheduler creates for it says which device it is; other resources still count."""
    pod = a_pod()
    limits = {"nvidia.com/gpu": "1", "amd.com/gpu": "1", "huawei.com/Ascend910": "1"}
    pod["spec"]["containers"] = [{"name": "main", "resources": {"limits": limits}}]
    names = ("nvidia.com/gpu", "huawei.com/Ascend910")
    mappings = [{"containerName": "main", "resourceName": name, "requestName": "r"} for name in names]
    pod["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": mappings}}
    assert read(pod).plugin_resources() == {"amd.com/gpu", "huawei.com/Ascend910"}


@pytest.mark.parametrize("some", ["1", 2, "1k", "100m", "1e0", "many"])
@pytest.mark.parametrize("place", ["containers", "initContainers", "resources"])
def test_whatever_asks_for_a_device_counts_wherever_it_stands(some: object, place: str) -> None:
    """In init containers, which sidecars are, and in the resources of the whole pod, too."""
    asks = {"limits": {"nvidia.com/gpu": some, "nvidia.com/mig-1g.5gb": "0", "memory": "1Gi"}}
    pod = a_pod()
    pod["spec"][place] = asks if place == "resources" else [{"name": "x", "resources": asks}]
    assert read(pod).plugin_resources() == {"nvidia.com/gpu"}


@pytest.mark.parametrize("change", ["add", "alter", "remove"])
@pytest.mark.parametrize("key", ["nvidia-visible-devices", "group", "selected-devices", "percent.main"])
def test_nobody_else_changes_our_annotations(change: str, key: str) -> None:
    """They decide which devices a container gets when it restarts."""
    without = a_pod()
    without["metadata"]["annotations"].pop(f"deviceshare.io/{key}", None)
    before, after = {
        "add": (without, a_pod(**{key: "0"})),
        "alter": (a_pod(**{key: "0"}), a_pod(**{key: "0,1"})),
        "remove": (a_pod(**{key: "0"}), without),
    }[change]

    refusal = review_changed_pod(read(before), read(after), by_deviceshare=False)

    assert refusal.startswith(f"metadata.annotations[deviceshare.io/{key}] ")
    assert "delete the pod" in refusal or "leave it as it is" in refusal
    assert review_changed_pod(read(before), read(after), by_deviceshare=True) == ""


@pytest.mark.parametrize("value", ["other", None])
def test_nobody_else_changes_the_label(value: str | None) -> None:
    """A pod without it would disappear from our view, with its devices."""
    before, after = a_pod(), a_pod()
    after["metadata"]["labels"] = {} if value is None else {"deviceshare.io/group": value}

    refusal = review_changed_pod(read(before), read(after), by_deviceshare=False)

    assert refusal.startswith("metadata.labels[deviceshare.io/group] ")
    assert review_changed_pod(read(before), read(after), by_deviceshare=True) == ""


def test_everything_else_may_change() -> None:
    """Labels, other annotations and status belong to others."""
    before, after = a_pod(), a_pod()
    after["metadata"]["labels"]["app"] = "a"
    after["metadata"]["annotations"]["note"] = "changed"
    after["metadata"]["annotations"]["sandbox.deviceshare.io/env"] = "{}"

    assert review_changed_pod(read(before), read(after), by_deviceshare=False) == ""


def test_a_pod_that_has_nothing_to_do_with_groups_may_change_as_it_likes() -> None:
    """Annotations under our prefix mean nothing on it."""
    before: Json = {"metadata": {"annotations": {"deviceshare.io/woken-at": "1"}}}

    assert review_changed_pod(read(before), Pod(), by_deviceshare=False) == ""


def test_a_plain_pod_can_not_join_a_group_later() -> None:
    """Its environment can't be changed any more."""
    assert "create it with another group" in review_changed_pod(Pod(), read(a_pod()), by_deviceshare=False)


def test_an_ephemeral_container_must_be_injected_unless_it_was_there_before() -> None:
    """An old one can't be changed, and was judged when it came."""
    pod = a_pod()
    pod["spec"]["ephemeralContainers"] = [{"name": "debug"}]
    draft = msgspec.convert(pod, Draft)

    assert "spec.ephemeralContainers: " in review_ephemeral_containers(draft, (), None)
    assert review_ephemeral_containers(draft, {"debug"}, None) == ""


def test_of_two_variables_of_one_name_the_last_decides() -> None:
    """So it is in a container: what stands behind ours would name other devices."""
    pod = a_pod()
    assert review_new_pod(read(pod), None) == ""
    pod["spec"]["containers"][0]["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})
    assert "NVIDIA_VISIBLE_DEVICES" in review_new_pod(read(pod), None)


def test_room_for_our_annotations_is_reserved() -> None:
    """Kubernetes takes 256 KiB, in bytes; a pod that has filled them could neither be woken nor fenced."""
    pod = a_pod()
    taken = sum(len(key + value) for key, value in pod["metadata"]["annotations"].items())
    full, over = (a_pod() for _ in range(2))
    full["metadata"]["annotations"]["x"] = "é" + "x" * (MAX_ANNOTATIONS - taken - 3)
    over["metadata"]["annotations"]["x"] = "é" + "x" * (MAX_ANNOTATIONS - taken - 2)
    assert review_new_pod(read(full), None) == ""
    assert review_new_pod(read(over), None).startswith("metadata.annotations take more than 192 KiB")
    assert review_changed_pod(read(full), read(over), by_deviceshare=False).startswith("metadata.annotations take more")
    assert review_changed_pod(read(full), read(over), by_deviceshare=True) == ""
    assert review_changed_pod(read(over), read(over), by_deviceshare=False) == "", "it was there before the rule"
