"""What follows the version of the cluster."""

import json
import re
from typing import Any

import pytest
import yaml
from helm_python import Chart, HelmError, _native

from charts import helm
from deviceshare.domain import contract
from deviceshare.domain.objects.shares import DEVICE_COUNT, DIALECTS, METAGPU_SYSTEM, SYSTEMS
from deviceshare_sandbox.components import asks_before_evicting, scheduler_config_version
from tests.unit.chart.objects import VERSIONS, Json, containers, named
from tests.unit.policies.kubernetes_cel import evaluate

WITH_AGENTS = {"agent": {"enabled": True}, "admission": "webhooks"}
BY_AN_AGENT = (
    f"request.userInfo.username == '{contract.AGENT_IDENTITY}'"
    " || !authorizer.group('deviceshare.io').resource('nodedevices').check('patch').allowed()"
)
OURS = {contract.GROUP: "team"}
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def scheduler_config(version: str, **values: Json) -> Json:
    """What kube-scheduler reads."""
    config: Json = yaml.safe_load(
        named(helm.render(values, version), "ConfigMap", "deviceshare-scheduler")["data"]["config.yaml"]
    )
    return config


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("1.20.2", "v1.20.2"),
        ("1.27.16-gke.1296000", "v1.27.16"),
        ("1.34.1+k3s1", "v1.34.1"),
        ("1.31.4+rke2r1", "v1.31.4"),
        ("1.29.0-eks-a5ec690", "v1.29.0"),
        ("1.34.0-rc.1.5+abcdef", "v1.34.0"),
        ("1.34", "v1.34.0"),
        ("1.28", "v1.28.0"),
        ("1.34+", "v1.34.0"),
        ("1.34.2.1-vendor", "v1.34.2"),
    ],
)
def test_kube_scheduler_is_of_the_clusters_version(version: str, tag: str) -> None:
    """Vendors' suffixes name no image of upstream's; of a minor version alone there is a first release."""
    assert containers(helm.render({}, version))["kube-scheduler"]["image"] == f"registry.k8s.io/kube-scheduler:{tag}"


def test_who_names_kube_schedulers_image_gets_that() -> None:
    """Whatever the cluster's version."""
    digest = "sha256:" + "0" * 64
    for image, end in (({"tag": "v1.33.1"}, ":v1.33.1"), ({"digest": digest}, f"@{digest}")):
        objects = helm.render({"scheduler": {"image": image}}, "1.34.2-gke.100")
        assert containers(objects)["kube-scheduler"]["image"] == f"registry.k8s.io/kube-scheduler{end}"


def test_a_version_that_names_no_release_is_refused() -> None:
    """With the reason and the way out: an image without a tag would be pulled, and features be guessed."""
    # Helm parses what it is told as a version, but not what a cluster says of itself; a space gets past its parser.
    options = {"name": "deviceshare", "namespace": helm.NAMESPACE, "kube_version": " 1.34.1"}
    with Chart.load(helm.CHART) as chart, pytest.raises(HelmError, match=r"names no release.*--kube-version"):
        _native.call_string("helm_render", chart._raw(), "{}", json.dumps(options))


@pytest.mark.parametrize("version", VERSIONS)
def test_kube_scheduler_is_configured_in_its_own_version(version: str) -> None:
    """As in the sandbox."""
    api = scheduler_config_version(int(version.split(".")[1]))

    assert scheduler_config(version)["apiVersion"] == f"kubescheduler.config.k8s.io/{api}"


