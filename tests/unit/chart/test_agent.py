"""The agents' DaemonSet: where it runs, what it may do, and how it is reached."""

from typing import Any

import msgspec
import pytest
from helm_python import HelmError

from charts import helm
from deviceshare.agent.settings import AgentSettings
from deviceshare.cli.agent import agent
from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.settings import template_fault
from deviceshare.domain.objects.nodes import Node, SharingLabels, admits
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec
from tests.unit.chart.objects import VARIANTS, containers, named, rendered, variant, with_values

Json = dict[str, Any]

ENABLED = {"agent": {"enabled": True}}


def daemon_set(values: Json) -> Json:
    """The agents'."""
    names = {"fullnameOverride": "", "nameOverride": ""}
    return named(helm.render(with_values(ENABLED, values, names)), "DaemonSet", contract.AGENT)


def pod(values: Json | None = None) -> Json:
    """An agent's."""
    spec: Json = daemon_set(values or {})["spec"]["template"]["spec"]
    return spec


def container(values: Json | None = None) -> Json:
    """Its only one."""
    [only] = pod(values)["containers"]
    found: Json = only
    return found


def settings(values: Json) -> AgentSettings:
    """What an agent makes of its arguments and variables."""
    [command, *arguments] = container(values)["args"]
    assert command == "agent"
    with agent.make_context(command, [*arguments, "--node-name=node-1"]) as context:
        return AgentSettings(**context.params)


@pytest.mark.parametrize("name", VARIANTS)
def test_without_agents_nothing_of_theirs_is_installed(name: str) -> None:
    """Who doesn't ask for what runs as root on the nodes doesn't get any of it."""
    objects = rendered(name, {"agent": {"enabled": False}})

    assert not [each for each in objects if "agent" in str(each["metadata"])]


def test_shared_nodes_have_an_agent_whatever_they_are_tainted_with() -> None:
    """And no other node; further labels can be asked for."""
    spec = pod({"agent": {"nodeSelector": {"example.com/gpu": "nvidia"}}})

    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["nodeSelector"] == {
        "kubernetes.io/os": "linux",
        contract.MODE_LABEL: contract.MODE_SHARED,
        "example.com/gpu": "nvidia",
    }


def test_agents_and_placeholders_run_where_other_systems_labels_share_nodes() -> None:
    """Just where deviceshare sees a node as shared; a selector can't say that either label will do."""
    labels = ["ack.node.gpu.schedule=share", "gpushare=true"]
    values = with_values(
        ENABLED, PLACEHOLDERS, {"shares": {"nodeLabels": labels}, "agent": {"nodeSelector": {"a": "b"}}}
    )
    nodes = [
        Node(ObjectMeta(name="n", labels={"kubernetes.io/os": "linux", "a": "b", "size": "l", **more}))
        for more in (
            {},
            {contract.MODE_LABEL: contract.MODE_SHARED},
            {"gpushare": "true"},
            {"gpushare": "false"},
            {"ack.node.gpu.schedule": "share", contract.MODE_LABEL: "exclusive"},
        )
    ]
    for name in (contract.AGENT, "deviceshare-placeholder-a"):
        body = named(helm.render(values), "DaemonSet", name)["spec"]["template"]["spec"]
        spec = msgspec.convert({key: body[key] for key in ("nodeSelector", "affinity")}, PodSpec)
        runs = [admits(spec.node_selector, spec.affinity, node) for node in nodes]
        assert runs == [SharingLabels(labels)(node).shared for node in nodes] == [False, True, True, False, False]
    assert "affinity" not in pod()


