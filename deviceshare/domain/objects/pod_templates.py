"""Pod templates in objects of any kind: whatever in them looks like a PodTemplateSpec, and how many pods it makes.

Custom resources such as RayClusters, PyTorchJobs, JobSets and Rollouts contain the template of the built-in workloads,
each at a path of its own, so it is known by its shape: a mapping whose `spec` has a list of `containers`.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-template-v1/#PodTemplateSpec
"""

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final, NamedTuple

DEEPEST: Final = 24
"""Levels below the object; no kind known nests templates in more than ten."""


class FoundTemplate(NamedTuple):
    """A template as written."""

    path: str
    """As `.spec.workerGroupSpecs[0].template`."""
    body: Mapping[str, Any]
    pods: int
    """How many its controller runs at once, as the fields beside it and above it say."""
    name: str
    """What tells it from others of the object: the name beside it, or the key above it, or ""."""


def templates_in(document: Mapping[str, Any]) -> Iterator[FoundTemplate]:
    """The outermost templates in an object, in its own order; the object itself is none."""
    for key, value in document.items():
        if key != "status":
            yield from _within(value, (str(key),), (document,))


def _within(value: Any, path: tuple[str, ...], above: tuple[Mapping[str, Any], ...]) -> Iterator[FoundTemplate]:
    """`path` has the keys, each with its place in a list behind it; `above` the mappings that they lead through."""
    if len(path) > DEEPEST:
        return
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _within(each, (*path[:-1], f"{path[-1]}[{number}]"), above)
    elif isinstance(value, dict):
        key = path[-1].partition("[")[0]
        if (body := _template(value, key)) is not None:
            pods = _of_leader_and_workers(key, above[-1]) * prod(map(_copies, above))
            yield FoundTemplate(
                f".{'.'.join(path)}", body, pods, _name(path, value if key == "templates" else above[-1])
            )
            return
        for inner, each in value.items():
            yield from _within(each, (*path, str(inner)), (*above, value))


def _template(value: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
    spec, container = value.get("spec"), value.get("container")
    if isinstance(spec, dict) and _are_containers(spec.get("containers")):
        return value
    if key == "templates" and isinstance(container, dict) and "image" in container:
        # A step of an Argo Workflow, whose pod takes its metadata: https://argo-workflows.readthedocs.io/en/latest/fields/#template
        return {
            "metadata": value.get("metadata") or {},
            "spec": {**value, "containers": [{"name": "main", **container}]},
        }
    return None


def _are_containers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _copies(mapping: Mapping[str, Any]) -> int:
    """How often what is in the mapping exists: its `replicas`, or as a Job's."""
    if (replicas := _number(mapping, "replicas")) is not None:
        return replicas
    parallelism, completions = _number(mapping, "parallelism"), _number(mapping, "completions")
    if parallelism is None:
        return 1
    return parallelism if completions is None else min(parallelism, completions)


def _number(mapping: Mapping[str, Any], key: str) -> int | None:
    value = mapping.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _of_leader_and_workers(key: str, beside: Mapping[str, Any]) -> int:
    """How many of a group of LeaderWorkerSet's: https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/"""
    if key != "workerTemplate" or (size := _number(beside, "size")) is None:
        return 1
    return max(size - 1, 0) if "leaderTemplate" in beside else size


_COMMON: Final = frozenset({"spec", "template", "podTemplate", "jobTemplate"})


def _name(path: tuple[str, ...], beside: Mapping[str, Any]) -> str:
    named = next((beside[key] for key in ("groupName", "name") if isinstance(beside.get(key), str)), "")
    last = next((key for key in reversed(path) if key not in _COMMON), "")
    return re.sub(r"[^a-z0-9]+", "-", (named or last).lower()).strip("-")
