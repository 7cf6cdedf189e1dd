"""Workloads as in manifests, and the pods that their controllers would create from them."""

from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects import container_keys
from deviceshare.domain.objects.node_affinity import Affinity, NodeAffinity, NodeRequirement, NodeTerm, NodeTerms
from deviceshare.domain.objects.object_meta import ObjectMeta
from deviceshare.domain.objects.pod_spec import Container, EnvSource, EnvVar, FieldRef, PodSpec
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import ShareRequest


class Template(Struct, frozen=True, gc=False, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-template-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: PodSpec = field(default_factory=PodSpec)


class WorkloadSpec(Struct, frozen=True, gc=False, rename="camel"):
    """What Deployments and the like (`replicas`), Jobs (the rest) and DaemonSets have in common."""

    template: Template = field(default_factory=Template)
    replicas: int = 1
    parallelism: int = 1
    completions: int | None = None


class Workload(Struct, frozen=True, gc=False, rename="camel"):
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: WorkloadSpec = field(default_factory=WorkloadSpec)


class CronJobSpec(Struct, frozen=True, gc=False, rename="camel"):
    job_template: Workload = field(default_factory=Workload)


class CronJob(Struct, frozen=True, gc=False, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/cron-job-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: CronJobSpec = field(default_factory=CronJobSpec)

    @property
    def job(self) -> Workload:
        """One run."""
        return replace(self.spec.job_template, metadata=self.metadata)


WORKLOADS: Final = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Job")
"""By kind: those whose number of pods doesn't depend on nodes."""
DAEMON_SET: Final = "DaemonSet"


def count_of(kind: str, spec: WorkloadSpec) -> int:
    """How many pods run at once."""
    return min(spec.parallelism, spec.completions or spec.parallelism) if kind == "Job" else spec.replicas


def pods_of(template: Template, name: str, namespace: str, count: int) -> list[Pod]:
    """Pods of a template, numbered from 0 as a StatefulSet numbers its own; not admitted yet."""
    return [pod_of(template, f"{name}-{number}", namespace) for number in range(count)]


def pod_of(template: Template, name: str, namespace: str) -> Pod:
    """One pod, likewise."""
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
    """A pod as it is injected: with the label, our scheduler, and containers that read their devices.

    A pod with a share is taken from `other_schedulers`, too.
    """
    labels: Mapping[str, str] = {**pod.metadata.labels, contract.GROUP: pod.group}
    share, named = pod.share, pod.spec.scheduler_name
    taken = named in ("", contract.DEFAULT_SCHEDULER_NAME) or (share and named in other_schedulers)
    spec = replace(
        pod.spec,
        scheduler_name=contract.SCHEDULER_NAME if taken else named,
        containers=[_injected(container, share) for container in pod.spec.containers],
        init_containers=[_injected(container, share) for container in pod.spec.init_containers],
    )
    return replace(pod, metadata=replace(pod.metadata, labels=dict(labels)), spec=spec)


def _injected(container: Container, share: ShareRequest) -> Container:
    paths = {vendor.env: vendor.field_path for vendor in vendors.VENDORS}
    for vendor in vendors.vendors_of(share.of) if share.container(container.name) else ():
        paths[vendor.env] = container_keys.field_path(container_keys.devices_of_container(vendor, container.name))
    ours = [EnvVar(name, EnvSource(FieldRef(path))) for name, path in paths.items()]
    return replace(container, env=[*ours, *(each for each in container.env if each.name not in paths)])
