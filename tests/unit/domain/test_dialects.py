"""What manifests in the words of HAMi, KAI and ACK become at admission, as their own samples have them."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.bypasses import REFUSE
from deviceshare.domain.admission.dialects import HAMI, KAI
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.pod_injection import Injection, inject
from deviceshare.domain.admission.pod_review import review_new_pod
from deviceshare.domain.admission.settings import GATES, InjectionSettings
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import SYSTEMS
from tests.unit.domain.jsonpatch import applied

Json = dict[str, Any]
ALL = InjectionSettings(dialects=frozenset({*SYSTEMS, HAMI, KAI}))
REFUSING = ALL._replace(unsupported=REFUSE)
GPU, MEM, PERCENTAGE, CORES = (f"nvidia.com/{each}" for each in ("gpu", "gpumem", "gpumem-percentage", "gpucores"))


def a_pod(limits: Json | None = None, annotations: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    """With the requests that the API server fills in."""
    asked = {} if limits is None else {"resources": {"limits": limits, "requests": dict(limits)}}
    metadata = {"name": "pod", "annotations": annotations or {}, "labels": labels or {}}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "busybox", **asked}], **spec}}


def injection(pod: Json, how: InjectionSettings = ALL) -> Injection:
    return inject(msgspec.convert(pod, Draft), None, settings=how)


def injected(pod: Json, how: InjectionSettings = ALL) -> tuple[Json, Pod]:
    """Also asserts that the pod may be created so, and isn't changed once more."""
    pod = applied(pod, injection(pod, how).patch)
    assert injection(pod, how).patch == []
    found = msgspec.convert(pod, Pod)
    assert review_new_pod(found, None, dialects=how.dialects) == ""
    return pod, found


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({GPU: 1, MEM: 3000, CORES: 30}, "2.9 GiB of a GPU"),  # default_use.yaml
        ({GPU: 2, PERCENTAGE: 100, CORES: 100}, "2 whole GPUs"),  # use_exclusive_card.yaml
        ({GPU: 2, PERCENTAGE: 50, CORES: 30}, "2 x 50% of a GPU"),  # use_memory_fraction.yaml
        ({GPU: 1, PERCENTAGE: 40, CORES: 60}, "40% of a GPU"),  # use_sharing_card.yaml
        ({MEM: "2000"}, "2.0 GiB of a GPU"),
        ({GPU: "2", MEM: "8Ki", "cpu": 1}, "2 x 8 GiB of a GPU"),
    ],
)
def test_what_hami_s_manifests_ask_for(limits: Json, wanted: str) -> None:
    """Nothing of it stays for a device plugin; what else the container asks for does."""
    pod, found = injected(a_pod(limits))
    assert found.share.wanted.replace("2 GiB", "2.0 GiB") == wanted
    resources = pod["spec"]["containers"][0]["resources"]
    for each in resources.values():
        assert not any(name.startswith("nvidia.com/") for name in each)
        assert ("cpu" in each) == ("cpu" in limits)


def test_hami_s_resources_without_memory_are_left_to_its_plugin_or_nvidia_s() -> None:
    """`nvidia.com/gpu` alone is everybody's, and so is everything where the setting doesn't name HAMi."""
    assert injection(a_pod({GPU: 2})) == Injection()
    assert injection(a_pod({GPU: 1, MEM: 3000}), InjectionSettings()) == Injection()


def test_what_of_hami_isn_t_there_is_warned_of_or_refused() -> None:
    """Never ignored in silence."""
    pod = a_pod({GPU: 1, MEM: 3000, CORES: 30}, {"nvidia.com/use-gputype": "A100", "hami.io/gpu-scheduler-policy": "x"})
    cure = "it chooses no device here; choose nodes by spec.nodeSelector"
    said = [
        "spec.containers[0].resources.limits[nvidia.com/gpucores] is not supported: computing time isn't divided",
        f"metadata.annotations[nvidia.com/use-gputype] is not supported: {cure}",
        "metadata.annotations[hami.io/gpu-scheduler-policy] is not supported: 'x' is no strategy",
    ]
    assert list(injection(pod).warnings) == said
    assert injection(pod, REFUSING) == Injection(refusal="; ".join(said))


