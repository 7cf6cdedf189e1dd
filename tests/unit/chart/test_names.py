"""What the chart's objects are called, and which labels and annotations all of them have."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest
from helm_python import HelmError

from charts import helm
from deviceshare.domain import contract
from tests.unit.chart.objects import VARIANTS, able, containers, deployed, named, rendered, variant, with_values

Json = dict[str, Any]

EVERYTHING: Final = {
    "agent": {"enabled": True, "placeholders": [{"name": "a", "devices": 1}]},
    "metrics": {each: {"enabled": True} for each in ("serviceMonitor", "dashboard", "prometheusRule")},
    "openshift": True,
}
COMMON: Final = {
    "commonLabels": {"example.com/team": "gpu", "app.kubernetes.io/part-of": "ml"},
    "commonAnnotations": {"example.com/contact": "gpu@example.com"},
}
RELEASE: Final = "app.kubernetes.io/instance"
KEPT: Final = {
    "CustomResourceDefinition",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "PriorityClass",
    "Secret",
    "ServiceAccount",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
}
"""Kinds whose objects others know by name, or that have a value of their own for it."""


def selectors(value: Any) -> Iterator[Json]:
    """Every selector of pods or Services in an object."""
    if isinstance(value, list):
        for each in value:
            yield from selectors(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in ("selector", "podSelector", "labelSelector") and isinstance(each, dict):
                yield each.get("matchLabels", each)
            yield from selectors(each)


def chosen(objects: Iterable[Json]) -> list[Json]:
    """The selectors of all objects but CRDs, in order."""
    kinds = [each for each in objects if each["kind"] != "CustomResourceDefinition"]
    return [found for each in kinds for found in selectors(each)]


@pytest.mark.parametrize("version", ["1.20.2", helm.CURRENT, helm.WITH_POLICIES])
@pytest.mark.parametrize("values", [COMMON, {"fullnameOverride": "gpus"}, {"nameOverride": "gpus"}])
def test_no_value_changes_a_selector(values: Json, version: str) -> None:
    """A Deployment's can't be changed: an upgrade with another value would fail."""
    objects = helm.render(EVERYTHING, version)
    found = chosen(objects)

    assert len(found) > 8
    assert {each[RELEASE] for each in found} == {"deviceshare"}
    names = {each["app.kubernetes.io/name"] for each in found}
    assert names == {"deviceshare", "deviceshare-agent", "deviceshare-placeholder"}
    assert chosen(helm.render(with_values(EVERYTHING, values), version)) == found


def templates(objects: Iterable[Json]) -> Iterator[Json]:
    """The pods' metadata, as their Deployment or DaemonSets have it."""
    return (each["spec"]["template"]["metadata"] for each in objects if "template" in each.get("spec", {}))


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_common_is_on_every_object_and_pod(name: str) -> None:
    """And takes nothing away that was there."""
    plain, marked = rendered(name), rendered(name, COMMON)

    for before, after in zip(
        [*(each["metadata"] for each in plain), *templates(plain)],
        [*(each["metadata"] for each in marked), *templates(marked)],
        strict=True,
    ):
        assert COMMON["commonLabels"].items() <= after["labels"].items(), after
        assert COMMON["commonAnnotations"].items() <= after["annotations"].items(), after
        assert before["labels"].keys() <= after["labels"].keys()
        assert before.get("annotations", {}).keys() <= after["annotations"].keys()


@pytest.mark.parametrize(
    "values",
    [
        {"commonLabels": {"app.kubernetes.io/name": "mine"}},
        {"commonLabels": {"deviceshare.io/placeholder": "a"}},
        {"commonAnnotations": {"deviceshare.io/group": "a"}},
    ],
)
def test_what_is_common_can_not_be_what_deviceshare_reads(values: Json) -> None:
    """Selectors and commands go by these."""
    [(key, _)] = [pair for labels in values.values() for pair in labels.items()]
    with pytest.raises(HelmError, match=key):
        helm.render(values)


def test_labels_of_the_pods_count_before_common_ones_and_after_selectors() -> None:
    """Whoever sets one of a selector would have a Deployment that matches no pod."""
    own = {"podLabels": {"example.com/team": "a", "app.kubernetes.io/name": "mine"}}
    [labels] = [each["labels"] for each in templates(helm.render(with_values(COMMON, own)))]

    assert labels["example.com/team"] == "a"
    assert labels["app.kubernetes.io/name"] == "deviceshare"


@pytest.mark.parametrize("version", ["1.20.2", helm.CURRENT, helm.WITH_POLICIES])
@pytest.mark.parametrize("value", ["fullnameOverride", "nameOverride"])
def test_other_names_are_the_same_objects(value: str, version: str) -> None:
    """Only what others know by name keeps it."""
    plain = {(each["kind"], each["metadata"]["name"]) for each in helm.render(EVERYTHING, version)}
    other = {(each["kind"], each["metadata"]["name"]) for each in helm.render({**EVERYTHING, value: "gpus"}, version)}

    people = {("ClusterRole", f"deviceshare-{role}") for role in ("view", "edit", "recover", "top")}
    kept = {each for each in plain if each[0] in KEPT} | people
    assert other == {(kind, re.sub("^deviceshare", "gpus", name)) for kind, name in plain - kept} | kept


