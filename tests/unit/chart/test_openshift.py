"""OpenShift: who gives the pods their UIDs, and what lets agents in. No OpenShift has been asked."""

from typing import Any

import pytest

from charts import helm
from tests.unit.chart.objects import deployed, named, with_values

Json = dict[str, Any]

SERVED = ["security.openshift.io/v1"]
ON = {"openshift": True, "agent": {"enabled": True}}


def agent(values: Json) -> Json:
    """The agents' pod."""
    spec: Json = named(helm.render(values), "DaemonSet", "deviceshare-agent")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("value", "served", "on"), [("auto", SERVED, True), ("auto", [], False), (True, [], True), (False, SERVED, False)]
)
def test_openshift_is_recognized_or_said(value: Any, served: list[str], on: bool) -> None:
    """Its API tells; `helm template` can't ask, and is told."""
    context = deployed(helm.render({"openshift": value}, helm.CURRENT, served))["securityContext"]

    assert {"runAsUser", "runAsGroup", "fsGroup"}.isdisjoint(context) is on
    assert context["runAsNonRoot"]


def test_the_managers_pods_need_no_more_than_everybody_has() -> None:
    """No SecurityContextConstraints, unless in the nodes' network."""
    assert not _of_openshift(helm.render({"openshift": True}))
    host = helm.render({"openshift": True, "hostNetwork": True, "certManager": {"enabled": True}})
    assert named(host, "Role", "deviceshare-scc")["rules"] == [
        {
            "apiGroups": ["security.openshift.io"],
            "resources": ["securitycontextconstraints"],
            "resourceNames": ["hostnetwork-v2"],
            "verbs": ["use"],
        }
    ]
    assert named(host, "RoleBinding", "deviceshare-scc")["subjects"][0]["name"] == "deviceshare"


def _of_openshift(objects: list[Json]) -> list[str]:
    return [each["metadata"]["name"] for each in objects if "security.openshift.io" in str(each)]


@pytest.mark.parametrize(
    "pods", [{"enabled": False}, {"through": "node"}, {"through": "service"}], ids=["none", "node", "service"]
)
def test_an_agents_constraints_allow_what_it_asks_for_and_no_more(pods: Json) -> None:
    """Each field against the pod's."""
    values = with_values(ON, {"agent": {"pods": pods}})
    scc, pod = named(helm.render(values), "SecurityContextConstraints", "deviceshare-agent"), agent(values)
    [container] = pod["containers"]

    assert scc["allowHostPID"] == pod["hostPID"]
    assert scc["allowHostNetwork"] == scc["allowHostPorts"] == pod.get("hostNetwork", False)
    assert not scc["allowHostIPC"] and not scc["allowPrivilegedContainer"]
    assert scc["allowPrivilegeEscalation"] == container["securityContext"]["allowPrivilegeEscalation"]
    assert scc["readOnlyRootFilesystem"] == container["securityContext"]["readOnlyRootFilesystem"]
    assert scc["requiredDropCapabilities"] == container["securityContext"]["capabilities"]["drop"]
    assert {key for volume in pod["volumes"] for key in volume if key != "name"} <= set(scc["volumes"])
    assert pod["securityContext"]["runAsUser"] == 0 and scc["runAsUser"] == {"type": "RunAsAny"}
    # https://www.redhat.com/en/blog/user-namespaces-selinux-rootless-containers: spc_t is the type that isn't confined.
    assert pod["securityContext"]["seLinuxOptions"] == {"type": "spc_t"} and scc["seLinuxContext"]["type"] == "RunAsAny"
    assert scc["users"] == scc["groups"] == []


def test_agents_alone_may_use_their_constraints() -> None:
    """By a Role of the namespace, for their ServiceAccount."""
    values = with_values(ON, {"agent": {"serviceAccount": {"name": "gpu-agent"}}})
    objects = helm.render(values)
    [rule] = named(objects, "Role", "deviceshare-agent-scc")["rules"]
    binding = named(objects, "RoleBinding", "deviceshare-agent-scc")

    assert rule["resourceNames"] == ["deviceshare-agent"]
    assert [each["name"] for each in binding["subjects"]] == ["gpu-agent"]
    assert binding["roleRef"]["name"] == "deviceshare-agent-scc"


def test_elsewhere_nothing_of_openshift_is_installed() -> None:
    """Nor SELinux's type, which other clusters may refuse."""
    values = {"agent": {"enabled": True}}
    assert not _of_openshift(helm.render(values))
    assert "seLinuxOptions" not in agent(values)["securityContext"]


def test_without_roles_of_the_charts_the_constraints_are_there_to_be_used() -> None:
    """rbac.create=false: who makes the roles binds them."""
    kinds = {each["kind"] for each in helm.render(with_values(ON, {"rbac": {"create": False}}))}
    assert "SecurityContextConstraints" in kinds
    assert not {"Role", "RoleBinding"} & kinds
