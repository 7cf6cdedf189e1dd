"""The Deployment's pod: what it runs, what it may do, and how it is reached."""

from typing import Any

import pytest
from helm_python import HelmError

from charts import helm
from deviceshare.cli.run import run
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import left_out
from deviceshare.domain.admission.settings import UNCHANGED, InjectionSettings
from deviceshare.domain.objects.groups import EVERYTHING
from deviceshare.domain.objects.nodes import SharingLabels
from deviceshare.domain.placement.handover import HandoverSetting
from deviceshare.run.settings import Settings
from tests.unit.chart.objects import VARIANTS, containers, deployed, named, rendered, variant, with_values

Json = dict[str, Any]


def pod(values: Json) -> Json:
    """The Deployment's pod."""
    spec: Json = named(helm.render(values), "Deployment")["spec"]["template"]["spec"]
    return spec


def settings(values: Json) -> Settings:
    """What deviceshare makes of its arguments in the pod."""
    arguments = containers(helm.render(values))["deviceshare"]["args"]
    assert arguments[0] == "run"
    with run.make_context("run", arguments[1:]) as context:
        return Settings(**context.params)


@pytest.mark.parametrize("name", ["default", "single", "monitored", "strict", "extender-only"])
def test_deviceshare_understands_its_arguments(name: str) -> None:
    """Those that need no file, whole."""
    chosen = settings(variant(name))

    assert chosen.probe_bind.port == 8080
    assert chosen.extender_bind == ("127.0.0.1", 8888)
    assert chosen.namespace == helm.NAMESPACE


@pytest.mark.parametrize("name", VARIANTS)
def test_every_flag_is_one_of_deviceshares(name: str) -> None:
    """Also of those that name a file, which isn't here."""
    known = {flag for option in run.params for flag in option.opts}
    arguments = containers(rendered(name))["deviceshare"]["args"]

    assert {argument.split("=")[0] for argument in arguments[1:]} <= known


@pytest.mark.parametrize("excluded", [["kube-system"], [], ["kube-system", "monitoring"]])
def test_deviceshare_believes_nobody_whom_its_webhooks_leave_out(excluded: list[str]) -> None:
    """One value sets both."""
    values = {"webhooks": {"excludedNamespaces": excluded}}
    rendered = helm.render(values)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in named(rendered, kind)["webhooks"]:
            if "namespaceSelector" in webhook:
                assert left_out(webhook) == settings(values).left_out == {*excluded, helm.NAMESPACE}


def test_deviceshare_knows_which_namespaces_admission_selects() -> None:
    """One value sets both; which pods are uninjected, and rightly so, depends on it."""
    expressions = [
        {"key": "example.com/gpu", "operator": "In", "values": ["a", "b"]},
        {"key": "example.com/none", "operator": "DoesNotExist"},
    ]
    selected = {"webhooks": {"namespaceSelector": expressions}}
    [webhook, _] = named(helm.render(selected), "MutatingWebhookConfiguration")["webhooks"]
    assert webhook["namespaceSelector"]["matchExpressions"][1:] == expressions
    chosen = settings(selected)
    assert str(chosen.namespace_selector) == "example.com/gpu in (a, b),!example.com/none"
    assert chosen.uninjected is not None
    assert settings({}).namespace_selector == EVERYTHING
    assert settings({"uninjectedPods": "leave"}).uninjected is None