def test_the_full_name_counts_before_the_other() -> None:
    """As in other charts."""
    objects = helm.render({"fullnameOverride": "a", "nameOverride": "b"})

    assert {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"} == {"a"}


@pytest.mark.parametrize(
    "values",
    [
        {"fullnameOverride": "gpus"},
        {"fullnameOverride": "gpus", "certManager": {"enabled": True}},
        {"fullnameOverride": "gpus", "certManager": {"enabled": True}, "scheduler": {"enabled": False}},
    ],
    ids=str,
)
def test_what_refers_to_an_object_by_another_name_finds_it(values: Json) -> None:
    """The webhooks their Service and certificate, bindings their roles, pods their volumes."""
    objects = helm.render(with_values(EVERYTHING, values))
    keys = {(each["kind"], each["metadata"]["name"]) for each in objects}
    keys |= {("Secret", each["spec"]["secretName"]) for each in objects if each["kind"] == "Certificate"}

    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in named(objects, kind)["webhooks"]:
            assert ("Service", webhook["clientConfig"]["service"]["name"]) in keys
    for each in objects:
        role = each.get("roleRef")
        assert role is None or (role["kind"], role["name"]) in keys or role["name"].startswith("system:")
    for volume in deployed(objects)["volumes"]:
        kind = "Secret" if "secret" in volume else "ConfigMap"
        assert (kind, volume["secret"]["secretName"] if "secret" in volume else volume["configMap"]["name"]) in keys
    flags = dict(flag.split("=", 1) for flag in containers(objects)["deviceshare"]["args"][1:])
    if "certManager" not in values:
        assert ("Service", flags["--webhook-service"]) in keys
    certified = {name for each in objects if each["kind"] == "Certificate" for name in each["spec"].get("dnsNames", ())}
    service = named(objects, "Service", "gpus")["metadata"]
    assert not certified or f"{service['name']}.{service['namespace']}.svc" in certified


def test_no_name_gets_too_long() -> None:
    """A Service's has at most 63 characters: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"""
    service = {"agent": {"pods": {"through": "service"}}, "scheduler": {"enabled": False}}
    values = with_values(EVERYTHING, service, {"certManager": {"enabled": True}, "fullnameOverride": "n" * 40})
    names = [each["metadata"]["name"] for each in helm.render(values) if each["kind"] == "Service"]

    assert len(names) == 5
    assert max(map(len, names)) <= 63
    for fault in ("n" * 41, "1a", "A", "a_b", "a-"):
        with pytest.raises(HelmError, match="fullnameOverride"):
            helm.render({"fullnameOverride": fault})


@pytest.mark.parametrize("name", VARIANTS)
def test_one_value_gives_every_image_a_registry(name: str) -> None:
    """global.imageRegistry, as in other charts."""
    objects = rendered(name, {"global": {"imageRegistry": "mirror.example.com:5000/a"}})
    text = json.dumps(objects)

    images = re.findall(r'"image": "([^"]+)"', text)
    assert len(images) >= 1
    assert all(image.startswith("mirror.example.com:5000/a/") for image in images)


def test_values_of_other_charts_may_be_global() -> None:
    """Helm passes them to every chart of an umbrella."""
    assert helm.render({"global": {"storageClass": "fast"}})


def test_the_notes_name_the_extender_as_it_is_called() -> None:
    """Whoever installs the chart writes that name into the scheduler's configuration."""
    values = {"fullnameOverride": "gpus", "scheduler": {"enabled": False}, "certManager": {"enabled": True}}
    notes = helm.render_files(values)["templates/NOTES.txt"]

    assert f"https://gpus-extender.{helm.NAMESPACE}.svc." in notes


@pytest.mark.parametrize("name", ["commonLabels", "commonAnnotations", "global", "podLabels", "podAnnotations"])
def test_a_map_that_is_null_is_an_empty_one(name: str) -> None:
    """As an umbrella chart's values often have it."""
    assert helm.render(with_values(EVERYTHING, {name: None})) == helm.render(EVERYTHING)


def test_commands_find_what_is_called_otherwise() -> None:
    """By the labels that every name leaves as they are."""
    objects = helm.render({**EVERYTHING, "fullnameOverride": "gpus"})
    for kind, name, label in (("Deployment", "gpus", contract.NAME), ("DaemonSet", "gpus-agent", contract.AGENT)):
        assert named(objects, kind, name)["metadata"]["labels"]["app.kubernetes.io/name"] == label


def test_every_variant_is_still_one_that_can_be_installed() -> None:
    """Or the tests above would compare nothing."""
    assert all(able(name, [helm.CURRENT, helm.WITH_POLICIES]) for name in VARIANTS)
    assert variant("monitored")["fullnameOverride"]