def test_hami_s_strategy_and_scheduler_become_ours() -> None:
    pod = a_pod({MEM: 3000}, {"hami.io/gpu-scheduler-policy": "spread"}, schedulerName="hami-scheduler")
    result, found = injected(pod)
    assert found.strategy == "spread"
    assert result["spec"]["schedulerName"] == "deviceshare-scheduler"
    gated = applied(pod, injection(pod, ALL._replace(placement=GATES)).patch)
    assert gated["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        ({"gpu-fraction": "0.5"}, "50% of a GPU"),  # gpu-sharing.yaml
        ({"gpu-memory": "2000"}, "2 GiB of a GPU"),  # gpu-memory.yaml
        ({"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"}, "2 x 25% of a GPU"),
        ({"gpu-fraction": "1"}, "a whole GPU"),
    ],
)
def test_what_kai_s_annotations_ask_for(annotations: Json, wanted: str) -> None:
    pod, found = injected(
        a_pod(None, annotations, {"kai.scheduler/queue": "default-queue"}, schedulerName="kai-scheduler")
    )
    assert found.share.wanted == wanted
    assert pod["spec"]["schedulerName"] == "deviceshare-scheduler"


def test_kai_s_annotations_are_about_the_container_that_they_name() -> None:
    """gpu-sharing-init-container.yaml; another container sees no device."""
    init = {"name": "gpu-init", "image": "busybox", "resources": {"limits": {"cpu": "1"}}}
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "gpu-init"}
    pod, found = injected(a_pod(None, annotations, initContainers=[init]))
    assert [(need.container, need.percent) for need in found.share.needs] == [("gpu-init", 50)]
    assert pod["spec"]["initContainers"][0]["resources"]["limits"] == {"cpu": "1", "deviceshare.io/gpu-percent": "50"}


@pytest.mark.parametrize(
    ("annotations", "fault"),
    [
        ({"gpu-fraction": "half"}, "metadata.annotations[gpu-fraction]: 'half' isn't a part of a device, such as 0.5"),
        ({"gpu-fraction": "1.5"}, "metadata.annotations[gpu-fraction]: '1.5' isn't a part of a device, such as 0.5"),
        ({"gpu-memory": "-1"}, "metadata.annotations[gpu-memory]: '-1' isn't MiB of device memory"),
        (
            {"gpu-fraction": "0.5", "gpu-memory": "1"},
            "metadata.annotations[gpu-memory] and gpu-fraction are both there",
        ),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}, "'x' is no container of the pod"),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "0.5"}, "0.5 (deviceshare.io/gpu-count) is not a number"),
    ],
)
def test_annotations_of_kai_that_mean_nothing_are_refused(annotations: Json, fault: str) -> None:
    assert fault in injection(a_pod(None, annotations)).refusal


def test_smaller_parts_than_hundredths_are_said_to_be_rounded() -> None:
    """So that three thirds fit on a device."""
    pod = a_pod(None, {"gpu-fraction": "0.333"})
    assert injected(pod)[1].share.needs[0].percent == 33
    [said] = [text for text in injection(pod).warnings if "gpu-fraction" in text]
    assert said.startswith("metadata.annotations[gpu-fraction]: 0.333 counts as 33 hundredths")


def test_acks_label_divides_the_memory_among_devices() -> None:
    """And its share of cores is taken out, with which no node would take the pod."""
    limits = {"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-core.percentage": "30"}
    pod, found = injected(a_pod(limits, None, {"aliyun.com/gpu-count": "2"}))
    assert found.share.wanted == "2 x 4 GiB of a GPU"
    assert "aliyun.com/gpu-core.percentage" not in pod["spec"]["containers"][0]["resources"]["limits"]
    assert len(injection(a_pod(limits)).warnings) == 1


def test_what_is_warned_of_stands_on_the_pod() -> None:
    """In lines; a second review by other webhooks adds none, and a copied pod has it once."""
    pod, found = injected(a_pod({GPU: 1, MEM: 3000, CORES: 30}))
    [line] = found.metadata.annotations["deviceshare.io/warnings"].split("\n")
    assert line.startswith("spec.containers[0].resources.limits[nvidia.com/gpucores] is not supported")
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    pod["spec"]["containers"].append({"name": "sidecar", "image": "busybox", "env": env})
    again = injected(pod)[1].metadata.annotations["deviceshare.io/warnings"].split("\n")
    assert again[0] == line
    assert "env NVIDIA_VISIBLE_DEVICES is replaced" in again[1]
