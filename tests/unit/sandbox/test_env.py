"""The environment of a container, as a kubelet resolves it."""

import pytest

from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import EnvSource, FieldRef
from deviceshare_sandbox.simulated_pods import (
    KubeletContainer,
    KubeletEnvVar,
    KubeletPod,
    KubeletPodSpec,
    environment,
    expand,
    host_ip,
    pod_ip,
)

POD = KubeletPod(
    metadata=ObjectMeta(
        name="p", namespace="ns", uid="u-1", annotations={"deviceshare.io/x": "0,1"}, labels={"app": "train"}
    ),
    spec=KubeletPodSpec(node_name="node-1", service_account_name="sa"),
)


def resolve(*variables: KubeletEnvVar, pod: KubeletPod = POD) -> dict[str, str]:
    """The environment of a container with these variables."""
    return environment(pod, KubeletContainer(name="c", env=list(variables)))


def downward(name: str, path: str) -> KubeletEnvVar:
    """A variable that refers to a field of the pod."""
    return KubeletEnvVar(name=name, value_from=EnvSource(field_ref=FieldRef(field_path=path)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.annotations['deviceshare.io/x']", "0,1"),
        ("metadata.annotations['deviceshare.io/absent']", ""),
        ("metadata.labels['app']", "train"),
        ("metadata.labels['absent']", ""),
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u-1"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "sa"),
        ("status.podIP", pod_ip(POD)),
        ("status.hostIP", host_ip("node-1")),
    ],
)
def test_a_field_of_the_pod_becomes_the_value(path: str, value: str) -> None:
    """The downward API; what isn't there is empty, which the NVIDIA runtime reads as no device."""
    assert resolve(downward("V", path)) == {"V": value}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$(UNKNOWN)", "$(UNKNOWN)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$", "$"),
        ("cost: $5", "cost: $5"),
        ("$(A$(B)", "$(A$(B)"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, expanded: str) -> None:
    """The cases of Kubernetes's own expansion tests that matter."""
    assert expand(text, {"A": "1", "B": "2"}) == expanded


def test_a_reference_sees_only_what_was_set_before_it() -> None:
    """The order of the list decides, not the names."""
    early, late = KubeletEnvVar(name="EARLY", value="$(LATE)"), KubeletEnvVar(name="LATE", value="$(EARLY)!")
    assert resolve(early, late) == {"EARLY": "$(LATE)", "LATE": "$(LATE)!"}


def test_a_reference_sees_what_the_downward_api_gave() -> None:
    """Both kinds of value are one environment."""
    devices = downward("DEVICES", "metadata.annotations['deviceshare.io/x']")
    assert resolve(devices, KubeletEnvVar(name="COPY", value="[$(DEVICES)]"))["COPY"] == "[0,1]"


def test_of_equal_names_the_last_one_wins() -> None:
    """A hand-written variable before the injected one has no effect."""
    injected = downward("NVIDIA_VISIBLE_DEVICES", "metadata.annotations['deviceshare.io/x']")
    assert resolve(KubeletEnvVar(name="NVIDIA_VISIBLE_DEVICES", value="all"), injected) == {
        "NVIDIA_VISIBLE_DEVICES": "0,1"
    }


def test_what_is_not_resolved_is_left_out() -> None:
    """A Secret's value would be a guess; an empty string would be a lie."""
    assert resolve(KubeletEnvVar(name="SECRET", value_from=EnvSource()), KubeletEnvVar(name="EMPTY")) == {"EMPTY": ""}