@pytest.mark.parametrize("version", VERSIONS)
def test_kube_scheduler_sees_all_nodes_and_asks_over_loopback(version: str) -> None:
    """The settings that sharing depends on."""
    config = scheduler_config(version)
    [extender] = config["extenders"]

    [profile] = config["profiles"]
    assert profile["schedulerName"] == contract.SCHEDULER_NAME
    assert config["percentageOfNodesToScore"] == 100
    assert config["podMaxBackoffSeconds"] == 1
    assert extender["urlPrefix"] == "http://127.0.0.1:8888"
    assert extender["httpTimeout"] == "15s"
    assert not extender["ignorable"]
    assert "--extender-bind=127.0.0.1:8888" in containers(helm.render({}, version))["deviceshare"]["args"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kube_scheduler_leaves_shares_to_the_extender_which_it_asks_about_every_pod(version: str) -> None:
    """No node advertises such a resource; with managedResources, pods of groups would get past the extender."""

    def fit(**values: Json) -> Json:
        config = scheduler_config(version, **values)
        assert all("managedResources" not in extender for extender in config["extenders"])
        [profile] = config["profiles"]
        [plugin] = profile["pluginConfig"]
        assert plugin["name"] == "NodeResourcesFit"
        args: Json = plugin["args"]
        return args

    assert sorted(fit()["ignoredResources"]) == sorted({*DIALECTS, DEVICE_COUNT})
    served = [each.resource for each in DIALECTS.values() if each.system in ("", METAGPU_SYSTEM)]
    assert sorted(fit(shares={"dialects": [METAGPU_SYSTEM]})["ignoredResources"]) == sorted([*served, DEVICE_COUNT])


@pytest.mark.parametrize(
    "version", ["1.20.2", "1.20.10", "1.20.15-gke.100", "1.21.3", "1.21.4", "1.22.0", "1.34.1+k3s1"]
)
def test_kube_scheduler_is_asked_before_it_evicts_or_evicts_nobody(version: str) -> None:
    """As in the sandbox: old releases don't ask, and pods would die in vain."""
    config = scheduler_config(version)
    off = {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}

    assert config["extenders"][0]["preemptVerb"] == "preempt"
    assert config["profiles"][0].get("plugins") == (None if asks_before_evicting(version) else off)


@pytest.mark.parametrize("version", ["1.20.2", "1.22.17"])
def test_an_old_kube_scheduler_is_not_heard_outside_its_pod(version: str) -> None:
    """It also listens on plain HTTP."""
    config = scheduler_config(version)

    assert config["healthzBindAddress"].startswith("127.0.0.1:")
    assert config["metricsBindAddress"].startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("version", "budget", "flow"),
    [
        ("1.20.2", "v1beta1", "v1beta1"),
        ("1.21.14", "v1", "v1beta1"),
        ("1.23.17", "v1", "v1beta2"),
        ("1.26.15", "v1", "v1beta3"),
        ("1.29.15", "v1", "v1"),
        ("1.34.0", "v1", "v1"),
    ],
)
def test_objects_have_versions_that_the_cluster_serves(version: str, budget: str, flow: str) -> None:
    """https://kubernetes.io/docs/reference/using-api/deprecation-guide/"""
    objects = helm.render({}, version)

    assert named(objects, "PodDisruptionBudget")["apiVersion"] == f"policy/{budget}"
    leases = named(objects, "FlowSchema", "deviceshare-leases")
    assert leases["apiVersion"] == f"flowcontrol.apiserver.k8s.io/{flow}"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_only_pods_of_groups_can_be_held_up(kind: str, version: str) -> None:
    """A webhook that stops what it can't be asked about is asked about pods of groups, groups, and agents' reports."""
    for webhook in named(helm.render(WITH_AGENTS, version), kind)["webhooks"]:
        strict = webhook["failurePolicy"] == "Fail"
        by_label = webhook.get("objectSelector", {}).get("matchExpressions") == [
            {"key": contract.GROUP, "operator": "Exists"}
        ]
        by_annotation = any(contract.GROUP in each["expression"] for each in webhook.get("matchConditions", ()))
        groups = all(rule["resources"] == ["shareddevicegroups"] for rule in webhook["rules"])
        agents = any(each["expression"] == BY_AN_AGENT for each in webhook.get("matchConditions", ()))
        assert strict <= (by_label or by_annotation or groups or agents), webhook["name"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_systems_pods_and_our_own_are_left_alone(kind: str, version: str) -> None:
    """Or deviceshare would be needed to start deviceshare."""
    values = {"admission": "webhooks", "webhooks": {"excludedNamespaces": ["kube-system", "monitoring"]}}
    left_out = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": [helm.NAMESPACE, "kube-system", "monitoring"],
    }

    for webhook in named(helm.render(values, version), kind)["webhooks"]:
        if webhook["rules"][0]["scope"] == "Namespaced":
            assert left_out in webhook["namespaceSelector"]["matchExpressions"]


