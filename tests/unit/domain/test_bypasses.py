"""Ways around the hand-over of a group's devices."""

from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.bypasses import REFUSE, WARN, bypasses, effects, new_bypasses, refusal_or_warnings
from deviceshare.domain.admission.drafts import Draft

Json = dict[str, Any]


def found(spec: Json | None = None, container: Json | None = None, annotations: Json | None = None) -> list[str]:
    body = {"name": "main", **(container or {})}
    pod = {"metadata": {"annotations": annotations}, "spec": {"containers": [body], **(spec or {})}}
    return bypasses(msgspec.convert(pod, Draft))


def a_volume(path: str) -> Json:
    return {"volumes": [{"name": "v", "hostPath": {"path": path}}]}


EXAMPLES: list[tuple[Json, str]] = [
    ({"container": {"securityContext": {"privileged": True}}}, "spec.containers[0] 'main' is privileged: "),
    (
        {"container": {"securityContext": {"capabilities": {"add": ["sys_admin"]}}}},
        "spec.containers[0] 'main' has SYS_ADMIN: ",
    ),
    ({"spec": {"hostPID": True}}, "spec.hostPID shows the pod all processes of its node"),
    (
        {"container": {"volumeMounts": [{"mountPath": "/var/run//nvidia-container-devices/all"}]}},
        "spec.containers[0] 'main': the mount '/var/run//nvidia-container-devices/all' is a list",
    ),
    (
        {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}},
        "metadata.annotations['cdi.k8s.io/x'] has the container runtime add",
    ),
    ({"spec": a_volume("/dev")}, "spec.volumes[0]: '/dev' of the node gives"),
    ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, "spec.resourceClaims[0] may allocate devices"),
    (
        {"container": {"resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}},
        "spec.containers[0] 'main': the limit 'nvidia.com/mig-1g.5gb' allocates devices",
    ),
]


@pytest.mark.parametrize(("pod", "said"), EXAMPLES, ids=[said for _, said in EXAMPLES])
def test_each_way_is_told_with_its_place(pod: Json, said: str) -> None:
    """A sentence for each way, so that its author finds it."""
    [sentence] = found(**pod)
    assert sentence.startswith(said)


@pytest.mark.parametrize("power", ["all", "cap_sys_admin", "Sys_Admin", "ſyſ_admin", "SYS_ADMıN", "caP_ſYS_ADMıN"])
def test_capabilities_are_read_as_container_runtimes_do(power: str) -> None:
    """Which make them upper case, as Go does: a long s becomes an S, and an i without a dot an I."""
    [sentence] = found(container={"securityContext": {"capabilities": {"add": ["NET_ADMIN", power]}}})

    assert "has SYS_ADMIN" in sentence


def test_no_way_is_missing_from_the_test_above() -> None:
    """Whoever adds one adds an example."""
    sentences = [found(**pod)[0] for pod, _ in EXAMPLES]
    assert [way for way in effects() if not any(each.endswith(way) for each in sentences)] == []


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "/dev/", "/dev/nvidia0", "/./dev/../dev", "/proc/1/root", "/sys", "/var/run/containerd", "/run"),
        *("/var", "/etc", "/var/run/docker.sock", "/var/lib/kubelet/pod-resources", "dev", "/etc/cdi", "/run/cdi/x"),
    ],
)
def test_every_path_to_the_nodes_devices_is_seen(path: str) -> None:
    """Parents, children, and other spellings."""
    assert len(found(a_volume(path))) == 1


@pytest.mark.parametrize(
    "path",
    ["/dev/shm", "/dev/hugepages/a", "/dev/infiniband", "/devices", "/data", "/var/log", "/home", "/.hidden/dev"],
)
def test_what_has_nothing_to_do_with_devices_is_not(path: str) -> None:
    """A warning that is often wrong is read by nobody."""
    assert found(a_volume(path)) == []


