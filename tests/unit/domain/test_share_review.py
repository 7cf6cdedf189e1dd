"""Verdicts on pods that ask for shares."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.bypasses import bypasses
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import inject
from deviceshare.domain.admission.pod_review import review_changed_pod, review_ephemeral_containers, review_new_pod
from deviceshare.domain.objects.groups import Group, GroupMeta, GroupSpec
from deviceshare.domain.objects.pods import Pod
from tests.unit.domain.jsonpatch import applied

Json = dict[str, Any]
LIMIT = "deviceshare.io/gpu-mem"


def a_pod(limits: Json | None = None, group: str = "") -> Json:
    """A pod as the mutating webhook leaves it."""
    pod: Json = {
        "metadata": {"name": "pod", "annotations": {"deviceshare.io/group": group} if group else {}},
        "spec": {"containers": [{"name": "other"}, {"name": "main", "resources": {"limits": limits or {LIMIT: 8}}}]},
    }
    ready: Json = applied(pod, inject(msgspec.convert(pod, Draft), None).patch)
    return ready


def read(pod: Json) -> Pod:
    return msgspec.convert(pod, Pod)


NVIDIA = Group(GroupMeta(name="team"), GroupSpec({"nvidia.com/gpu": 1}))
ASCEND = Group(GroupMeta(name="team"), GroupSpec({"huawei.com/Ascend910": 1}))


def test_a_pod_with_a_share_that_the_webhook_made_ready_is_admitted() -> None:
    """With a group and without."""
    assert review_new_pod(read(a_pod()), None) == ""
    assert review_new_pod(read(a_pod(group="team")), NVIDIA) == ""


def drop_env(pod: Json) -> None:
    del pod["spec"]["containers"][1]["env"]


def read_the_whole_pods(pod: Json) -> None:
    pod["spec"]["containers"][1]["env"] = pod["spec"]["containers"][0]["env"]


def drop_label(pod: Json) -> None:
    del pod["metadata"]["labels"]


def preset_node(pod: Json) -> None:
    pod["spec"]["nodeName"] = "node-1"


def other_scheduler(pod: Json) -> None:
    pod["spec"]["schedulerName"] = "volcano"


def whole_devices_too(pod: Json) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}


def ask_as_a_whole(pod: Json) -> None:
    pod["spec"]["resources"] = {"limits": {"aliyun.com/gpu-mem": "1"}}


def preset_share(pod: Json) -> None:
    pod["metadata"]["annotations"]["deviceshare.io/nvidia-devices.main"] = "0"


def ask_twice(pod: Json) -> None:
    pod["spec"]["containers"][1]["resources"]["limits"]["cnvrg.io/metagpu"] = 50


def choose_no_strategy(pod: Json) -> None:
    pod["metadata"]["annotations"]["deviceshare.io/strategy"] = "best"


@pytest.mark.parametrize(
    ("fault", "field", "way_out"),
    [
        (drop_env, "spec.containers", "retry"),
        (read_the_whole_pods, "spec.containers", "did not inject the env NVIDIA_VISIBLE_DEVICES"),
        (drop_label, "spec.containers", "retry"),
        (preset_node, "spec.nodeName", "choose nodes with spec.nodeSelector"),
        (other_scheduler, "spec.schedulerName", "can't give a pod a share; leave it out"),
        (whole_devices_too, "spec.containers[0].resources.limits[nvidia.com/gpu]", "leave one of the two limits out"),
        (ask_as_a_whole, "spec.resources.limits[aliyun.com/gpu-mem]", "move the limit to the container"),
        (preset_share, "metadata.annotations[deviceshare.io/nvidia-devices.main]", "leave it out"),
        (ask_twice, "spec.containers[1].resources.limits", "keep one of them"),
        (choose_no_strategy, "metadata.annotations[deviceshare.io/strategy]", "set it to binpack or spread"),
    ],
)
def test_a_pod_that_could_get_round_its_share_is_refused_with_the_way_out(
    fault: Callable[[Json], None], field: str, way_out: str
) -> None:
    """The text starts with the field at fault, and speaks of no group."""
    pod = a_pod()
    fault(pod)

    refusal = review_new_pod(read(pod), None)

    assert refusal.startswith((f"{field}: ", f"{field} "))
    assert way_out in refusal
    assert "the group's" not in refusal


def test_a_share_that_no_device_can_serve_is_refused_with_the_largest() -> None:
    """It would wait for ever. Where no device's memory is known, nothing can be said."""
    asked: list[Sequence[str]] = []

    def largest(resources: Sequence[str]) -> int:
        asked.append(resources)
        return 16276

    refusal = review_new_pod(read(a_pod({LIMIT: 16})), None, largest=largest)

    assert asked == [("nvidia.com/gpu", "amd.com/gpu")]
    assert refusal.startswith(f"spec.containers[1].resources.limits[{LIMIT}]: 16 GiB of one device, ")
    assert "the largest on any shared node has 15.9 GiB: ask for at most 15" in refusal
    assert review_new_pod(read(a_pod({LIMIT: 15})), None, largest=largest) == ""
    assert review_new_pod(read(a_pod({"deviceshare.io/gpu-percent": 250})), None, largest=largest) == ""
    assert review_new_pod(read(a_pod({LIMIT: 16})), None, largest=lambda _: 0) == ""