def test_deviceshare_knows_itself_by_its_service_account() -> None:
    """The webhooks let it do what they refuse to everybody else."""
    name = "gpu-sharing"
    rendered = helm.render({"serviceAccount": {"name": name}})

    assert settings({"serviceAccount": {"name": name}}).identity == f"system:serviceaccount:{helm.NAMESPACE}:{name}"
    assert named(rendered, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == name
    subjects = [subject for each in rendered for subject in each.get("subjects", ())]
    assert subjects
    assert {subject["name"] for subject in subjects} == {name}


def test_the_names_of_its_own_certificate_exist() -> None:
    """The Secret, the Service and the configurations that deviceshare is told."""
    objects, chosen = helm.render({}), settings({})

    assert (
        named(objects, "Secret", chosen.ca_secret)["metadata"]["labels"]["deviceshare.io/certificate-authority"] == ""
    )
    assert named(objects, "Service", chosen.webhook_service)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in named(objects, kind, chosen.webhook_config)["webhooks"]:
            service = webhook["clientConfig"]["service"]
            assert f"{service['name']}.{service['namespace']}.svc" == chosen.webhook_names[0]


def test_cert_managers_certificate_is_the_one_that_is_mounted() -> None:
    """And its CA the one that is put into the webhooks."""
    objects = helm.render(variant("cert-manager"))
    certificate = named(objects, "Certificate", "deviceshare-webhook")
    volumes = named(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]

    assert {"name": "webhook-tls", "secret": {"secretName": certificate["spec"]["secretName"]}} in volumes
    configuration = named(objects, "MutatingWebhookConfiguration")
    injected = f"{helm.NAMESPACE}/deviceshare-webhook"
    assert configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"] == injected
    service = configuration["webhooks"][0]["clientConfig"]["service"]
    assert f"{service['name']}.{service['namespace']}.svc" in certificate["spec"]["dnsNames"]
    assert not [each for each in objects if each["metadata"]["name"] == "deviceshare-ca" and each["kind"] == "Secret"]


@pytest.mark.parametrize("name", VARIANTS)
def test_every_port_that_is_named_exists(name: str) -> None:
    """By Services and the NetworkPolicy in the pod, and by a probe in its own container, where alone kubelets look."""
    objects = [each for each in rendered(name) if "agent" not in each["metadata"]["name"]]
    ports = {port["name"] for each in containers(objects).values() for port in each["ports"]}
    for each in containers(objects).values():
        probes = {each[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert {port for port in probes if isinstance(port, str)} <= {port["name"] for port in each["ports"]}
    services = {port["targetPort"] for each in objects if each["kind"] == "Service" for port in each["spec"]["ports"]}
    policies = [rule for each in objects if each["kind"] == "NetworkPolicy" for rule in each["spec"]["ingress"]]

    assert services <= ports
    if policies:
        assert {port["port"] for rule in policies for port in rule["ports"]} == ports


@pytest.mark.parametrize("name", VARIANTS)
def test_the_pod_satisfies_the_restricted_standard(name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted, and a read-only root besides."""
    spec = deployed(rendered(name))

    assert not {"hostPID", "hostIPC"} & spec.keys()
    assert spec.get("hostNetwork", False) == variant(name).get("hostNetwork", False)
    assert all(volume.keys() & {"configMap", "secret"} for volume in spec.get("volumes", ()))
    assert spec["securityContext"]["runAsNonRoot"]
    if not variant(name).get("openshift"):  # which chooses one, and none that is root's
        assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_a_kube_scheduler_whose_deviceshare_is_gone_lets_another_lead() -> None:
    """It asks nobody else, so its liveness is deviceshare's."""
    both = containers(helm.render({}))
    [number] = [port["containerPort"] for port in both["deviceshare"]["ports"] if port["name"] == "probe"]

    assert both["deviceshare"]["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "probe"}
    for probe in ("startupProbe", "livenessProbe"):
        assert both["kube-scheduler"][probe]["httpGet"] == {"path": "/livez", "port": number}


def test_a_new_scheduler_configuration_restarts_the_pods() -> None:
    """kube-scheduler reads it once."""
    [before, after] = [
        named(helm.render({"scheduler": {"qps": qps}}), "Deployment")["spec"]["template"]["metadata"]["annotations"]
        for qps in (200, 300)
    ]

    assert before["checksum/scheduler-config"] != after["checksum/scheduler-config"]


def test_only_clients_of_the_named_cas_reach_the_webhooks() -> None:
    """The file that deviceshare is told is the one that is mounted, whoever makes its own certificate."""
    for values in ({}, variant("cert-manager")):
        objects = helm.render(with_values(values, {"webhooks": {"clientCAConfigMap": "api-servers"}}))
        container, spec = containers(objects)["deviceshare"], named(objects, "Deployment")["spec"]["template"]["spec"]

        [path] = [flag.split("=")[1] for flag in container["args"] if flag.startswith("--webhook-client-ca=")]
        [mount] = [each for each in container["volumeMounts"] if path == f"{each['mountPath']}/ca.crt"]
        [volume] = [each for each in spec["volumes"] if each["name"] == mount["name"]]
        assert volume["configMap"] == {"name": "api-servers"}


def test_the_network_policy_lets_in_to_the_webhooks_whom_it_is_told() -> None:
    """The API server is no pod: it is named by its addresses. Without, everybody is let in, as certificates decide."""
    peers = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]

    def rule(values: Json) -> Json:
        rules = named(helm.render(values), "NetworkPolicy")["spec"]["ingress"]
        [found] = [each for each in rules if {"port": "webhook"} in each["ports"]]
        return {**found}

    assert rule({"networkPolicy": {"webhookFrom": peers}})["from"] == peers
    assert "from" not in rule({})


def test_how_pods_are_injected_is_told_to_deviceshare() -> None:
    """By default as without any flag."""
    assert settings({}).injection == InjectionSettings()
    shares = {"dialects": ["metagpu"], "replacedSchedulers": [], "frameworkLimits": False}
    chosen = settings({"shares": shares, "groups": {"memory": "unchanged"}}).injection
    assert chosen == InjectionSettings("", frozenset({"metagpu"}), False, frozenset(), UNCHANGED)
    assert settings({"shares": {"dialects": []}}).injection.dialects == frozenset()


def test_which_other_labels_share_nodes_is_told_to_deviceshare_and_its_commands() -> None:
    """These read it from the webhooks' configuration, beside what cert-manager reads there."""
    shares: Json = {"shares": {"nodeLabels": ["a=b", "example.com/c="]}}
    assert settings({}).sharing_labels.pairs == frozenset()
    assert settings(shares).sharing_labels.pairs == {("a", "b"), ("example.com/c", "")}
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = named(helm.render(shares | {"certManager": {"enabled": True}}), kind)["metadata"]["annotations"]
        others = {"cert-manager.io/inject-ca-from", "admissions.enforcer/disabled"}
        assert annotations.keys() == {contract.SHARED_NODE_LABELS} | others
        written = SharingLabels.written(annotations[contract.SHARED_NODE_LABELS])
        assert written.pairs == settings(shares).sharing_labels.pairs
        assert contract.SHARED_NODE_LABELS not in named(helm.render({}), kind)["metadata"]["annotations"]


def test_how_devices_are_handed_over_is_told_to_deviceshare() -> None:
    """NVIDIA's NRI plugin means CDI."""
    chosen = {"style": "uuid", "cdiKind": "nvidia.com/gpu", "runtimeClassName": "nvidia"}
    assert settings({}).handover_setting == HandoverSetting()
    assert settings({"handover": chosen}).handover_setting == HandoverSetting("uuid", "nvidia.com/gpu", "nvidia")
    assert settings({"handover": {"nri": True}}).handover_setting == HandoverSetting("cdi")


@pytest.mark.parametrize(
    ("values", "way_out"),
    [
        ({"handover": {"nri": True, "runtimeClassName": "nvidia"}}, "unset the class"),
        ({"handover": {"nri": True}, "agent": {"runtimeClassName": "nvidia"}}, "unset the class"),
        ({"handover": {"nri": True, "style": "uuid"}}, "unset handover.style, or set it to cdi"),
    ],
)
def test_what_cannot_work_with_nvidias_nri_plugin_is_refused(values: Json, way_out: str) -> None:
    """Else pods would be refused, or start without their devices."""
    with pytest.raises(HelmError, match=way_out):
        helm.render(values)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_container_has_each_probe_in_every_release(name: str) -> None:
    """A release without one could be neither upgraded nor rolled back to by server-side apply on Kubernetes 1.20.

    That leaves `startupProbe: {}` of one that it takes away, or what was defaulted in it, and refuses it
    (`httpGet.port: Invalid value: 0`; kubernetes#99037). A port that was a name and becomes a number is no trouble.
    """
    probes = {"startupProbe", "livenessProbe", "readinessProbe"}
    pods = [each["spec"]["template"]["spec"] for each in rendered(name) if each["kind"] in ("Deployment", "DaemonSet")]
    found = {body["name"]: probes - body.keys() for pod in pods for body in pod["containers"]}
    found.pop("placeholder", None)  # nothing to be asked
    assert found
    assert not any(found.values()), found
