"""The advised policies: ways around the hand-over of devices in pods that deviceshare gives none."""

import copy
from typing import Any

import pytest
from helm_python import HelmError

from charts import helm
from tests.unit.policies.evaluation import a_request, policies
from tests.unit.policies.examples import ADMITTED, a_pod, asking, in_group
from tests.unit.policies.stored_form import stored_form

Json = dict[str, Any]
ADVISED = "deviceshare-advised"
DEVICES = {"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
REFERRING = {
    "name": "main",
    "env": [{"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}],
}
LIST = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/var/run/nvidia-container-devices/all"}]}
WAYS: dict[str, list[tuple[Json, str]]] = {
    "environment": [
        (a_pod(DEVICES), "spec.containers[0] 'main': the env NVIDIA_VISIBLE_DEVICES has "),
        (a_pod({"name": "a"}, REFERRING), "spec.containers[1] 'main': the env ASCEND_VISIBLE_DEVICES has "),
        (a_pod(initContainers=[{**DEVICES, "name": "init"}]), "spec.initContainers[0] 'init': the env "),
    ],
    "annotations": [
        (a_pod(annotations={"nvidia.cdi.k8s.io/pod": "x"}), "metadata.annotations['nvidia.cdi.k8s.io/pod'] ")
    ],
    "deviceLists": [(a_pod(LIST), "spec.containers[0] 'main': the mount ")],
    "privileged": [(a_pod({"name": "a", "securityContext": {"privileged": True}}), "spec.containers[0] 'a' is ")],
    "sysAdmin": [
        (
            a_pod({"name": "a", "securityContext": {"capabilities": {"add": ["sys_admin"]}}}),
            "spec.containers[0] 'a' has ",
        )
    ],
    "hostPID": [(a_pod(hostPID=True), "spec.hostPID shows ")],
    "hostPaths": [
        (a_pod(volumes=[{"name": "v", "hostPath": {"path": "/dev"}}]), "spec.volumes[0]: '/dev' of the node ")
    ],
}


def said(switch: str, **request: Any) -> str:
    return policies(policies={"advised": {switch: True}})[ADVISED].refusal(a_request(**request))


def test_none_is_there_unless_it_is_chosen() -> None:
    """People choose what their clusters' pods may not do."""
    assert ADVISED not in policies()


@pytest.mark.parametrize("switch", WAYS)
def test_each_switch_refuses_its_own_way_and_no_other(switch: str) -> None:
    """With its place and who decided."""
    for way, examples in WAYS.items():
        for pod, place in examples:
            text = said(switch, new=stored_form(pod))
            assert text.startswith(place) is (way == switch), text
            assert ("(policies.advised)" in text) is (way == switch)


@pytest.mark.parametrize("value", ["", "none", "void", None])
def test_variables_that_name_no_device_are_harmless(value: str | None) -> None:
    """Manifests that keep GPUs away from a container say it in this way."""
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", **({} if value is None else {"value": value})}

    assert said("environment", new=stored_form(a_pod({"name": "main", "env": [variable]}))) == ""


def test_pods_that_deviceshare_gives_devices_are_judged_by_its_own_policies() -> None:
    """Their variables are replaced, and their ways around warned of or refused by another setting."""
    for pod in (in_group(DEVICES), a_pod(asking(env=DEVICES["env"])), *ADMITTED.values()):
        injected = policies()["deviceshare-mutate-pods"].patched(a_request(new=stored_form(pod)))
        if pod is not ADMITTED["plain"]:
            assert said("environment", new=injected) == ""


@pytest.mark.parametrize(("namespace", "judged"), [("team", False), ("batch", True), ("deviceshare-system", True)])
def test_naming_a_group_helps_nobody_where_deviceshare_judges_no_pods(namespace: str, judged: bool) -> None:
    """Namespaces that its own policies leave out may not be left out by these."""
    values = {"webhooks": {"excludedNamespaces": ["batch"]}, "policies": {"advised": {"privileged": True}}}
    advised = policies(**values)[ADVISED]
    container = {"name": "a", "securityContext": {"privileged": True}}
    labels = {"deviceshare.io/group": "team"}
    for pod in (in_group(container), a_pod({**container, **asking()}), a_pod(container, labels=labels)):
        request = a_request(new=stored_form(pod))
        request["request"]["namespace"] = namespace
        assert bool(advised.refusal(request)) is judged


def test_an_annotation_written_later_gets_no_debug_container_past_it() -> None:
    """Webhooks see changes of pods with the label only, so anybody may write the annotation on another pod."""
    old = stored_form(a_pod(annotations={"deviceshare.io/group": "team"}))
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = [{"name": "one", "securityContext": {"privileged": True}}]
    debug = {"operation": "UPDATE", "sub_resource": "ephemeralcontainers"}

    assert "'one' is privileged" in said("privileged", **debug, old=old, new=new)
    for each in (old, new):
        each["metadata"]["labels"] = {"deviceshare.io/group": "team"}
    assert said("privileged", **debug, old=old, new=new) == ""


def test_what_a_pod_already_has_may_stay() -> None:
    """A controller may write a label on a pod from before; an annotation that is new or another is refused."""
    old = stored_form(a_pod(annotations={"nvidia.cdi.k8s.io/pod": "x"}))
    same, more, other = (copy.deepcopy(old) for _ in range(3))
    same["metadata"]["labels"] = {"app": "a"}
    more["metadata"]["annotations"]["cdi.k8s.io/x"] = "y"
    other["metadata"]["annotations"]["nvidia.cdi.k8s.io/pod"] = "all"

    assert said("annotations", operation="UPDATE", old=old, new=same) == ""
    assert "['cdi.k8s.io/x']" in said("annotations", operation="UPDATE", old=old, new=more)
    assert "['nvidia.cdi.k8s.io/pod']" in said("annotations", operation="UPDATE", old=old, new=other)
    assert said("privileged", operation="UPDATE", old=old, new=more) == ""


def test_debug_containers_are_judged_when_they_come() -> None:
    """And not again with the next one."""
    old = stored_form(a_pod())
    first, second = copy.deepcopy(old), copy.deepcopy(old)
    first["spec"]["ephemeralContainers"] = [{**DEVICES, "name": "one"}]
    second["spec"]["ephemeralContainers"] = [{**DEVICES, "name": "one"}, {"name": "two"}]
    debug = {"operation": "UPDATE", "sub_resource": "ephemeralcontainers"}

    assert "spec.ephemeralContainers[0] 'one'" in said("environment", **debug, old=old, new=first)
    assert said("environment", **debug, old=first, new=second) == ""


def test_operators_may_see_all_devices() -> None:
    """And deviceshare's agents."""
    values = {"policies": {"advised": {"privileged": True, "excludedNamespaces": ["gpu-operator"]}}}
    rendered = helm.render(values, helm.WITH_POLICIES)
    [policy] = [
        each
        for each in rendered
        if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] == "deviceshare-advised"
    ]

    [namespaces] = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert (namespaces["operator"], namespaces["values"]) == ("NotIn", ["deviceshare-system", "gpu-operator"])


def test_an_older_cluster_is_told_what_it_takes() -> None:
    """A policy that doesn't compile would refuse every pod."""
    with pytest.raises(HelmError, match=r"policies.advised takes Kubernetes 1.35"):
        helm.render({"policies": {"advised": {"privileged": True}}}, "1.34.0")