def test_a_share_of_one_vendor_in_a_group_of_another_is_refused() -> None:
    """By the field that asks; a group that isn't known yet may still be the right one."""
    pod = read(a_pod({"cnvrg.io/metagpu": 50}, group="team"))

    refusal = review_new_pod(pod, ASCEND)

    assert refusal.startswith("spec.containers[1].resources.limits[cnvrg.io/metagpu]: ")
    assert "'team', and that group has Huawei Ascend910, not NVIDIA GPU" in refusal
    assert review_new_pod(pod, NVIDIA) == review_new_pod(pod, None) == ""


def test_a_dialect_that_is_off_is_nobody_elses_business() -> None:
    """Without a word of ours in it; with one, it can't be served."""
    plain = Pod(spec=read(a_pod({"cnvrg.io/metagpu": 50})).spec)

    assert review_new_pod(plain, None, dialects=("gpushare",)) == ""
    assert "did not inject" in review_new_pod(plain, None)
    assert "(--dialects" in review_new_pod(read(a_pod({"cnvrg.io/metagpu": 50})), None, dialects=("gpushare",))


@pytest.mark.parametrize("key", ["nvidia-devices.main", "memory-limit-mib.main", "shares", "strategy"])
def test_nobody_else_changes_what_a_share_is(key: str) -> None:
    """It decides which devices a container gets when it restarts, and how much of them it may use."""
    before, after = a_pod(), a_pod()
    after["metadata"]["annotations"][f"deviceshare.io/{key}"] = "binpack"

    refusal = review_changed_pod(read(before), read(after), by_deviceshare=False)

    assert refusal.startswith(f"metadata.annotations[deviceshare.io/{key}] ")
    assert review_changed_pod(read(before), read(after), by_deviceshare=True) == ""


def test_nobody_else_changes_the_label_of_a_share() -> None:
    """A pod without it would disappear from our view, with its part of a device."""
    before, after = a_pod(), a_pod()
    del after["metadata"]["labels"]

    assert "delete the pod" in review_changed_pod(read(before), read(after), by_deviceshare=False)


def test_what_other_systems_write_on_a_pod_is_theirs() -> None:
    """Nothing is decided by it: `inspect` of gpushare reads it, and so may whoever wants to."""
    before, after = a_pod(), a_pod()
    after["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"] = "1"

    assert review_changed_pod(read(before), read(after), by_deviceshare=False) == ""


def test_an_ephemeral_container_is_injected_like_one_that_asks_for_nothing() -> None:
    """Or its image could show every device."""
    pod = a_pod()
    pod["spec"]["ephemeralContainers"] = [{"name": "debug"}]
    bare = msgspec.convert(pod, Draft)
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "env": pod["spec"]["containers"][0]["env"]}]

    assert "did not inject the env NVIDIA_VISIBLE_DEVICES" in review_ephemeral_containers(bare, (), None)
    assert review_ephemeral_containers(msgspec.convert(pod, Draft), (), None) == ""


def test_a_share_is_no_way_around_the_hand_over() -> None:
    """Nor does it count as a device of the vendor's device plugin; a part by any other name does."""
    assert bypasses(msgspec.convert(a_pod(), Draft)) == []
    assert read(a_pod({"aliyun.com/gpu-mem": 3})).plugin_resources() == set()
    assert bypasses(msgspec.convert(a_pod({LIMIT: 1, "nvidia.com/mig-1g.5gb": 1}), Draft)) != []


def test_whoever_may_change_a_pod_may_ask_for_another_device_of_it() -> None:
    """Nothing but its own share is moved, and only from a device that is broken; the request may be taken back, too."""
    before, after = a_pod(), a_pod()
    for each in (before, after):
        each["metadata"]["annotations"]["deviceshare.io/shares"] = "[]"
    after["metadata"]["annotations"]["deviceshare.io/rebind"] = "2026-11-22T03:00:00+01:00-a.b_c"

    for old, new in ((before, after), (after, before)):
        assert review_changed_pod(read(old), read(new), by_deviceshare=False) == ""


@pytest.mark.parametrize("token", ["", "x" * 64, "a b", "ü"])
def test_a_request_for_another_device_is_one_short_word(token: str) -> None:
    """It is written into the ledger of a node, which all pods there share."""
    before, after = a_pod(), a_pod()
    after["metadata"]["annotations"] |= {"deviceshare.io/shares": "[]", "deviceshare.io/rebind": token}
    before["metadata"]["annotations"] |= {"deviceshare.io/shares": "[]"}

    refusal = review_changed_pod(read(before), read(after), by_deviceshare=False)

    assert refusal.startswith("metadata.annotations[deviceshare.io/rebind]: set it to 1 to 63 letters")


def test_a_pod_without_a_share_asks_for_no_other_device() -> None:
    """One that has none yet, or only its group's: whoever may change the group asks for those."""
    before, after = a_pod(), a_pod()
    after["metadata"]["annotations"]["deviceshare.io/rebind"] = "now"

    assert "deviceshare rebind GROUP" in review_changed_pod(read(before), read(after), by_deviceshare=False)
    assert "leave it out" in review_new_pod(read(after), None)
