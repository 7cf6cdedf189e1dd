"""What the mutating webhook makes of pods that ask for shares."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceshare.domain import vendors
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import Injection, inject, inject_ephemeral
from deviceshare.domain.admission.settings import UNCHANGED, InjectionSettings
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import container_annotation, field_path
from tests.unit.domain.jsonpatch import applied

Json = dict[str, Any]
OFF = InjectionSettings(framework_limits=False, group_memory=UNCHANGED)
ALIYUN, METAGPU = "aliyun.com/gpu-mem", "cnvrg.io/metagpu"
MEMORY, PERCENT = "deviceshare.io/gpu-mem", "deviceshare.io/gpu-percent"


def asking(name: str = "main", resource: str = MEMORY, size: Any = 3, **more: Any) -> Json:
    return {"name": name, "image": "busybox", "resources": {"limits": {resource: size}}, **more}


def a_pod(*containers: Json, group: str = "", **spec: Any) -> Json:
    annotations = {"deviceshare.io/group": group} if group else {}
    return {"metadata": {"name": "pod", "annotations": annotations}, "spec": {"containers": [*containers], **spec}}


def injection(pod: Json, how: InjectionSettings = InjectionSettings()) -> Injection:  # noqa: B008 it is immutable
    return inject(msgspec.convert(pod, Draft), None, settings=how)


def injected(pod: Json, how: InjectionSettings = InjectionSettings()) -> Json:  # noqa: B008 it is immutable
    result: Json = applied(pod, injection(pod, how).patch)
    return result


def read(container: Json) -> dict[str, str]:
    """The variables of a container, with the annotation or the value of each."""
    found = {}
    for each in container["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        found[each["name"]] = each.get("value", path.removeprefix("metadata.annotations['").removesuffix("']"))
    return found


def test_a_pod_that_asks_for_a_share_is_made_ready_without_a_word_about_deviceshare_in_it() -> None:
    """A manifest written for gpushare: label, scheduler and variables are all that it takes."""
    result = injected(a_pod(asking(resource=ALIYUN), schedulerName="default-scheduler"))

    assert result["metadata"]["labels"] == {"deviceshare.io/group": ""}
    assert result["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert msgspec.convert(result, Pod).injected
    assert injection(a_pod(asking())).warnings == []


def test_a_container_that_asks_sees_its_own_devices_and_the_others_none() -> None:
    """The annotation of the whole pod is never written for a pod without a group, so that who refers to it sees none.

    The share may be served by either vendor's devices; the others' are none of it.
    """
    result = injected(a_pod(asking("a"), {"name": "b"}, initContainers=[asking("i", PERCENT, 50)]))
    [a, b], [i] = (list(map(read, result["spec"][field])) for field in ("containers", "initContainers"))

    for name, env in (("a", a), ("i", i)):
        assert env["NVIDIA_VISIBLE_DEVICES"] == f"deviceshare.io/nvidia-devices.{name}"
        assert env["AMD_VISIBLE_DEVICES"] == f"deviceshare.io/amd-devices.{name}"
        assert env["ASCEND_VISIBLE_DEVICES"] == "deviceshare.io/ascend-visible-devices"
    assert b["AMD_VISIBLE_DEVICES"] == "deviceshare.io/amd-visible-devices"
    assert b == {vendor.env: vendor.annotation for vendor in vendors.VENDORS} | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_in_a_pod_of_a_group_who_did_not_ask_sees_the_groups_devices() -> None:
    """And who asked only its part of them."""
    result = injected(a_pod(asking("a", METAGPU), {"name": "b"}, group="team"))
    a, b = map(read, result["spec"]["containers"])

    assert result["metadata"]["labels"] == {"deviceshare.io/group": "team"}
    assert a["NVIDIA_VISIBLE_DEVICES"] == "deviceshare.io/nvidia-devices.a"
    assert a["AMD_VISIBLE_DEVICES"] == "deviceshare.io/amd-visible-devices"  # MetaGPU's are NVIDIA's
    assert b["NVIDIA_VISIBLE_DEVICES"] == "deviceshare.io/nvidia-visible-devices"
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in a
    assert b["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_programs_find_their_share_under_the_names_that_they_know() -> None:
    """Our own for every share, and those of the system whose resource asks, in whole GiB as there."""
    pod = a_pod(asking("a", ALIYUN, "3"), asking("b", ALIYUN, 5), asking("c", METAGPU), asking("d", PERCENT, 30))
    pod["spec"]["initContainers"] = [asking("i", ALIYUN, 4)]
    [a, b, c, d], [i] = (
        list(map(read, injected(pod, OFF)["spec"][field])) for field in ("containers", "initContainers")
    )

    for name, env in zip("abcdi", (a, b, c, d, i), strict=True):
        assert env["DEVICESHARE_MEMORY_LIMIT_MIB"] == f"deviceshare.io/memory-limit-mib.{name}"
        assert env["DEVICESHARE_PERCENT"] == f"deviceshare.io/percent.{name}"
        assert env["DEVICESHARE_MEMORY_FRACTION"] == f"deviceshare.io/memory-fraction.{name}"
        theirs = {key: value for key, value in env.items() if key.startswith("ALIYUN_COM_GPU_MEM_")}
        size = {"a": "3", "b": "5", "i": "4"}.get(name)
        # Of the pod: the containers together; the init container's comes before and is less.
        assert theirs == (
            {
                "ALIYUN_COM_GPU_MEM_IDX": f"deviceshare.io/device-index.{name}",
                "ALIYUN_COM_GPU_MEM_DEV": f"deviceshare.io/device-gib.{name}",
                "ALIYUN_COM_GPU_MEM_POD": "8",
                "ALIYUN_COM_GPU_MEM_CONTAINER": size,
            }
            if size
            else {}
        )
        assert env.get("METAGPU_MAX_MEM", "") == ("deviceshare.io/memory-limit-mib.c" if name == "c" else "")


def test_an_init_container_that_asks_for_more_than_all_others_is_the_pods_size() -> None:
    """As Kubernetes counts; one that keeps running counts beside the others."""
    first = asking("i", ALIYUN, 9)
    env = read(injected(a_pod(asking("a", ALIYUN, 3), initContainers=[first]))["spec"]["containers"][0])
    assert env["ALIYUN_COM_GPU_MEM_POD"] == "9"

    sidecar = first | {"restartPolicy": "Always"}
    env = read(injected(a_pod(asking("a", ALIYUN, 3), initContainers=[sidecar]))["spec"]["containers"][0])
    assert env["ALIYUN_COM_GPU_MEM_POD"] == "12"


# Limits that frameworks keep by themselves.


def test_frameworks_are_told_the_share_unless_a_setting_says_otherwise() -> None:
    """PyTorch by its newer name only: under the older one, releases before 2.10 fail on it."""
    told = read(injected(a_pod(asking()))["spec"]["containers"][0])
    assert told["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "deviceshare.io/heap-fraction.main"
    assert told["PYTORCH_ALLOC_CONF"] == "deviceshare.io/pytorch-alloc-conf.main"
    assert told["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in told

    untold = read(injected(a_pod(asking()), OFF)["spec"]["containers"][0])
    assert untold.keys() == told.keys() - {
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "PYTORCH_ALLOC_CONF",
        "TF_FORCE_GPU_ALLOW_GROWTH",
    }


@pytest.mark.parametrize(
    ("own", "untouched"),
    [
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        ("PYTORCH_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        ("PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "TF_FORCE_GPU_ALLOW_GROWTH"),
        ("ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_DEV"),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_CONTAINER"),
    ],
)
def test_what_a_container_sets_itself_is_left_as_it_is(own: str, untouched: str) -> None:
    """The name itself, and those that mean the same to the program: with both, JAX doesn't start."""
    mine = {"name": own, "value": "mine"}

    result = injection(pod := a_pod(asking(resource=ALIYUN, env=[mine])))

    env = applied(pod, result.patch)["spec"]["containers"][0]["env"]
    assert [each for each in env if each["name"] in (own, untouched)] == [mine]
    assert not result.warnings