def test_an_agent_is_told_its_node_and_sees_every_device() -> None:
    """All of them, and only to ask about them."""
    spec, variables = container(), {each["name"]: each for each in container()["env"]}

    [variable] = [option.envvar for option in agent.params if option.name == "node_name"]
    assert isinstance(variable, str)
    assert variables[variable]["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"
    assert variables[vendors.NVIDIA.env]["value"] == "all"
    assert variables["NVIDIA_DRIVER_CAPABILITIES"]["value"] == "utility"
    assert "runtimeClassName" not in spec
    assert pod({"agent": {"runtimeClassName": "nvidia"}})["runtimeClassName"] == "nvidia"


def test_an_agent_reads_the_nodes_cdi_specifications() -> None:
    """And can't write them; a directory that isn't there yet is made."""
    mounts = {each["mountPath"]: each for each in container()["volumeMounts"]}
    volumes = {each["name"]: each.get("hostPath") for each in pod()["volumes"]}
    directories = settings({}).cdi_directories
    assert [str(each) for each in directories] == ["/etc/cdi", "/var/run/cdi"]
    for directory in map(str, directories):
        assert mounts[directory]["readOnly"] is True
        assert volumes[mounts[directory]["name"]] == {"path": directory, "type": "DirectoryOrCreate"}
    without: Json = {"agent": {"cdiDirectories": []}}
    assert settings(without).cdi_directories == []
    assert len(pod(without)["volumes"]) == len(volumes) - 2


def test_an_agent_asks_the_nri_plugin_for_its_gpus_where_there_is_one() -> None:
    """By annotation, for this container only, beside the annotations that are asked for."""
    key = "nvidia.cdi.k8s.io/container.agent"
    values = {"handover": {"nri": True}, "podAnnotations": {"a": "b"}}
    template = daemon_set(values)["spec"]["template"]
    assert template["metadata"]["annotations"] == {key: "management.nvidia.com/gpu=all", "a": "b"}
    assert [each["name"] for each in template["spec"]["containers"]] == [key.rpartition(".")[2]]
    assert "runtimeClassName" not in template["spec"]
    assert "annotations" not in daemon_set({})["spec"]["template"]["metadata"]


@pytest.mark.parametrize("name", VARIANTS)
def test_an_agent_understands_its_arguments(name: str) -> None:
    """Whole; its node's name comes by a variable."""
    chosen = settings(with_values(variant(name), {"admission": "auto"}))

    assert (chosen.node_name, chosen.bind.port) == ("node-1", contract.AGENT_PORT)


def test_what_is_done_about_trespassers_is_told_to_the_agent() -> None:
    """agent.enforce."""
    assert settings({}).enforce == "report"
    assert settings({"agent": {"enforce": "evict"}}).enforce == "evict"


def test_what_is_tolerated_beside_a_share_is_told_to_the_agent() -> None:
    """agent.overuse."""
    by_default, chosen = settings({}), settings({"agent": {"overuse": {"tolerance": 25, "grace": 600}}})
    assert (by_default.overuse_tolerance, by_default.overuse_grace) == (10, 60)
    assert (chosen.overuse_tolerance, chosen.overuse_grace) == (25, 600)


def test_agents_know_which_namespaces_the_webhooks_leave_out() -> None:
    """Of what pods say there, they believe nothing."""
    assert settings({}).excluded_namespaces == {helm.NAMESPACE, "kube-system"}
    left_out = settings({"webhooks": {"excludedNamespaces": ["team-x"]}}).excluded_namespaces
    assert left_out == {helm.NAMESPACE, "team-x"}


def test_without_placeholders_groups_may_get_every_device() -> None:
    """The agent goes by its flag, not by what pods there are."""
    assert settings({}).placeholders == ""
    assert settings(PLACEHOLDERS).placeholders == helm.NAMESPACE


PLACEHOLDERS = {"agent": {"placeholders": [{"name": "a", "devices": 3, "nodeSelector": {"size": "l"}}]}}


def test_a_placeholder_is_a_pod_that_an_agent_takes_for_one_and_that_stays() -> None:
    """Plain pods never drive it out, nor does an upgrade make it anew; it does nothing and may do nothing."""
    found = named(helm.render(with_values(ENABLED, PLACEHOLDERS)), "DaemonSet", "deviceshare-placeholder-a")
    template = found["spec"]["template"]
    [only] = template["spec"]["containers"]

    assert found["metadata"]["namespace"] == helm.NAMESPACE
    assert template["metadata"]["labels"][contract.PLACEHOLDER] == "a"
    assert template["metadata"]["labels"].items() >= found["spec"]["selector"]["matchLabels"].items()
    assert found["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert template["spec"]["priorityClassName"] == "system-node-critical"
    assert only["resources"]["limits"]["nvidia.com/gpu"] == "3"
    assert not template["spec"]["automountServiceAccountToken"]
    assert template["spec"]["nodeSelector"] == {
        "kubernetes.io/os": "linux",
        contract.MODE_LABEL: contract.MODE_SHARED,
        "size": "l",
    }


def test_an_agent_has_no_more_of_its_node_than_it_needs() -> None:
    """Its processes, its addresses, some directories to read, and one to write; no capability."""
    spec = pod()

    assert spec["hostPID"]
    assert spec["hostNetwork"]
    assert "hostIPC" not in spec
    [volume, turns, *specifications] = spec["volumes"]
    assert volume["hostPath"] == {"path": "/var/lib/kubelet/pod-resources", "type": "Directory"}
    assert [each["hostPath"]["path"] for each in specifications] == ["/etc/cdi", "/var/run/cdi"]
    assert turns["hostPath"] == {"path": "/run/deviceshare", "type": "DirectoryOrCreate"}
    assert [mount["name"] for mount in container()["volumeMounts"] if not mount.get("readOnly")] == ["turns"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container()["resources"]["limits"]["memory"]


@pytest.mark.parametrize("by", ["agent", "hook"])
def test_an_agent_that_limits_memory_gets_what_the_driver_asks_for(by: str) -> None:
    """A capability, which Kubernetes refuses beside `allowPrivilegeEscalation: false`, and the control groups."""
    values = {"shares": {"memoryLimits": by}}
    context = container(values)["securityContext"]
    assert context == {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}
    [volume] = [each["hostPath"]["path"] for each in pod(values)["volumes"] if each["name"] == "control-groups"]
    [mount] = [each["mountPath"] for each in container(values)["volumeMounts"] if each["name"] == "control-groups"]
    assert volume == mount == "/sys/fs/cgroup"
    assert (settings(values).memory_limits, settings({}).memory_limits) == (by, "none")
    interception: Json = {"shares": {"memoryLimits": "intercept"}}
    assert container(interception)["securityContext"] == container()["securityContext"]


def test_another_kubelets_directory_is_mounted_where_the_agent_looks() -> None:
    """As with k0s and its kin."""
    values = {"agent": {"kubeletDirectory": "/var/lib/k0s/kubelet", "cdiDirectories": []}}
    [mount, _], [volume, _] = container(values)["volumeMounts"], pod(values)["volumes"]

    assert volume["hostPath"]["path"] == "/var/lib/k0s/kubelet/pod-resources"
    assert f"--pod-resources={mount['mountPath']}/kubelet.sock" in container(values)["args"]


def test_an_agents_port_is_the_one_that_is_asked() -> None:
    """By probes, Prometheus, the NetworkPolicy, and `deviceshare top`."""
    objects = helm.render(with_values(ENABLED, {"metrics": {"serviceMonitor": {"enabled": True}}}))
    [port, _] = container()["ports"]
    [service] = named(objects, "Service", f"{contract.AGENT}-metrics")["spec"]["ports"]
    [rule, _] = named(objects, "NetworkPolicy", contract.AGENT)["spec"]["ingress"]

    assert port["containerPort"] == service["port"] == contract.AGENT_PORT
    assert settings({}).bind.port == settings(APART).bind.port == contract.AGENT_PORT
    probes = {container()[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")}
    assert probes == {service["targetPort"], rule["ports"][0]["port"]} == {port["name"]}


def test_containers_ask_at_the_nodes_address() -> None:
    """The agent listens at that address and no other of the node; containers are told how to find it."""
    [_, port] = container()["ports"]
    variables = {each["name"]: each.get("valueFrom", {}).get("fieldRef", {}) for each in container()["env"]}
    chosen = settings({})

    assert variables["DEVICESHARE_NODE_ADDRESS"]["fieldPath"] == "status.hostIP"
    assert chosen.bind.host == "$(DEVICESHARE_NODE_ADDRESS)"
    assert chosen.serve_pods == ("$(DEVICESHARE_NODE_ADDRESS)", contract.PODS_PORT)
    assert port == {"name": "pods", "containerPort": contract.PODS_PORT, "protocol": "TCP"}
    assert agent_url(ENABLED) == "http://{host}:9412"
    assert agent_url({"agent": {"enabled": True, "pods": {"port": 80}}}) == "http://{host}:80"
    assert agent_url(variant("agent-pods")) == "http://[{host}]:19412"
    assert not [each for each in helm.render(ENABLED) if (each["kind"], "agent" in str(each)) == ("Service", True)]


APART: Json = {"agent": {"pods": {"enabled": False}}}
BY_SERVICE: Json = {"agent": {"enabled": True, "pods": {"through": "service"}}}


def agent_url(values: Json, version: str = helm.CURRENT) -> str | None:
    """What deviceshare tells containers, as it understands its own arguments."""
    arguments = containers(helm.render(values, version))["deviceshare"]["args"]
    return next((each.partition("=")[2] for each in arguments if each.startswith("--agent-url=")), None)


def test_an_agent_that_answers_no_pods_has_no_network_of_the_nodes() -> None:
    """agent.pods.enabled."""
    assert "hostNetwork" not in pod(APART)
    assert settings(APART).serve_pods is None
    assert len(container(APART)["ports"]) == 1
    assert agent_url(with_values(ENABLED, APART)) is None
    assert agent_url({}) is None
    [rule] = named(helm.render(with_values(ENABLED, APART)), "NetworkPolicy", contract.AGENT)["spec"]["ingress"]
    assert rule["ports"] == [{"port": "agent"}]


def test_a_service_leads_to_the_agent_of_the_same_node() -> None:
    """agent.pods.through=service, where the agents stay in the pods' network and NetworkPolicies apply."""
    objects = helm.render(with_values(BY_SERVICE, {"agent": {"allowFrom": [{"podSelector": {}}]}}))
    service = named(objects, "Service", contract.AGENT)["spec"]
    [rest, pods] = named(objects, "NetworkPolicy", contract.AGENT)["spec"]["ingress"]

    assert "hostNetwork" not in pod(BY_SERVICE)
    assert settings(BY_SERVICE).serve_pods == ("0.0.0.0", contract.PODS_PORT)
    assert service["internalTrafficPolicy"] == "Local"
    assert service["selector"].items() <= daemon_set({})["spec"]["template"]["metadata"]["labels"].items()
    assert agent_url(BY_SERVICE) == f"http://{contract.AGENT}.{helm.NAMESPACE}.svc:{service['ports'][0]['port']}"
    assert rest["from"][0] == {"podSelector": {}}
    assert pods == {"ports": [{"port": "pods"}]}


@pytest.mark.parametrize(
    ("values", "version", "way_out"),
    [
        (BY_SERVICE, "1.21.14", "agent.pods.through=service takes Kubernetes 1.22"),
        ({"agent": {"enabled": True, "allowFrom": [{"podSelector": {}}]}}, helm.CURRENT, "set agent.pods.through="),
    ],
)
def test_what_can_not_protect_agents_is_refused(values: Json, version: str, way_out: str) -> None:
    """Rather than installed without the protection that was asked for."""
    with pytest.raises(HelmError, match=way_out):
        helm.render(values, version)


@pytest.mark.parametrize("values", [ENABLED, BY_SERVICE, {"agent": {"enabled": True, "pods": {"port": 80}}}])
def test_deviceshare_understands_the_url_that_it_is_told(values: Json) -> None:
    """As it stands in its arguments."""
    assert not template_fault(agent_url(values) or "none")


def test_deviceshare_reaches_its_agents() -> None:
    """Whatever else the NetworkPolicies restrict: the page asks for the use of devices."""
    limited = {"agent": {"allowFrom": [{"podSelector": {}}]}, "networkPolicy": {"apiServerPorts": [6443]}}
    objects = helm.render(with_values(BY_SERVICE, limited))
    [asked, *_] = named(objects, "NetworkPolicy", contract.AGENT)["spec"]["ingress"]
    labels = named(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert any(peer["podSelector"].get("matchLabels", {}).items() <= labels for peer in asked["from"][1:])
    ports = [port["port"] for rule in named(objects, "NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert ports == [6443, contract.AGENT_PORT]
    without = helm.render({"networkPolicy": {"apiServerPorts": [6443]}})
    [egress] = named(without, "NetworkPolicy")["spec"]["egress"]
    assert [port["port"] for port in egress["ports"]] == [6443]


def test_the_agents_numbers_come_with_their_nodes_name() -> None:
    """They have a ServiceMonitor of their own for that: deviceshare's own numbers have a label `node` already."""
    objects = helm.render(with_values(ENABLED, {"metrics": {"serviceMonitor": {"enabled": True}}}))
    service = named(objects, "Service", f"{contract.AGENT}-metrics")
    [ours, theirs] = [named(objects, "ServiceMonitor", name)["spec"] for name in ("deviceshare", contract.AGENT)]
    [endpoint] = theirs["endpoints"]

    assert theirs["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert not ours["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] == service["spec"]["ports"][0]["name"]
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    assert service["spec"]["selector"].items() <= daemon_set({})["spec"]["template"]["metadata"]["labels"].items()


def test_no_service_of_deviceshares_leads_to_an_agent() -> None:
    """An agent knows no webhook; nor does it count as a replica when nodes are drained."""
    objects = helm.render(with_values(ENABLED, {"metrics": {"serviceMonitor": {"enabled": True}}}))
    labels = daemon_set({})["spec"]["template"]["metadata"]["labels"].items()
    services = [named(objects, "Service", name)["spec"]["selector"] for name in ("deviceshare", "deviceshare-metrics")]
    budget = named(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]

    assert not [selector for selector in (*services, budget) if selector.items() <= labels]


def test_agents_are_replaced_a_tenth_at_a_time() -> None:
    """A version that doesn't start takes no more of them along."""
    assert daemon_set({})["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "10%"}


def test_only_an_agent_that_may_evict_has_the_right_to() -> None:
    """agent.enforce."""
    evict = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}
    [reports, evicts, some] = [
        named(helm.render({"agent": {"enabled": True, "enforce": how}}), "ClusterRole", contract.AGENT)["rules"]
        for how in ("report", "evict", "evict-trespassers")
    ]

    assert evict in evicts
    assert some == evicts
    assert [rule for rule in evicts if rule != evict] == reports


def test_an_agent_writes_nothing_but_its_report_and_events() -> None:
    """And deletes nothing."""
    rules = named(helm.render(ENABLED), "ClusterRole", contract.AGENT)["rules"]
    writes = {(each["resources"][0], verb) for each in rules for verb in each["verbs"]} - {
        (each["resources"][0], verb) for each in rules for verb in ("get", "list", "watch")
    }

    assert writes == {("nodedevices/status", "patch"), ("events", "create"), ("events", "patch")}


@pytest.mark.parametrize("version", ["1.28.15", "1.34.0"])
def test_the_webhook_is_asked_about_what_agents_write(version: str) -> None:
    """By the name of their ServiceAccount, whatever it is; and about others who may not write the whole object."""
    values = with_values(ENABLED, {"agent": {"serviceAccount": {"name": "gpu-agent"}}})
    objects = helm.render(values, version)
    [webhook] = [
        each
        for each in named(objects, "ValidatingWebhookConfiguration")["webhooks"]
        if each["name"] == "validate-node-devices.deviceshare.io"
    ]
    [condition] = webhook["matchConditions"]

    identity = f"system:serviceaccount:{helm.NAMESPACE}:gpu-agent"
    may = "authorizer.group('deviceshare.io').resource('nodedevices').check('patch').allowed()"
    assert condition["expression"] == f"request.userInfo.username == '{identity}' || !{may}"
    assert f"--agent-identity={identity}" in containers(objects)["deviceshare"]["args"]
    assert pod({"agent": {"serviceAccount": {"name": "gpu-agent"}}})["serviceAccountName"] == "gpu-agent"
    assert named(objects, "ServiceAccount", "gpu-agent")
    assert named(objects, "ClusterRoleBinding", contract.AGENT)["subjects"][0]["name"] == "gpu-agent"


def test_the_notes_tell_which_pod_security_level_agents_need() -> None:
    """Or a namespace that is held to `restricted`, as installation.md advises, would have none of them."""
    notes = helm.render_files(ENABLED)["templates/NOTES.txt"]

    assert f"kubectl label namespace {helm.NAMESPACE} pod-security.kubernetes.io/enforce=privileged" in notes
    assert "privileged" not in helm.render_files({})["templates/NOTES.txt"]
