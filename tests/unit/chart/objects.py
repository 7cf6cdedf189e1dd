"""The chart's variants, and its objects by kind and name."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from charts import helm

Json = dict[str, Any]

VARIANTS: Final = sorted(file.name.removesuffix("-values.yaml") for file in (helm.CHART / "ci").iterdir())
"""Each has a file of values in the chart's ci/."""

VERSIONS: Final = (
    "1.20.2",
    "1.21.14",
    "1.22.17",
    "1.23.17",
    "1.25.16",
    "1.27.16",
    "1.28.15",
    "1.29.15",
    "1.34.0",
    "1.36.0",
)
"""Kubernetes at each border between two ways to say something."""


NOT_KUBERNETES: Final = {"cert-manager.io/v1", "monitoring.coreos.com/v1", "security.openshift.io/v1"}
"""APIs that other projects bring."""


def variant(name: str) -> Json:
    """The values of a variant."""
    values: Json = yaml.safe_load((helm.CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


def able(name: str, versions: Iterable[str]) -> list[str]:
    """Those of the versions on which a variant can be installed: policies need a new one."""
    policies = variant(name).get("admission") == "policies"
    return [each for each in versions if not policies or int(each.split(".")[1]) >= 36]


def pairs(versions: Iterable[str]) -> list[tuple[str, str]]:
    """Every variant with every version on which it can be installed."""
    chosen = list(versions)
    return [(name, version) for name in VARIANTS for version in able(name, chosen)]


def rendered(name: str, *changes: Mapping[str, Any]) -> list[Json]:
    """A variant's objects, with further values, for the usual version, or the first on which it can be installed."""
    version = able(name, (helm.CURRENT, helm.WITH_POLICIES))[0]
    return helm.render(with_values(variant(name), *changes), version)


def named(objects: Iterable[Json], kind: str, name: str = "deviceshare") -> Json:
    """The only object of this kind and name; raises ValueError unless there is exactly one."""
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def deployed(objects: Iterable[Json]) -> Json:
    """The pod's spec of the only Deployment, whatever it is called."""
    [found] = [each for each in objects if each["kind"] == "Deployment"]
    spec: Json = found["spec"]["template"]["spec"]
    return spec


def containers(objects: Iterable[Json]) -> dict[str, Json]:
    """The Deployment's containers by name."""
    return {each["name"]: each for each in deployed(objects)["containers"]}


def default_file(name: str) -> str:
    """A file of the chart, as text."""
    return Path(helm.CHART / name).read_text()


def with_values(*parts: Mapping[str, Any]) -> Json:
    """Values put together; maps are merged, as Helm does with several -f."""
    merged: Json = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = with_values(merged[key], value) if both else value
    return merged