def test_jax_is_told_nothing_where_its_variables_may_come_from_elsewhere() -> None:
    """What a ConfigMap holds isn't known at admission, and the other name of the fraction would be fatal."""
    source = [{"configMapRef": {"name": "settings"}}]
    pod = a_pod(asking(envFrom=source))
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in read(injected(pod)["spec"]["containers"][0])

    later = injected(a_pod(asking()))  # another webhook adds the source after the first injection
    later["spec"]["containers"][0]["envFrom"] = source
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in read(injected(later)["spec"]["containers"][0])


@pytest.mark.parametrize("name", ["DEVICESHARE_MEMORY_LIMIT_MIB", "DEVICESHARE_PERCENT", "NVIDIA_VISIBLE_DEVICES"])
def test_what_only_deviceshare_can_know_replaces_what_is_written_with_a_warning(name: str) -> None:
    """A wrong one would be believed by programs, or show other devices."""
    pod = a_pod(asking(env=[{"name": name, "value": "all"}]))

    result = injection(pod)

    assert read(applied(pod, result.patch)["spec"]["containers"][0])[name].endswith(".main")
    [warning] = result.warnings
    assert f"spec.containers[0] 'main': env {name} is replaced" in warning


def test_a_container_renamed_in_a_copied_pod_reads_its_own_annotations() -> None:
    """Not those of the name that it had in `kubectl get pod -o yaml`."""
    copied = injected(a_pod(asking("old", ALIYUN)))
    copied["spec"]["containers"][0]["name"] = "new"

    env = read(injected(copied)["spec"]["containers"][0])

    assert env == read(injected(a_pod(asking("new", ALIYUN)))["spec"]["containers"][0])


