"""The API objects that only the doctor reads, with the fields that it judges."""

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final, NamedTuple

from msgspec import Struct, field, to_builtins

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.settings import GATES
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import Quantity
from deviceshare.loops.ports import ApiError, Cluster, Kind


class Attributes(Struct, frozen=True, omit_defaults=True):
    """One action on a resource; an empty name or namespace means all."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """As `kubectl auth can-i` takes it: `patch nodedevices/status.deviceshare.io`."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{f'.{self.group}' if self.group else ''}{where}"


async def are_granted(api: Cluster, rights: Iterable[Attributes], user: str = "") -> list[bool]:
    """Whether this user, or else the person who asks, has each of the rights; asked all at once. Raises ApiError."""
    subject: dict[str, Any] = {}
    if user:
        namespace = user.split(":")[2] if user.startswith("system:serviceaccount:") else ""
        groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        subject = {"user": user, "groups": groups if namespace else groups[:1]}
    kind = ACCESS if user else OWN_ACCESS
    try:
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(api.create(kind, {"spec": {"resourceAttributes": to_builtins(right), **subject}}))
                for right in rights
            ]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [each.result().status.get("allowed") is True for each in asked]


class AccessReview(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/"""

    status: dict[str, Any] = field(default_factory=dict)


class WorkContainer(Struct, frozen=True, rename="camel"):
    name: str = ""
    image: str = ""
    command: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    volume_mounts: list[dict[str, Any]] = field(default_factory=list)

    def flag(self, name: str) -> str | None:
        """The value of `--NAME=VALUE`, or of `--NAME VALUE`."""
        for word, following in pairwise([*self.command, *self.args, ""]):
            flag, equals, value = word.partition("=")
            if flag == f"--{name}":
                return value if equals else following
        return None


class WorkPodSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    containers: list[WorkContainer] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)


class WorkTemplate(Struct, frozen=True):
    spec: WorkPodSpec = WorkPodSpec()


class RolloutSpec(Struct, frozen=True):
    replicas: int = 1
    template: WorkTemplate = WorkTemplate()


class WorkloadStatus(Struct, frozen=True, rename="camel"):
    ready_replicas: int = 0
    desired_number_scheduled: int = 0
    number_ready: int = 0


class Rollout(NamedObject, frozen=True):
    """A Deployment or a DaemonSet: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/deployment-v1/"""

    spec: RolloutSpec = RolloutSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def containers(self) -> list[WorkContainer]:
        return self.spec.template.spec.containers


class Installation(NamedTuple):
    """deviceshare's own: the namespace that it runs in and, where they are there and can be seen, its workloads."""

    namespace: str
    deployment: Rollout | None = None
    agents: Rollout | None = None
    """Their DaemonSet."""
    unseen: ApiError | None = None
    """Why one of the two may be there all the same."""
    sample: Pod | ApiError | None = None
    """What came of a pod of a group, created as a dry run, where no Deployment says how pods are placed."""

    def container(self, name: str) -> WorkContainer | None:
        every = self.deployment.containers if self.deployment else ()
        return next((each for each in every if each.name == name), None)

    def flag(self, name: str) -> str | None:
        """The value of a flag of `deviceshare run`."""
        own = self.container(contract.NAME)
        return own.flag(name) if own else None

    @property
    def user(self) -> str:
        """As whom it speaks to the API server."""
        return self.flag("identity") or f"system:serviceaccount:{self.namespace}:{contract.NAME}"

    @property
    def by_gates(self) -> bool:
        """Whether it places pods behind scheduling gates, without a kube-scheduler of its own."""
        gates = self.sample.spec.scheduling_gates if isinstance(self.sample, Pod) else ()
        return self.flag("placement") == GATES or contract.PLACEMENT_GATE in {gate.name for gate in gates}


class ConfigMap(NamedObject, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/config-map-v1/"""

    data: dict[str, str] = field(default_factory=dict)


class SchedulerPod(NamedObject, frozen=True):
    """A pod that runs a kube-scheduler."""

    spec: WorkPodSpec = WorkPodSpec()

    @property
    def config(self) -> str:
        """The file with its configuration, as the container names it, or ""."""
        return next(filter(None, (each.flag("config") for each in self.spec.containers)), "") or ""

    @property
    def config_map(self) -> tuple[str, str] | None:
        """The ConfigMap that the file comes from, and the key in it; None where it comes from elsewhere."""
        directory, _, file = self.config.rpartition("/")
        maps = {each.get("name"): each.get("configMap") for each in self.spec.volumes}
        mounts = (mount for container in self.spec.containers for mount in container.volume_mounts)
        found = (maps.get(each.get("name")) for each in mounts if str(each.get("mountPath")).rstrip("/") == directory)
        return next(((each.get("name", ""), file) for each in found if each), None)


class RuntimeClass(NamedObject, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/runtime-class-v1/"""

    handler: str = ""


class MachineStatus(Struct, frozen=True, rename="camel"):
    allocatable: dict[str, Quantity] = field(default_factory=dict)
    node_info: dict[str, Any] = field(default_factory=dict)
    runtime_handlers: list[dict[str, Any]] = field(default_factory=list)
    """The node's runtimes; reported from Kubernetes 1.30 on."""


class NodeSoftware(NamedObject, frozen=True):
    """A node's software."""

    status: MachineStatus = field(default_factory=MachineStatus)

    @property
    def runtime(self) -> str:
        """As in `containerd://1.7.30`."""
        return str(self.status.node_info.get("containerRuntimeVersion", ""))

    @property
    def handlers(self) -> set[str]:
        return {each.get("name", "") for each in self.status.runtime_handlers}

    @property
    def has_nvidia(self) -> bool:
        inventory = self.metadata.annotations.get(contract.INVENTORY_ANNOTATION, "")
        return vendors.NVIDIA.resource in inventory or any(map(vendors.NVIDIA.allocates, self.status.allocatable))


class PolicyCdi(Struct, frozen=True, rename="camel"):
    enabled: bool | None = None
    nri_plugin_enabled: bool | None = None


class PolicySpec(Struct, frozen=True):
    cdi: PolicyCdi = PolicyCdi()


class ClusterPolicy(NamedObject, frozen=True):
    """NVIDIA's GPU operator: https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html"""

    spec: PolicySpec = PolicySpec()


_APPS, _AUTHORIZATION = "apps/v1", "authorization.k8s.io/v1"

OWN_ACCESS: Final = Kind(
    _AUTHORIZATION, "SelfSubjectAccessReview", "selfsubjectaccessreviews", AccessReview, namespaced=False
)
ACCESS: Final = Kind(_AUTHORIZATION, "SubjectAccessReview", "subjectaccessreviews", AccessReview, namespaced=False)
DEPLOYMENTS: Final = Kind(_APPS, "Deployment", "deployments", Rollout, namespaced=True)
DAEMON_SETS: Final = Kind(_APPS, "DaemonSet", "daemonsets", Rollout, namespaced=True)
CONFIG_MAPS: Final = Kind("v1", "ConfigMap", "configmaps", ConfigMap, namespaced=True)
SCHEDULER_PODS: Final = Kind("v1", "Pod", "pods", SchedulerPod, namespaced=True)
RUNTIME_CLASSES: Final = Kind("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", RuntimeClass, namespaced=False)
MACHINES: Final = Kind("v1", "Node", "nodes", NodeSoftware, namespaced=False)
CLUSTER_POLICIES: Final = Kind("nvidia.com/v1", "ClusterPolicy", "clusterpolicies", ClusterPolicy, namespaced=False)