@pytest.mark.parametrize(
    "key",
    [
        *("cdi.k8s.io", "cdi.k8s.io/x", "nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/pod", "amd.cdi.k8s.io/container.main"),
        *("devices.nri.io/pod", "cdi-devices.noderesource.dev/container.main", "mounts.nri.io"),
        *("io.kubernetes.cri-o.Devices", "devices.crio.io"),
    ],
)
def test_annotations_that_runtimes_take_for_devices_are_seen(key: str) -> None:
    """When the pod is made, and when they are added or changed; not when something else is."""
    assert len(found(annotations={key: "x"})) == 1
    assert len(new_bypasses({}, {key: "x"})) == len(new_bypasses({key: "x"}, {key: "y"})) == 1
    assert new_bypasses({key: "x"}, {key: "x", "note": "mine"}) == new_bypasses({key: "x"}, {}) == []


def test_other_annotations_are_not() -> None:
    """Names that only look alike."""
    assert (
        found(annotations={"notcdi.k8s.io/x": "1", "cdi.k8s.io.example.com/x": "1", "example.com/cdi.k8s.io": "1"})
        == []
    )


def test_limits_of_none_and_of_other_things_are_not() -> None:
    """Charts write zeros."""
    limits = {"nvidia.com/gpu.shared": "0", "memory": "1Gi", "nvidia.com/gpu": "1", "example.com/nic": "1"}
    assert found(container={"resources": {"limits": limits}}) == []


def test_devices_by_class_are_seen_in_limits() -> None:
    """Dynamic resource allocation makes a claim of such a limit."""
    limits = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 1}
    assert len(found(container={"resources": {"limits": limits}})) == 1


def test_every_list_of_containers_is_looked_through() -> None:
    """But for those that can't be changed any more."""
    container = {"name": "other", "securityContext": {"privileged": True}}
    for field in ("initContainers", "ephemeralContainers"):
        [sentence] = found({field: [container]})
        assert sentence.startswith(f"spec.{field}[0] 'other' is privileged")
    pod = msgspec.convert({"spec": {"ephemeralContainers": [container]}}, Draft)
    assert bypasses(pod, {"other"}) == []


def test_absences_and_nulls_are_no_way_around() -> None:
    """API servers write both."""
    nothing = {"securityContext": None, "volumeMounts": None, "resources": None}
    hollow = {
        "securityContext": {"privileged": None, "capabilities": {"add": None}},
        "volumeMounts": [{"mountPath": None}],
        "resources": {"limits": None},
    }
    for container in (nothing, hollow):
        spec = {
            "hostPID": None,
            "volumes": None,
            "resourceClaims": None,
            "initContainers": [{"name": "i", **container}],
        }
        assert found(spec, container) == []
    assert found({"volumes": [{"name": "v"}, {"hostPath": None}, {"emptyDir": {}}]}) == []
    assert bypasses(Draft()) == []


def test_a_crowd_is_a_handful_of_sentences() -> None:
    """And names that strangers chose are quoted and bounded."""
    container = {
        "name": "\x1b]0;x" + "n" * 5000,
        "securityContext": {"privileged": True, "capabilities": {"add": ["ALL"]}},
        "volumeMounts": [{"mountPath": "/var/run/nvidia-container-devices/" + "m" * 5000}] * 50,
        "resources": {"limits": {"nvidia.com/" + "l" * 5000: "1"}},
    }
    spec = {
        "containers": [container] * 50,
        "hostPID": True,
        "volumes": [{"hostPath": {"path": "/dev/" + "d" * 5000}}] * 50,
        "resourceClaims": [{}] * 50,
    }
    sentences = found(spec, annotations={f"cdi.k8s.io/{number}": "x" for number in range(50)})
    refusal, warnings = *refusal_or_warnings(sentences, REFUSE)[:1], refusal_or_warnings(sentences, WARN)[1]

    assert len(sentences) == len(effects())
    assert len(warnings) == 5 and warnings[-1] == "and 4 more ways around"
    assert len(refusal) < 1500 and refusal.isprintable()
    assert all(len(text) < 256 and text.isprintable() for text in sentences)
    assert "(and 49 more) is privileged" in warnings[0]


def test_a_refusal_says_what_to_do_and_who_decided() -> None:
    """And nothing found is nothing said."""
    refusal, warnings = refusal_or_warnings(found({"hostPID": True}), REFUSE)

    assert refusal.startswith("spec.hostPID shows the pod") and "leave it out" in refusal
    assert "--bypasses=refuse" in refusal and warnings == []
    assert refusal_or_warnings([], REFUSE) == refusal_or_warnings([], WARN) == ("", [])
