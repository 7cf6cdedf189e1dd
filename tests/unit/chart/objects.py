"""The chart's variants, and its objects by kind and name."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from charts import helm

Json = dict[str, Any]

VARIANTS: Final = sorted(file.name.removesuffix("-values.yaml") for file in (helm.CHART / "ci").iterdir())
"""Each has a file of values in the chart's ci/."""

VERSIONS: Final = ("1.20.2", "1.21.14", "1.22.17", "1.23.17", "1.25.16", "1.27.16", "1.28.15", "1.29.15", "1.34.0")
"""Kubernetes at each border between two ways to say something."""

NOT_KUBERNETES: Final = {"cert-manager.io/v1", "monitoring.coreos.com/v1"}
"""APIs that other projects bring."""


def variant(name: str) -> Json:
    """The values of a variant."""
    values: Json = yaml.safe_load((helm.CHART / "ci" / f"{name}-values.yaml").read_text())
    return values


def named(objects: Iterable[Json], kind: str, name: str = "deviceshare") -> Json:
    """The only object of this kind and name; raises ValueError unless there is exactly one."""
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def containers(objects: Iterable[Json]) -> dict[str, Json]:
    """The Deployment's containers by name."""
    return {each["name"]: each for each in named(objects, "Deployment")["spec"]["template"]["spec"]["containers"]}


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
