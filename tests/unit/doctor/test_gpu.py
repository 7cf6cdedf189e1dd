"""What a canary that opens its GPU is judged by: its kubelet's words, and its own."""

from typing import Any

import msgspec
import pytest

from deviceshare.doctor import canary
from deviceshare.doctor.findings import PROBLEM, UNTESTED
from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.usage import Sighting, decode
from deviceshare.loops.kinds import Event
from tests.unit.domain.objects import GPU

GIVEN = (Device(GPU, 0, "GPU-a"),)
NAME = "k8s.device-plugin.nvidia.com/gpu=GPU-a"


def a_canary(state: dict[str, Any] | None = None, *, told: str = "0", **status: str) -> canary.CanaryPod:
    """Its pod, whose variable reads `told`."""
    containers = [{"name": "canary", "state": state}] if state else []
    annotations = {vendors.NVIDIA.annotation: told}
    body = {"metadata": {"annotations": annotations}, "status": {**status, "containerStatuses": containers}}
    return msgspec.convert(body, canary.CanaryPod)


def ended(message: str, reason: str = "Completed") -> dict[str, Any]:
    return {"terminated": {"exitCode": 0, "reason": reason, "message": message}}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def said(**seen: Any) -> dict[str, Any]:
    return ended(msgspec.json.encode(Sighting(**seen)).decode())


@pytest.mark.parametrize("variable", ["0", "GPU-a", NAME, "void"])
def test_a_canary_that_opened_what_it_was_given_is_well(variable: str) -> None:
    """In whatever words it was told; where it was told a number, nobody knows which UUID that is."""
    assert canary.judge_container(a_canary(said(variable=variable, devices=["GPU-a"])), GIVEN) == []
    assert canary.judge_container(a_canary(said(variable=variable, devices=["GPU-x"])), (Device(GPU, 0),)) == []


UNRESOLVED = "could not inject: unresolvable CDI devices"


@pytest.mark.parametrize(
    ("state", "told", "mark", "cause", "cure"),
    [
        (said(variable=None), "0", PROBLEM, "NVIDIA_VISIBLE_DEVICES is not set", "mutatingwebhookconfigurations"),
        (said(variable=""), "0", PROBLEM, "NVIDIA_VISIBLE_DEVICES is empty", "mutatingwebhookconfigurations"),
        (said(variable="0", library=False, error="no"), "0", PROBLEM, "the runtime isn't NVIDIA's", "runtimeClassName"),
        (
            said(variable=NAME, library=False, error="no"),
            NAME,
            PROBLEM,
            "nothing on the node resolved",
            "handover.nri=true",
        ),
        (said(variable="void", library=False, error="no"), NAME, PROBLEM, "injected nothing", "nvidia-ctk cdi list"),
        (said(variable="0", error="not loaded"), "0", PROBLEM, "not loaded", "nvidia-smi"),
        (said(variable="0"), "0", PROBLEM, "library is present, but shows no device", "device files"),
        (said(variable="0", silent=["0: lost"]), "0", PROBLEM, "can't open: 0: lost", "nvidia-smi"),
        (said(variable="0", devices=["GPU-b"]), "0", PROBLEM, "sees GPU-b, and was given GPU-a", "else injects"),
        (said(variable="0", devices=["GPU-a", "GPU-b"]), "0", PROBLEM, "sees GPU-a and GPU-b, and was", "else injects"),
        (waits("CreateContainerError", f"{UNRESOLVED} m/gpu=0"), "0", PROBLEM, "m/gpu=0", "handover.style=cdi"),
        (ended(f"{UNRESOLVED} m/gpu=0", "StartError"), "0", PROBLEM, "m/gpu=0", "handover.style=cdi"),
        (waits("CreateContainerError", UNRESOLVED), NAME, PROBLEM, "can't be created", f"name {NAME}"),
        (waits("RunContainerError", "no such file"), "0", PROBLEM, "no such file", "container runtime"),
        (waits("ErrImagePull", "denied"), "0", UNTESTED, "ErrImagePull: denied", "--gpu-image"),
        (ended("", "OOMKilled"), "0", UNTESTED, "reported nothing: OOMKilled", "--gpu-image"),
        (waits("ContainerCreating"), "0", UNTESTED, "in time: ContainerCreating", "describe pod"),
        (None, "0", UNTESTED, "its kubelet reports nothing", "describe pod"),
    ],
)
def test_each_cause_of_a_canary_without_its_gpu_is_told_apart(
    state: dict[str, Any] | None, told: str, mark: str, cause: str, cure: str
) -> None:
    """With the cure that belongs to it."""
    [found] = canary.judge_container(a_canary(state, told=told), GIVEN)
    assert (found.mark, cause in found.what, cure in found.cure) == (mark, True, True), found


def test_a_canary_that_was_told_a_number_must_not_see_more() -> None:
    """As where the runtime shows all to everybody."""
    [found] = canary.judge_container(a_canary(said(variable="0", devices=["GPU-a", "GPU-b"])), (Device(GPU, 0),))
    assert (found.mark, "sees 2 GPUs, GPU-a and GPU-b, and was given 1" in found.what) == (PROBLEM, True)


def test_a_node_without_the_runtime_of_the_class_is_found() -> None:
    """The kubelet tells it by an event only."""
    event = Event(reason="FailedCreatePodSandBox", message='no runtime for "nvidia" is configured')
    [found] = canary.judge_container(a_canary(waits("ContainerCreating")), GIVEN, [Event(reason="Scheduled"), event])
    assert found.mark == PROBLEM and 'no runtime for "nvidia"' in found.what and "runtimeClassName" in found.cure


def test_a_canary_that_outlived_its_time_says_so() -> None:
    """Its kubelet ended it, and says why."""
    [found] = canary.judge_container(a_canary(phase="Failed", reason="DeadlineExceeded"), GIVEN)
    assert (found.mark, "DeadlineExceeded" in found.what) == (UNTESTED, True)


def test_a_canary_is_waited_for_until_it_ends_or_cant_start() -> None:
    """An image that can't be pulled is tried again, so that one isn't over."""
    assert not a_canary(waits("ContainerCreating")).stuck
    for reason in ("ErrImagePull", "CreateContainerError"):
        assert (a_canary(waits(reason)).stuck, a_canary(waits(reason)).over) == (True, False)
    assert a_canary(ended("")).over and a_canary(phase="Failed").over and not a_canary(phase="Running").over


def test_a_canary_satisfies_the_restricted_standard_and_its_time_is_bounded() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    spec = canary.pod("c", "example.com/deviceshare:1")["spec"]
    [container] = spec["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("example.com/deviceshare:1", "IfNotPresent")
    assert container["args"] == ["smi", f"--report={container['terminationMessagePath']}"]
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"] == canary.pod("c")["spec"]["securityContext"]
    confined = {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["securityContext"] == confined
    assert (spec["activeDeadlineSeconds"], spec["restartPolicy"]) == (canary.LIFE_SECONDS, "Never")
    assert not any(key.startswith("nvidia.com/") for each in container["resources"].values() for key in each)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "{", '{"kind": "other"}', "OCI runtime create failed", "\ud800"]
)
def test_what_a_runtime_says_is_no_sighting(text: str) -> None:
    """Nor is what another program left behind."""
    assert decode(text) is None
