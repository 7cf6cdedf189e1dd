"""Pods in their nodes' network, and the ports by which they are reached."""

from typing import Any

import pytest
import yaml
from helm_python import HelmError

from charts import helm
from tests.unit.chart.objects import containers, deployed, named, with_values

Json = dict[str, Any]

HOST = {"hostNetwork": True, "certManager": {"enabled": True}}


def flags(values: Json) -> dict[str, str]:
    """The arguments of deviceshare."""
    arguments = containers(helm.render(values))["deviceshare"]["args"]
    return dict(argument.split("=", 1) for argument in arguments[1:])


def ports(values: Json) -> list[int]:
    """All ports of the pod's containers."""
    return [port["containerPort"] for each in containers(helm.render(values)).values() for port in each["ports"]]


def test_a_pod_in_the_nodes_network_still_finds_services() -> None:
    """https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-dns-policy"""
    pod = deployed(helm.render(HOST))

    assert (pod["hostNetwork"], pod["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert not {"hostNetwork", "dnsPolicy"} & deployed(helm.render({})).keys()


def test_ports_of_the_nodes_are_nobody_elses() -> None:
    """Not the control plane's, the kubelet's, kube-proxy's or the agents'; nor those of NodePorts or of clients."""
    agents = {port["containerPort"] for port in _agent(with_values(HOST, {"agent": {"enabled": True}}))["ports"]}
    taken = {2379, 2380, 6443, 8080, 8888, 10248, 10249, 10250, 10256, 10257, 10259} | agents

    found = ports(HOST)
    assert len(set(found)) == len(found) == 3
    assert not set(found) & taken
    assert max(found) < 30000
    addresses = [value for flag, value in flags(HOST).items() if flag.endswith("-bind") and value != "off"]
    assert len({each.rsplit(":", 1)[1] for each in addresses}) == len(addresses) == 3


def _agent(values: Json) -> Json:
    [container] = named(helm.render(values), "DaemonSet", "deviceshare-agent")["spec"]["template"]["spec"]["containers"]
    found: Json = container
    return found


def test_a_new_pod_waits_for_the_ports_of_an_old_one() -> None:
    """On as many nodes as replicas a further pod would stay Pending, and with it the upgrade."""

    def update(values: Json) -> Json:
        strategy: Json = named(helm.render(values), "Deployment")["spec"]["strategy"]["rollingUpdate"]
        return strategy

    assert update(HOST) == {"maxSurge": 0, "maxUnavailable": 1}
    assert update({}) == {"maxSurge": 1, "maxUnavailable": 0}


def test_on_a_shared_loopback_kube_scheduler_shows_a_certificate() -> None:
    """Every process of the node, and every pod in its network, could call the extender otherwise, and bind pods."""
    objects = helm.render(HOST)
    config = yaml.safe_load(named(objects, "ConfigMap", "deviceshare-scheduler")["data"]["config.yaml"])
    [extender] = config["extenders"]
    told = flags(HOST)
    volumes = {each["name"]: each for each in deployed(objects)["volumes"]}
    [mount] = [each for each in containers(objects)["kube-scheduler"]["volumeMounts"] if "client" in each["name"]]

    assert extender["urlPrefix"] == f"https://{told['--extender-bind']}"
    assert extender["enableHTTPS"]
    assert told["--extender-client-ca"].endswith("/ca.crt")
    certificate = named(objects, "Certificate", "deviceshare-extender")["spec"]
    client = named(objects, "Certificate", "deviceshare-extender-client")["spec"]
    assert extender["tlsConfig"]["serverName"] in certificate["dnsNames"]
    assert volumes["extender-tls"]["secret"]["secretName"] == certificate["secretName"]
    assert volumes[mount["name"]]["secret"]["secretName"] == client["secretName"]
    assert {extender["tlsConfig"][key].rsplit("/", 1)[0] for key in ("caFile", "certFile", "keyFile")} == {
        mount["mountPath"]
    }
    assert told["--ui-bind"] == "off"


def test_certificates_of_ones_own_are_mounted() -> None:
    """Without cert-manager."""
    own = {"hostNetwork": True, "extender": {"tlsSecret": "a", "clientTLSSecret": "b"}}
    secrets = {each["secret"]["secretName"] for each in deployed(helm.render(own))["volumes"] if "secret" in each}

    assert secrets == {"a", "b"}


@pytest.mark.parametrize(
    ("values", "way_out"),
    [
        ({"hostNetwork": True}, r"extender\.tlsSecret is needed.*certManager\.enabled=true, or placement=gates"),
        ({"hostNetwork": True, "extender": {"tlsSecret": "a"}}, r"extender\.clientTLSSecret is needed"),
        (with_values(HOST, {"extender": {"tlsSecret": "a"}}), r"extender\.clientTLSSecret is needed"),
        (with_values(HOST, {"webhooks": {"port": 10250}}), r"webhooks\.port=10250 is taken.*choose another"),
        (with_values(HOST, {"webhooks": {"port": 9408}}), r"webhooks\.port=9408 is taken"),
        ({"webhooks": {"port": 8080}}, r"webhooks\.port=8080 is taken"),
        ({"webhooks": {"port": 443}}, r"port"),
        (with_values(HOST, {"networkPolicy": {"webhookFrom": [{"ipBlock": {}}]}}), "leave them empty, or set host"),
        (with_values(HOST, {"networkPolicy": {"metricsFrom": [{"ipBlock": {}}]}}), "leave them empty, or set host"),
    ],
    ids=str,
)
def test_what_can_not_work_in_the_nodes_network_is_refused(values: Json, way_out: str) -> None:
    """With the way out."""
    with pytest.raises(HelmError, match=way_out):
        helm.render(values)


def test_without_an_extender_the_nodes_network_needs_no_certificate_for_it() -> None:
    """placement=gates, and a cluster whose webhooks alone are served here."""
    for values in ({"placement": "gates"}, {"roles": ["controller", "webhook"]}):
        volumes = deployed(helm.render({"hostNetwork": True, **values})).get("volumes", [])
        assert not [each for each in volumes if "extender" in each["name"]]


def test_no_network_policy_pretends_to_protect_pods_in_the_nodes_network() -> None:
    """None applies to them: https://kubernetes.io/docs/concepts/services-networking/network-policies/"""
    assert not [each for each in helm.render(HOST) if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_the_api_server_finds_the_webhooks_port(kind: str) -> None:
    """From the configuration to the Service, from there to the container."""
    values = {"webhooks": {"port": 10250, "servicePort": 8443}}
    objects = helm.render(values)
    [port] = named(objects, "Service")["spec"]["ports"]
    [target] = [each for each in containers(objects)["deviceshare"]["ports"] if each["name"] == port["targetPort"]]

    assert target["containerPort"] == 10250
    assert flags(values)["--webhook-bind"] == ":10250"
    for webhook in named(objects, kind)["webhooks"]:
        assert webhook["clientConfig"]["service"]["port"] == port["port"] == 8443
    for webhook in named(helm.render({}), kind)["webhooks"]:
        assert "port" not in webhook["clientConfig"]["service"]
