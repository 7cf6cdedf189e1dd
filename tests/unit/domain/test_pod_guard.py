"""What pods say of deviceshare is believed where the webhooks look after them, and nowhere else."""

import json
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from deviceshare import assets
from deviceshare.domain import contract
from deviceshare.domain.admission.pod_guard import USUAL, PodGuard, left_out
from deviceshare.domain.answers.explanation import Case, explain_pod
from deviceshare.domain.objects.pods import Pod
from tests.unit.domain.objects import a_fleet, a_node, a_pod, gpus


def elsewhere(pod: Pod, namespace: str) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, namespace=namespace))


def test_a_pod_in_a_namespace_left_out_says_nothing() -> None:
    """No group, no devices, no admission; what isn't deviceshare's stays."""
    pod = elsewhere(a_pod(node="n1", devices=gpus(0)), "kube-system")
    pod.metadata.annotations["app"] = "x"
    seen = PodGuard({"kube-system"})(pod)
    assert (seen.group, seen.holder_uid, seen.received, seen.injected) == ("", "", (), False)
    assert seen.left_out == "team"
    assert seen.metadata.annotations == {"app": "x"}
    assert (seen.node, seen.metadata.uid) == (pod.node, pod.metadata.uid)


def test_everybody_elses_pods_are_seen_as_they_are() -> None:
    """Those that the webhooks look after, and those that say nothing of deviceshare."""
    plain = msgspec.convert({"metadata": {"name": "p", "namespace": "kube-system"}}, Pod)
    for pod in (a_pod(node="n1", devices=gpus(0)), plain):
        assert PodGuard({"kube-system"})(pod) is pod


def test_a_label_alone_is_taken_away_too() -> None:
    """It is what selectors go by."""
    pod = elsewhere(a_pod(), "kube-system")
    pod.metadata.annotations.clear()
    assert PodGuard()(pod).left_out == "team"
    assert PodGuard()(pod).metadata.labels == {}


def test_the_usual_guard_leaves_out_what_the_manifests_do() -> None:
    """One setting, written down in two places: here they meet."""
    configurations = yaml.safe_load_all((assets.manifests() / "webhooks.yaml").read_text())
    webhooks = {webhook["name"]: webhook for each in configurations for webhook in each["webhooks"]}
    for name in ("mutate-pods.deviceshare.io", "validate-pods.deviceshare.io"):
        assert left_out(webhooks[name]) == USUAL


def test_only_names_of_namespaces_are_read_out_of_a_selector() -> None:
    """Whatever else a selector may hold, and where there is none."""
    expressions: list[Any] = [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["a", "b"]},
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["c"]},
        {"key": "team", "operator": "NotIn", "values": ["d"]},
        {"key": "gpu", "operator": "Exists"},
    ]
    assert left_out({"namespaceSelector": {"matchExpressions": expressions}}) == {"a", "b"}
    for nothing in ({}, {"namespaceSelector": None}, {"namespaceSelector": {"matchExpressions": None}}):
        assert left_out(json.loads(json.dumps(nothing))) == frozenset()


def test_explain_names_the_setting_and_the_way_out() -> None:
    """As the extender does."""
    pod = PodGuard()(elsewhere(a_pod(), "kube-system"))
    said = explain_pod(Case(a_fleet(a_node()), None, None, []), pod).message
    assert "namespace kube-system" in said and "group team" in said
    assert "webhooks.excludedNamespaces" in said and "--excluded-namespaces" in said
    assert contract.GROUP not in pod.metadata.annotations