def test_match_conditions_make_the_mutating_webhook_strict() -> None:
    """From 1.28 on it is asked about pods of groups only."""
    [before, _] = named(helm.render({}, "1.27.16"), KINDS[0])["webhooks"]
    [since, _] = named(helm.render({}, "1.28.0"), KINDS[0])["webhooks"]

    assert (before["failurePolicy"], "matchConditions" in before) == ("Ignore", False)
    assert (since["failurePolicy"], "matchConditions" in since) == ("Fail", True)


@pytest.mark.parametrize(
    ("old", "new", "asked"),
    [
        (None, {"labels": OURS, "annotations": OURS}, True),
        (None, {"annotations": OURS}, False),  # the mutating webhook was away: the pod is never bound
        (None, {}, False),
        ({}, {"annotations": OURS}, True),
        ({"annotations": {"a": "b"}}, {"annotations": {"a": "b"} | OURS}, True),
        ({"annotations": OURS}, {"annotations": OURS, "finalizers": []}, False),  # uninjected: needs no deviceshare
        ({"labels": OURS, "annotations": OURS}, {"annotations": OURS}, True),
        ({"labels": {"a": "b"}}, {"labels": {"a": "b"} | OURS}, True),
        ({"labels": {"a": "b"}}, {"labels": {}}, False),
    ],
)
def test_nobody_adds_the_annotation_to_a_pod_unreviewed(old: Any, new: Any, *, asked: bool) -> None:
    """From 1.28 on. It does nothing after a pod's creation, but makes the pod look as if admission had been away."""
    validating = named(helm.render({"admission": "webhooks"}, "1.28.0"), KINDS[1])
    [webhook] = [each for each in validating["webhooks"] if each["name"] == "validate-pods.deviceshare.io"]
    [condition] = webhook["matchConditions"]
    request = {"operation": "UPDATE" if old is not None else "CREATE"}
    data = {"request": request, "object": {"metadata": new}, "oldObject": None if old is None else {"metadata": old}}
    assert evaluate(condition["expression"], data) is asked


@pytest.mark.parametrize("served", [[], ["metagpu"], list(SYSTEMS)])
def test_the_mutating_webhook_is_asked_about_shares_of_the_dialects_that_are_served(served: list[str]) -> None:
    """A dialect that is off belongs to another system, whose pods must not depend on deviceshare."""
    [webhook, _] = named(helm.render({"shares": {"dialects": served}}, "1.28.0"), KINDS[0])["webhooks"]
    [condition] = webhook["matchConditions"]

    for dialect in DIALECTS.values():
        asked = condition["expression"].count(f"'{dialect.family}'") - (
            dialect.system == ""
        )  # an annotation may have it
        assert asked == (2 if dialect.system in ("", *served) else 0)  # in containers and in init containers


def test_where_namespaces_lack_their_label_the_notes_tell_how_to_set_it() -> None:
    """Before 1.21."""
    command = "kubectl label namespace kube-system kubernetes.io/metadata.name=kube-system"

    assert command in helm.render_files({}, "1.20.2")["templates/NOTES.txt"]
    assert command not in helm.render_files({}, "1.21.0")["templates/NOTES.txt"]