# Which pods.


@pytest.mark.parametrize("name", ["default-scheduler", "", None, "gpushare-scheduler", "ack-co-scheduler"])
def test_pods_with_a_share_are_taken_from_the_schedulers_of_other_systems(name: str | None) -> None:
    """Which would wait for a device plugin that isn't there any more; others were chosen for a reason."""
    assert injected(a_pod(asking(), schedulerName=name))["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert injected(a_pod(asking(), schedulerName="volcano"))["spec"]["schedulerName"] == "volcano"
    only_volcano = InjectionSettings(replaced_schedulers=frozenset({"volcano"}))
    left = "ack-co-scheduler"
    assert injected(a_pod(asking(), schedulerName="volcano"), only_volcano)["spec"]["schedulerName"] != "volcano"
    assert injected(a_pod(asking(), schedulerName=left), only_volcano)["spec"]["schedulerName"] == left
    assert injected(a_pod({"name": "a"}, group="team", schedulerName=left))["spec"]["schedulerName"] == left


def test_a_dialect_that_is_off_belongs_to_the_system_that_brought_it() -> None:
    """Its device plugin may still be there. Beside anything of ours such a limit is refused, with the way out."""
    ours = InjectionSettings(dialects=frozenset({"gpushare"}))
    assert injection(a_pod(asking(resource=METAGPU)), ours) == Injection()
    assert injection(a_pod(asking(resource=ALIYUN)), ours).patch

    beside = a_pod(asking("a", MEMORY), asking("b", METAGPU))
    for pod in (a_pod(asking(resource=METAGPU), group="team"), beside):
        refusal = injection(pod, ours).refusal
        assert "cnvrg.io/metagpu" in refusal
        assert "ask by deviceshare.io/gpu-mem" in refusal


def test_a_limit_of_nothing_asks_for_nothing() -> None:
    """Charts write such zeros. Such a pod's image may show it every device, so its author is warned."""
    found = injection(a_pod(asking(size="0")))

    assert found == Injection(warnings=found.warnings)
    assert [text.partition(" ")[0] for text in found.warnings] == [
        "spec.containers[0].resources.limits[deviceshare.io/gpu-mem]"
    ]


def test_what_gpushare_knows_besides_memory_is_warned_of() -> None:
    """With it the pod would wait for ever for what no node has."""
    pod = a_pod(asking(resource=ALIYUN), {"name": "b", "image": "busybox"})
    pod["spec"]["containers"][1]["resources"] = {"limits": {"aliyun.com/gpu-core.percentage": "30"}}

    [cores] = injection(pod).warnings

    assert cores.startswith("spec.containers[1].resources.limits[aliyun.com/gpu-core.percentage] is not supported: ")
    assert injected(pod)["spec"]["containers"][1]["resources"]["limits"] == {}


def test_acks_label_is_a_number_of_devices() -> None:
    """Which policies can't write; there the pod is refused with the way out."""
    pod = a_pod(asking(resource=ALIYUN, size=8))
    pod["metadata"]["labels"] = {"aliyun.com/gpu-count": "2"}
    limits = injected(pod)["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {ALIYUN: 8, "deviceshare.io/gpu-count": "2"}


@pytest.mark.parametrize("resource", [MEMORY, "deviceshare.io/gpu-mem-mib", PERCENT, ALIYUN, METAGPU])
@pytest.mark.parametrize("count", [2, "0", "1", 65, "1500m", "-1"])
@pytest.mark.parametrize("size", [9, 150, 1, "5000000", 1 << 31])
def test_a_number_of_devices_is_judged_as_the_policies_do(resource: str, count: Any, size: Any) -> None:
    """Whatever it is beside, and whatever is right of it."""
    limits = {resource: size, "deviceshare.io/gpu-count": count}
    injection(a_pod({"name": "main", "image": "busybox", "resources": {"limits": limits}}))


def test_a_number_of_devices_alone_is_refused() -> None:
    limits = {"deviceshare.io/gpu-count": "2"}
    refusal = injection(a_pod({"name": "main", "image": "busybox", "resources": {"limits": limits}})).refusal
    assert refusal == (
        "spec.containers[0].resources.limits[deviceshare.io/gpu-count] says on how many devices, not how much of each:"
        " add deviceshare.io/gpu-mem, deviceshare.io/gpu-mem-mib or deviceshare.io/gpu-percent"
    )


@pytest.mark.parametrize(
    ("size", "said"),
    [(-1, "negative"), ("1500m", "give 2"), (1 << 40, "not bytes"), ("many", "not a number"), ([], "not a number")],
)
def test_a_share_that_can_not_be_is_refused_with_field_and_way_out(size: Any, said: str) -> None:
    """Before the API server refuses some of it in words that know no devices."""
    refusal = injection(a_pod({"name": "a"}, asking(size=size))).refusal

    assert refusal.startswith("spec.containers[1].resources.limits[deviceshare.io/gpu-mem]: ")
    assert said in refusal


@pytest.mark.parametrize(
    ("strategy", "said"), [("binpack", ""), ("spread", ""), ("best", "set it to binpack or spread"), ("", "set it to")]
)
def test_the_strategy_is_the_users_to_choose(strategy: str, said: str) -> None:
    """Once, among those that there are."""
    pod = a_pod(asking())
    pod["metadata"]["annotations"]["deviceshare.io/strategy"] = strategy

    result = injection(pod)

    assert result.refusal.startswith("metadata.annotations[deviceshare.io/strategy] ") == bool(said)
    assert said in result.refusal
    assert not result.warnings


def test_a_strategy_without_a_share_is_refused() -> None:
    """A group has its own."""
    pod = a_pod({"name": "a"}, group="team")
    pod["metadata"]["annotations"]["deviceshare.io/strategy"] = "spread"

    assert "the group's spec.schedulingStrategy" in injection(pod).refusal


def test_the_empty_label_is_for_pods_that_ask_only() -> None:
    """A template copied from such a pod has it, and keeps working as long as its containers ask."""
    pod = a_pod(asking())
    pod["metadata"]["labels"] = {"deviceshare.io/group": ""}
    assert not injection(pod).refusal

    pod["spec"]["containers"] = [{"name": "main"}]
    assert "leave the label out" in injection(pod).refusal


def test_what_comes_later_into_a_pod_sees_no_share() -> None:
    """`kubectl debug`: an ephemeral container can't ask, and another's share isn't its own."""
    pod = injected(a_pod(asking()))
    pod["spec"]["ephemeralContainers"] = [{"name": "debug"}]

    debugged = applied(pod, inject_ephemeral(msgspec.convert(pod, Draft), ()).patch)

    env = read(debugged["spec"]["ephemeralContainers"][0])
    assert env["NVIDIA_VISIBLE_DEVICES"] == "deviceshare.io/nvidia-visible-devices"
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in env
    assert debugged["spec"]["containers"] == pod["spec"]["containers"]


names = st.from_regex("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@settings(deadline=None)
@given(st.lists(names, min_size=1, max_size=4, unique=True), st.sampled_from([MEMORY, PERCENT, ALIYUN, METAGPU]))
def test_each_container_refers_to_annotations_of_its_own_that_can_be_written(own: list[str], resource: str) -> None:
    """However long its name is: an API server takes 63 characters behind the domain."""
    result = injected(a_pod(*(asking(name, resource) for name in own)))

    seen: set[str] = set()
    for name, container in zip(own, result["spec"]["containers"], strict=True):
        mine = {value for value in read(container).values() if value.startswith("deviceshare.io/")}
        mine -= {vendor.annotation for vendor in vendors.VENDORS}
        assert mine.isdisjoint(seen)
        assert all(len(annotation.partition("/")[2]) <= 63 for annotation in mine)
        assert {"name": "DEVICESHARE_PERCENT", "valueFrom": percent_of(name)} in container["env"]
        seen |= mine


def percent_of(name: str) -> Json:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": field_path(container_annotation("percent", name))}}
