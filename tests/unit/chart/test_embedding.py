"""What charts that embed this one, and clusters with rules of their own, set by the names that other charts have."""

from typing import Any

import pytest
from helm_python import HelmError

from charts import helm

Json = dict[str, Any]
AGENT = {"agent": {"enabled": True}}


def rendered(kind: str, name: str = "deviceshare", /, **values: Any) -> Json:
    [found] = [
        each for each in helm.render(values) if each and (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def pod(kind: str = "Deployment", name: str = "deviceshare", /, **values: Any) -> Json:
    spec: Json = rendered(kind, name, **values)["spec"]["template"]
    return spec


def test_a_chart_that_depends_on_it_may_turn_it_off() -> None:
    """Helm hands `enabled` on to it, and a schema that knows no such value would refuse it."""
    assert helm.render({"enabled": True}) == helm.render({})


def test_secrets_of_the_whole_release_pull_every_image() -> None:
    """As strings, and as Kubernetes has them; each once."""
    values = {
        "global": {"imagePullSecrets": ["one", {"name": "two"}]},
        "imagePullSecrets": [{"name": "two"}, {"name": "three"}],
    }
    values |= {"agent": {"enabled": True, "placeholders": [{"name": "p", "devices": 1}]}}
    wanted = [{"name": "one"}, {"name": "two"}, {"name": "three"}]
    templates = [each for each in helm.render(values) if each and each["kind"] in ("Deployment", "DaemonSet")]
    assert len(templates) == 3
    assert all(each["spec"]["template"]["spec"]["imagePullSecrets"] == wanted for each in templates)
    assert "imagePullSecrets" not in pod()["spec"]


def test_the_disruption_budget_has_kubernetes_own_fields() -> None:
    def spec(**values: Any) -> Json:
        found: Json = rendered("PodDisruptionBudget", podDisruptionBudget=values)["spec"]
        return {key: value for key, value in found.items() if key != "selector"}

    assert spec() == {"minAvailable": 1}
    assert spec(minAvailable="50%") == {"minAvailable": "50%"}
    assert spec(maxUnavailable=0) == {"maxUnavailable": 0}
    assert spec(maxUnavailable=1, unhealthyPodEvictionPolicy="AlwaysAllow") == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }


def test_a_deployments_fields_are_replaced_or_laid_over_the_charts() -> None:
    values = {
        "strategy": {"type": "Recreate"},
        "revisionHistoryLimit": 0,
        "podSecurityContext": {"fsGroup": 1},
        "securityContext": {"seccompProfile": {"type": "Localhost"}},
        "startupProbe": {"failureThreshold": 300},
        "livenessProbe": {"periodSeconds": 20},
        "readinessProbe": {"timeoutSeconds": 9},
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["192.0.2.1"]},
    }
    plain, found = rendered("Deployment"), rendered("Deployment", **values)
    assert (found["spec"]["strategy"], found["spec"]["revisionHistoryLimit"]) == ({"type": "Recreate"}, 0)
    before, spec = plain["spec"]["template"]["spec"], found["spec"]["template"]["spec"]
    assert spec["securityContext"] == before["securityContext"] | {"fsGroup": 1}
    assert (spec["dnsPolicy"], spec["dnsConfig"]) == ("None", {"nameservers": ["192.0.2.1"]})
    assert "dnsPolicy" not in before
    mine, was = spec["containers"][0], before["containers"][0]
    assert mine["startupProbe"] == was["startupProbe"] | {"failureThreshold": 300}
    assert mine["livenessProbe"] == was["livenessProbe"] | {"periodSeconds": 20}
    assert mine["readinessProbe"] == was["readinessProbe"] | {"timeoutSeconds": 9}
    for each, other in zip(spec["containers"], before["containers"], strict=True):
        assert each["securityContext"] == other["securityContext"] | {"seccompProfile": {"type": "Localhost"}}