def test_the_notes_tell_the_next_three_commands() -> None:
    """A node, a group with a pod, a look."""
    notes = helm.render_files({})["templates/NOTES.txt"]
    manifests = notes.split("<<'END'\n")[1].split("\nEND\n")[0]
    group, pod = yaml.safe_load_all(manifests)

    assert notes.count("\nkubectl ") == 3
    assert f"{contract.MODE_LABEL}={contract.MODE_SHARED}" in notes
    assert pod["metadata"]["annotations"] == {contract.GROUP: group["metadata"]["name"]}
    assert pod["spec"]["schedulerName"] == contract.SCHEDULER_NAME


def _resources(version: str) -> Json:
    crd = named(helm.render({}, version), "CustomResourceDefinition", "shareddevicegroups.deviceshare.io")
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    resources: Json = spec["properties"]["resources"]
    return resources


def test_rules_about_names_are_left_out_where_api_servers_know_none() -> None:
    """kubectl and Helm refuse fields that the API server's own schema doesn't have."""
    assert [version for version in VERSIONS if "x-kubernetes-validations" in _resources(version)] == [
        version for version in VERSIONS if int(version.split(".")[1]) >= 26
    ]
    assert 0 < sum("x-kubernetes-validations" in _resources(version) for version in VERSIONS) < len(VERSIONS)


@pytest.mark.parametrize(
    ("name", "good"),
    [
        *[(name, True) for name in ("nvidia.com/gpu", "huawei.com/Ascend910", "a/" + "b" * 63, "d" * 253 + "/b")],
        *[(name, False) for name in ("huawei.com/Ascend[/x]", "gpu", "a/" + "b" * 64, "d" * 254 + "/" + "b" * 63)],
        *[(name, False) for name in ("A.com/gpu", "a..b/gpu", "a/-b", "a/b\x1b", "a/b\n", "/b", "a/")],
    ],
)
def test_the_rule_about_names_takes_qualified_names_only(name: str, good: bool) -> None:
    """Its pattern is of the kind that Go, which the API server judges it with, and Python read alike."""
    [validation] = _resources(helm.CURRENT)["x-kubernetes-validations"]
    found = re.fullmatch(
        r"self\.all\(name, name\.size\(\) <= (\d+) && name\.matches\('\^(.*)\$'\)\)", validation["rule"]
    )
    assert found
    assert (len(name) <= int(found[1]) and re.fullmatch(found[2], name) is not None) is good


def test_holds_need_an_api_server_that_serves_them() -> None:
    """Off by default, without a right or a class."""
    held = helm.render({"dra": {"holds": True}}, "1.34.0")
    assert named(held, "DeviceClass", contract.HOLD_CLASS)["spec"] == {}
    assert "--dra-holds=on" in containers(held)["deviceshare"]["args"]
    assert "--dra-holds=off" in containers(helm.render({}, "1.34.0"))["deviceshare"]["args"]
    assert not [each for each in helm.render({}, "1.34.0") if each["kind"] == "DeviceClass"]
    with pytest.raises(HelmError, match=re.escape("dra.holds needs Kubernetes 1.34")):
        helm.render({"dra": {"holds": True}}, "1.33.4")


def test_a_hand_over_by_claim_needs_holds_and_webhooks() -> None:
    """Which `admission: auto` then chooses; the right to write ResourceClaims everywhere comes with it alone."""
    dra = {"holds": True, "handover": True}
    rendered = helm.render({"dra": dra}, "1.36.0")
    assert "--dra-handover=on" in containers(rendered)["deviceshare"]["args"]
    assert [each for each in rendered if each["kind"] == "MutatingWebhookConfiguration"]
    for chosen, writes in ((rendered, True), (helm.render({"dra": {"holds": True}}, "1.36.0"), False)):
        rules = named(chosen, "ClusterRole", "deviceshare-controller")["rules"]
        assert any("resourceclaims" in rule["resources"] and "create" in rule["verbs"] for rule in rules) is writes
    for values, fault in (
        ({"dra": {"handover": True}}, "set dra.holds=true"),
        ({"dra": dra, "admission": "policies"}, "set admission=webhooks"),
    ):
        with pytest.raises(HelmError, match=re.escape(fault)):
            helm.render(values, "1.36.0")
