"""Which of webhooks and policies the chart chooses, and what it leaves out with policies."""

import json

import pytest
from helm_python import HelmError

from charts import helm
from tests.unit.chart.objects import Json, containers, named, rendered, with_values

OLD, NEW = "1.35.4", helm.WITH_POLICIES
WEBHOOK_KINDS = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
POLICY_KINDS = {f"{kind}AdmissionPolicy{binding}" for kind in ("Mutating", "Validating") for binding in ("", "Binding")}


def kinds(values: Json, version: str) -> set[str]:
    """The kinds that the chart installs."""
    return {each["kind"] for each in helm.render(values, version)}


def notes(values: Json, version: str) -> str:
    """What `helm install` prints."""
    return " ".join(helm.render_files(values, version)["templates/NOTES.txt"].split())


def arguments(values: Json, version: str) -> dict[str, str]:
    """Those of deviceshare, by flag."""
    given = containers(helm.render(values, version))["deviceshare"]["args"][1:]
    return dict(each.split("=", 1) for each in given)


@pytest.mark.parametrize(
    ("values", "version", "policies"),
    [
        ({}, OLD, False),
        ({}, NEW, True),
        ({}, f"{NEW}-gke.100", True),
        ({"admission": "webhooks"}, NEW, False),
        ({"admission": "policies"}, NEW, True),
        ({"admission": "policies", "roles": ["controller", "extender"]}, NEW, True),
    ],
)
def test_the_value_and_the_version_decide_who_admits_pods(values: Json, version: str, policies: bool) -> None:
    """One of both, and deviceshare is told which."""
    found = kinds(values, version)

    assert found & WEBHOOK_KINDS == (set() if policies else WEBHOOK_KINDS)
    assert found & POLICY_KINDS == (POLICY_KINDS if policies else set())
    assert arguments(values, version)["--admission"] == ("policies" if policies else "webhooks")


@pytest.mark.parametrize("version", [OLD, NEW])
def test_webhooks_that_are_served_elsewhere_stay_there(version: str) -> None:
    """Without the role, a release brings neither unless it is told to."""
    values: Json = {"roles": ["controller", "extender"]}

    assert not kinds(values, version) & (WEBHOOK_KINDS | POLICY_KINDS)
    assert "webhooks that are served elsewhere, since `roles` lacks webhook" in notes(values, version)


def test_policies_that_the_api_server_lacks_are_refused() -> None:
    """With the reason and the way out."""
    with pytest.raises(HelmError, match=rf"{OLD} doesn't serve .*set admission=auto or webhooks"):
        helm.render({"admission": "policies"}, OLD)


@pytest.mark.parametrize(
    ("values", "version", "said"),
    [
        ({}, OLD, f"deviceshare's webhooks (admission=auto: Kubernetes v{OLD} doesn't serve"),
        ({}, NEW, f"policies of the API server (admission=auto: Kubernetes v{NEW} serves"),
        ({"admission": "webhooks"}, NEW, "deviceshare's webhooks (admission=webhooks)."),
    ],
)
def test_the_notes_say_what_was_chosen_and_why(values: Json, version: str, said: str) -> None:
    """An administrator who wonders finds it in `helm get notes`."""
    assert f"Pods and groups are admitted by {said}" in notes(values, version)


@pytest.mark.parametrize("values", [{}, {"agent": {"enabled": True}}, {"certManager": {"enabled": True}}])
def test_with_policies_nothing_of_the_webhooks_is_left(values: Json) -> None:
    """No certificate, Secret, Service, port, volume, right or rule of the NetworkPolicy."""
    objects = helm.render(values, NEW)
    pod = named(objects, "Deployment")["spec"]["template"]["spec"]
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    rules = [rule for each in objects for rule in each.get("rules", ()) if each["kind"].endswith("Role")]

    assert not {"Secret", "Certificate", "Issuer", *WEBHOOK_KINDS} & {kind for kind, _ in names}
    assert ("Service", "deviceshare") not in names
    assert not [name for _, name in names if "webhook" in name]
    assert not [rule for rule in rules if "admissionregistration.k8s.io" in rule.get("apiGroups", ())]
    assert not [rule for rule in rules if "secrets" in rule.get("resources", ())]
    assert "webhook" not in json.dumps(named(objects, "NetworkPolicy"))
    assert all("secret" not in volume for volume in pod["volumes"])
    [ports] = [each["ports"] for each in pod["containers"] if each["name"] == "deviceshare"]
    assert [port["name"] for port in ports] == ["probe"]


def test_deviceshare_is_not_told_what_only_webhooks_use() -> None:
    """Else two places would say how pods are injected, and one of them would be ignored."""
    values = {"agent": {"enabled": True}}
    by_webhooks, by_policies = arguments(values, OLD), arguments(values, NEW)

    assert by_webhooks.keys() - by_policies.keys() == {
        *("--webhook-bind", "--webhook-service", "--webhook-config", "--ca-secret", "--agent-identity", "--agent-url"),
        *("--bypasses", "--dialects", "--replaced-schedulers", "--framework-limits", "--group-memory"),
        *("--tolerations", "--unsupported", "--isolation", "--memory-limits"),
    }
    assert by_policies.keys() <= by_webhooks.keys()
    assert {flag for flag in by_policies if by_policies[flag] != by_webhooks[flag]} == {"--admission"}


def test_an_extender_on_the_network_keeps_its_certificates() -> None:
    """They have nothing to do with admission."""
    objects = rendered("policies-existing-scheduler")
    certificates = {each["metadata"]["name"] for each in objects if each["kind"] == "Certificate"}
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}

    assert certificates == {"deviceshare-ca", "deviceshare-extender", "deviceshare-extender-client"}
    assert services == {"deviceshare-extender"}
    brought = with_values({"extender": {"tlsSecret": "mine"}})
    assert not [each for each in rendered("policies-existing-scheduler", brought) if each["kind"] == "Certificate"]