def test_agents_have_fields_of_their_own() -> None:
    mine = {
        "podLabels": {"sidecar": "no"},
        "podAnnotations": {"note": "agent"},
        "priorityClassName": "system-node-critical",
        "updateStrategy": {"type": "OnDelete"},
        "affinity": {"nodeAffinity": {}},
    }
    found = rendered("DaemonSet", "deviceshare-agent", agent={"enabled": True, **mine}, podLabels={"all": "yes"})
    template = found["spec"]["template"]
    assert found["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert template["metadata"]["labels"].items() >= {"sidecar": "no", "all": "yes"}.items()
    assert template["metadata"]["annotations"]["note"] == "agent"
    assert template["spec"]["priorityClassName"] == "system-node-critical"
    assert template["spec"]["affinity"] == {"nodeAffinity": {}}
    with pytest.raises(HelmError, match="exclude each other"):
        helm.render({"agent": {"enabled": True, **mine}, "shares": {"nodeLabels": ["gpushare=true"]}})


def test_every_service_has_the_annotations_and_ip_families() -> None:
    values: Json = {
        "service": {"annotations": {"a": "b"}, "ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        "metrics": {"serviceMonitor": {"enabled": True}},
        "agent": {"enabled": True, "pods": {"through": "service"}},
        "admission": "webhooks",
        "scheduler": {"enabled": False},
        "extender": {"tlsSecret": "tls"},
    }
    services = [each for each in helm.render(values) if each and each["kind"] == "Service"]
    assert len(services) == 5
    for each in services:
        assert each["metadata"]["annotations"]["a"] == "b"
        assert (each["spec"]["ipFamilyPolicy"], each["spec"]["ipFamilies"]) == ("PreferDualStack", ["IPv6", "IPv4"])


def test_monitors_have_the_operators_fields_and_may_be_of_pods() -> None:
    mine = [{"action": "drop"}]
    monitor = {"scrapeTimeout": "20s", "relabelings": mine, "metricRelabelings": mine, "labels": {"release": "p"}}
    values: Json = {"metrics": {"serviceMonitor": {"enabled": True, **monitor}}, **AGENT}
    endpoints = rendered("ServiceMonitor", **values)["spec"]["endpoints"]
    for endpoint in endpoints:
        assert (endpoint["scrapeTimeout"], endpoint["relabelings"], endpoint["metricRelabelings"]) == (
            "20s",
            mine,
            mine,
        )
    service = rendered("Service", "deviceshare-metrics", **values)
    assert [each["port"] for each in endpoints] == [each["name"] for each in service["spec"]["ports"]]
    assert (endpoints[1]["scheme"], endpoints[1]["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    [endpoint] = rendered("ServiceMonitor", "deviceshare-agent", **values)["spec"]["endpoints"]
    assert [each.get("targetLabel") for each in endpoint["relabelings"]] == ["node", None]

    values["metrics"]["podMonitor"] = {"enabled": True}
    kinds = {each["kind"] for each in helm.render(values) if each and "monitor" in each["kind"].lower()}
    assert kinds == {"PodMonitor"}
    of_agents = rendered("PodMonitor", "deviceshare-agent", **values)
    [endpoint] = of_agents["spec"]["podMetricsEndpoints"]
    [container] = pod("DaemonSet", "deviceshare-agent", **AGENT)["spec"]["containers"]
    assert endpoint["port"] in [port["name"] for port in container["ports"]]
    assert of_agents["metadata"]["labels"]["release"] == "p"


def test_kube_scheduler_answers_metrics_only_where_it_is_scraped() -> None:
    """Without a token: looking up who asks would need a right in kube-system. It answers nothing else."""

    def opened(**metrics: Json) -> list[str]:
        containers = pod("Deployment", metrics=metrics)["spec"]["containers"]
        [scheduler] = [each for each in containers if each["name"] == "kube-scheduler"]
        return [each for each in scheduler["args"] if "always-allow-paths" in each]

    on = {"enabled": True}
    assert opened() == opened(serviceMonitor={**on, "scheduler": False}) == []
    flag = "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics"
    assert opened(serviceMonitor=on) == opened(podMonitor=on) == [flag]


def test_further_objects_are_of_the_release() -> None:
    """As YAML, and as text with templates."""
    one = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "{{ .Release.Name }}"}}
    two = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: two}\ndata: {a: '{{ .Release.Namespace }}'}\n"
    values = {"extraObjects": [one, two]}
    assert rendered("ConfigMap", "one", **values)["data"]["a"] == "deviceshare"
    assert rendered("ConfigMap", "two", **values)["data"]["a"] == helm.NAMESPACE
