"""Workloads as in manifests, and the pods that their controllers would create from them."""

import re
from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.nodes import Affinity, NodeAffinity, NodeRequirement, NodeTerm, NodeTerms, Toleration
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.objects.pod_spec import Container, EnvSource, EnvVar, FieldRef
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import ShareRequest

# Pod templates in objects of any kind: whatever in them looks like a PodTemplateSpec, and how many pods it makes.
#
# Custom resources such as RayClusters, PyTorchJobs, JobSets and Rollouts contain the template of the built-in
# workloads,
# each at a path of its own, so it is known by its shape: a mapping whose `spec` has a list of `containers`.
# https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-template-v1/#PodTemplateSpec

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
    containers = spec.get("containers") if isinstance(spec, dict) else None
    if isinstance(containers, list) and containers and all(isinstance(each, dict) for each in containers):
        return value
    if key == "templates" and isinstance(container, dict) and "image" in container:
        # A step of an Argo Workflow, whose pod takes its metadata: https://argo-workflows.readthedocs.io/en/latest/fields/#template
        return {
            "metadata": value.get("metadata") or {},
            "spec": {**value, "containers": [{"name": "main", **container}]},
        }
    return None


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


class WorkloadSpec(Struct, frozen=True, gc=False, rename="camel"):
    """What Deployments and the like (`replicas`), Jobs (the rest), CronJobs and DaemonSets have in common."""

    template: Pod = field(default_factory=Pod)
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-template-v1/"""
    replicas: int = 1
    parallelism: int = 1
    completions: int | None = None
    job_template: "Workload | None" = None
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/cron-job-v1/"""


class Workload(NamedObject, frozen=True, gc=False, rename="camel"):
    spec: WorkloadSpec = field(default_factory=WorkloadSpec)


WORKLOADS: Final = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Job", "CronJob")
"""By kind: those whose number of pods doesn't depend on nodes."""
DAEMON_SET: Final = "DaemonSet"


def count_of(kind: str, spec: WorkloadSpec) -> int:
    """How many pods run at once."""
    return min(spec.parallelism, spec.completions or spec.parallelism) if kind == "Job" else spec.replicas


def pods_of(template: Pod, name: str, namespace: str, count: int) -> list[Pod]:
    """Pods of a template, numbered from 0 as a StatefulSet numbers its own; not admitted yet."""
    return [pod_of(template, f"{name}-{number}", namespace) for number in range(count)]


def pod_of(template: Pod, name: str, namespace: str) -> Pod:
    """One pod, likewise. A template has no status: one that was copied from a pod says nothing of its pods."""
    return Pod(replace(template.metadata, name=name, namespace=namespace), template.spec)


def pod_on(pod: Pod, node: str) -> Pod:
    """A DaemonSet's pod as its controller makes it for the node, which its affinity names.

    https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#how-daemon-pods-are-scheduled
    """
    only = NodeRequirement("metadata.name", "In", [node])
    terms = pod.spec.affinity.terms if pod.spec.affinity else None
    pinned = [replace(term, match_fields=[only]) for term in terms or [NodeTerm()]]
    affinity = Affinity(NodeAffinity(NodeTerms(pinned)))
    metadata = replace(pod.metadata, name=f"{pod.metadata.name}-{node}")
    return replace(pod, metadata=metadata, spec=replace(pod.spec, affinity=affinity))


def admitted(pod: Pod, other_schedulers: Collection[str] = ()) -> Pod:
    """A pod as it is injected: with the label, our scheduler, tolerations, and containers that read their devices.

    A pod with a share is taken from `other_schedulers`, too.
    """
    labels: Mapping[str, str] = {**pod.metadata.labels, contract.GROUP: pod.group}
    share, named = pod.share, pod.spec.scheduler_name
    tolerated = (Toleration(key, "Exists", effect="NoSchedule") for key in (share.of if share else vendors.TAINTS))
    taken = named in ("", contract.DEFAULT_SCHEDULER_NAME) or (share and named in other_schedulers)
    spec = replace(
        pod.spec,
        scheduler_name=contract.SCHEDULER_NAME if taken else named,
        containers=[_injected(container, share) for container in pod.spec.containers],
        init_containers=[_injected(container, share) for container in pod.spec.init_containers],
        tolerations=[*pod.spec.tolerations, *tolerated],
    )
    return replace(pod, metadata=replace(pod.metadata, labels=dict(labels)), spec=spec)


def _injected(container: Container, share: ShareRequest) -> Container:
    paths = {vendor.env: vendor.field_path for vendor in vendors.VENDORS}
    for vendor in vendors.vendors_of(share.of) if share.container(container.name) else ():
        paths[vendor.env] = shares.field_path(shares.devices_of_container(vendor, container.name))
    ours = [EnvVar(name, EnvSource(FieldRef(path))) for name, path in paths.items()]
    return replace(container, env=[*ours, *(each for each in container.env if each.name not in paths)])
