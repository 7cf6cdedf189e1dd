"""The shipped webhooks, made to call a process on loopback."""

import base64
from typing import Any

import yaml

from charts import helm
from deviceshare import assets
from deviceshare.domain.contract import AGENT_IDENTITY
from deviceshare_sandbox.control_plane.install import gated_policy, local_webhooks
from tests.unit.chart.objects import named


def installed(minor: int) -> dict[str, dict[str, Any]]:
    """Every webhook of the manifest by name, as a sandbox of Kubernetes 1.`minor` gets it."""
    documents = yaml.safe_load_all((assets.manifests() / "webhooks.yaml").read_text())
    configurations = [local_webhooks(document, "https://127.0.0.1:1", b"authority", minor) for document in documents]
    return {webhook["name"]: webhook for configuration in configurations for webhook in configuration["webhooks"]}


def test_each_webhook_keeps_its_path_and_trusts_the_authority() -> None:
    """Only the Service gives way."""
    webhooks = installed(20)
    assert {webhook["clientConfig"]["url"] for webhook in webhooks.values()} == {
        "https://127.0.0.1:1/mutate-pods",
        "https://127.0.0.1:1/validate-pods",
        "https://127.0.0.1:1/validate-groups",
        "https://127.0.0.1:1/validate-node-devices",
    }
    authorities = {base64.b64decode(webhook["clientConfig"]["caBundle"]) for webhook in webhooks.values()}
    assert authorities == {b"authority"}
    assert all("service" not in webhook["clientConfig"] for webhook in webhooks.values())


def test_old_servers_may_pass_over_the_webhook_that_sees_every_pod() -> None:
    """It can't select by annotation there, and an unreachable deviceshare must not stop anybody else's pods."""
    webhook = installed(27)["mutate-pods.deviceshare.io"]
    assert webhook["failurePolicy"] == "Ignore"
    assert "matchConditions" not in webhook


def test_new_servers_ask_about_pods_of_groups_only_and_wait_for_the_answer() -> None:
    """Nobody else's pods are affected, so ours may be held back."""
    webhook = installed(28)["mutate-pods.deviceshare.io"]
    assert webhook["failurePolicy"] == "Fail"
    (condition,) = webhook["matchConditions"]
    [charts] = named(helm.render({}, "1.28.0"), "MutatingWebhookConfiguration")["webhooks"]
    assert [condition["expression"].split()] == [each["expression"].split() for each in charts["matchConditions"]]


def test_only_agents_and_people_wait_for_the_review_of_what_they_write() -> None:
    """Old servers can't be told who writes, and the leader must not wait for itself."""
    old, new = (installed(minor)["validate-node-devices.deviceshare.io"] for minor in (27, 28))
    assert (old["failurePolicy"], new["failurePolicy"]) == ("Ignore", "Fail")
    assert "matchConditions" not in old
    (condition,) = new["matchConditions"]
    agents, people = condition["expression"].split(" || ")
    assert agents == f"request.userInfo.username == '{AGENT_IDENTITY}'"
    assert people == "!authorizer.group('deviceshare.io').resource('nodedevices').check('patch').allowed()"


def test_validation_is_strict_on_every_server() -> None:
    """It is limited to pods of groups, and to groups."""
    for minor in (20, 33):
        webhooks = installed(minor)
        assert webhooks["validate-groups.deviceshare.io"]["failurePolicy"] == "Fail"
        assert webhooks["validate-pods.deviceshare.io"]["failurePolicy"] == "Fail"
    selector = installed(27)["validate-pods.deviceshare.io"]["objectSelector"]
    assert selector["matchExpressions"] == [{"key": "deviceshare.io/group", "operator": "Exists"}]
    since = installed(28)["validate-pods.deviceshare.io"]
    assert "objectSelector" not in since
    assert [each["name"] for each in since["matchConditions"]] == ["is-ours-or-would-be"]


def test_policies_of_a_cluster_with_gates_are_those_of_the_chart() -> None:
    """The manifest is rendered without gates, and the sandbox has no chart."""
    sandbox = [gated_policy(each) for each in yaml.safe_load_all((assets.manifests() / "policies.yaml").read_text())]
    values = {"admission": "policies", "placement": "gates", "agent": {"enabled": True, "pods": {"enabled": False}}}
    chart = {(each["kind"], each["metadata"]["name"]): each for each in helm.render(values, helm.WITH_POLICIES)}
    for each in sandbox:
        assert each["spec"] == chart[each["kind"], each["metadata"]["name"]]["spec"]
