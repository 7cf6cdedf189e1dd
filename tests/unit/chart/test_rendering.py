"""Every variant of the chart, as Helm renders it, against what Kubernetes accepts."""

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import kubernetes_validate
import pytest
from helm_python import HelmError

from charts import helm, values
from release import chart_package
from tests.unit.chart.objects import (
    NOT_KUBERNETES,
    VARIANTS,
    VERSIONS,
    able,
    containers,
    named,
    pairs,
    rendered,
    variant,
)

Json = dict[str, Any]

SCHEMAS = ("1.25.0", "1.29.0", "1.34.0", "1.36.0", kubernetes_validate.latest_version())


@pytest.mark.parametrize("name", VARIANTS)
def test_helm_finds_nothing_to_complain_about(name: str) -> None:
    """`helm lint --strict`, for the oldest and the newest cluster."""
    for version in able(name, ("1.20.2", helm.CURRENT, "1.36.0")):
        assert helm.complaints(variant(name), version) == []


@pytest.mark.parametrize(("name", "version"), pairs(SCHEMAS))
def test_every_object_fits_the_schema_of_its_kubernetes(name: str, version: str) -> None:
    """Strictly: a field that this version doesn't know is refused, too."""
    for each in helm.render(variant(name), version):
        if each["apiVersion"] not in NOT_KUBERNETES:
            validate(json.dumps(each), version)


@functools.cache  # Most objects are the same in most variants.
def validate(text: str, version: str) -> None:
    """Raises ValidationError unless this JSON fits its schema."""
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def test_the_schemas_refuse_what_is_not_there() -> None:
    """Or the test above would show nothing."""
    deployment = named(helm.render({}), "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}

    with pytest.raises(kubernetes_validate.ValidationError, match="livenessprobe"):
        validate(json.dumps(deployment), "1.34.0")


@pytest.mark.parametrize(("name", "version"), pairs(VERSIONS))
def test_no_two_objects_have_the_same_name(name: str, version: str) -> None:
    """Helm would install whichever came last."""
    keys = [(each["kind"], each["metadata"]["name"]) for each in helm.render(variant(name), version)]

    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_is_put_into_another_namespace(name: str) -> None:
    """Rights in one namespace are enough to install all that isn't cluster-wide."""
    namespaces = {each["metadata"].get("namespace") for each in rendered(name)}

    assert namespaces <= {helm.NAMESPACE, None}


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"roles": ["controler"]}, "roles"),
        ({"scheduler": {"image": {"tagg": "v1"}}}, "tagg"),
        ({"image": {"digest": "sha256:0"}}, "digest"),
    ],
    ids=str,
)
def test_a_value_that_means_nothing_is_refused(values: Json, place: str) -> None:
    """A misspelt one would else be ignored for years."""
    with pytest.raises(HelmError, match=place):
        helm.render(values)


def test_an_extender_on_the_network_needs_a_certificate() -> None:
    """Refused with the way out, not installed without."""
    with pytest.raises(HelmError, match=r"extender\.tlsSecret is needed.*certManager\.enabled=true"):
        helm.render({"scheduler": {"enabled": False}})


def test_the_chart_is_of_deviceshares_version() -> None:
    """Its appVersion is the image's tag."""
    assert (
        containers(helm.render({}))["deviceshare"]["image"]
        == f"localhost/deviceshare:{chart_package.metadata()['appVersion']}"
    )


def test_a_digest_counts_instead_of_a_tag() -> None:
    """Registries take one or the other."""
    digest = "sha256:" + "1" * 64
    image = {"registry": "registry.example.com", "tag": "ignored", "digest": digest}

    assert containers(helm.render({"image": image}))["deviceshare"]["image"] == (
        f"registry.example.com/deviceshare@{digest}"
    )


def test_rights_are_named_one_by_one() -> None:
    """No wildcard, and nothing beyond devices, pods and the release's own objects is written."""
    rules = [rule for each in helm.render({}) for rule in each.get("rules", ()) if each["kind"].endswith("Role")]

    assert rules
    assert "*" not in json.dumps(rules)


@pytest.mark.parametrize("role", ["controller", "extender"])
def test_a_role_that_is_not_played_brings_no_rights(role: str) -> None:
    """`roles` decides."""
    others = [each for each in ("controller", "extender", "webhook") if each != role]
    names = {each["metadata"]["name"] for each in helm.render({"roles": others}) if each["kind"] == "ClusterRole"}

    assert f"deviceshare-{role}" not in names
    assert {f"deviceshare-{each}" for each in others} <= names


def test_crds_can_be_left_to_others() -> None:
    """crds.enabled."""
    assert [each for each in helm.render({"crds": {"enabled": False}}) if each["kind"].startswith("Custom")] == []


@pytest.mark.parametrize("keep", [True, False])
def test_crds_outlive_the_release_unless_told_otherwise(keep: bool) -> None:
    """crds.keep: with a CRD go all its objects."""
    crds = [each for each in helm.render({"crds": {"keep": keep}}) if each["kind"] == "CustomResourceDefinition"]

    assert len(crds) == 3
    for crd in crds:
        assert crd["metadata"].get("annotations", {}) == ({"helm.sh/resource-policy": "keep"} if keep else {})


def test_an_upgrade_leaves_alone_what_deviceshare_writes() -> None:
    """Helm owns the CA's Secret, to take it away in the end, but nothing that is in it; who leads makes the leases."""
    objects = helm.render({})

    assert named(objects, "Secret", "deviceshare-ca").keys() == {"apiVersion", "kind", "metadata", "type"}
    assert not [each for each in objects if each["kind"] == "Lease"]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        assert "caBundle" not in json.dumps(named(objects, kind))


def test_no_service_is_disrupted_by_protecting_a_single_pod() -> None:
    """A budget of one pod of one would stop every node drain."""
    kinds = {each["kind"] for each in helm.render({"replicas": 1})}

    assert "PodDisruptionBudget" not in kinds


def sections(found: Sequence[values.Value]) -> Iterator[tuple[str, ...]]:
    """The paths of all groups of values but `global`, which may be empty."""
    for each in found:
        if each.children and each.path != ("global",):
            yield each.path
            yield from sections(each.children)


@pytest.mark.parametrize("path", list(sections(values.read(helm.CHART / "values.yaml"))), ids=".".join)
def test_a_section_that_is_null_is_named(path: tuple[str, ...]) -> None:
    """Helm takes the key away then, and a template would fail with a nil pointer that names none."""
    given: Any = None
    for key in reversed(path):
        given = {key: given}
    with pytest.raises(HelmError, match=f"missing property '{path[-1]}'"):
        helm.render(given)
