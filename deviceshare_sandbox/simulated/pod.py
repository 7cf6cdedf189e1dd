"""Pods as a kubelet reads them: what runs, with which environment, and in which phase."""

from typing import Any, Final

from msgspec import Struct, field

from deviceshare.domain.objects.object_meta import ObjectMeta
from deviceshare.domain.objects.pod_spec import EnvSource
from deviceshare.loops.ports import Kind

Json = dict[str, Any]

ENV: Final = "sandbox.deviceshare.io/env"
"""Pod annotation, ours: JSON `{container: {NAME: value}}`, the environment that each container was started with."""
RUN_FOR: Final = "sandbox.deviceshare.io/run-for"
"""Pod annotation, the user's: seconds after which the pod's containers exit with success."""
SIMULATED: Final = "sandbox.deviceshare.io/simulated"
"""Label of the nodes whose kubelet we play."""


class KubeletEnvVar(Struct, frozen=True, rename="camel"):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class KubeletContainer(Struct, frozen=True, rename="camel"):
    name: str
    image: str = ""
    env: list[KubeletEnvVar] = field(default_factory=list)
    resources: Json = field(default_factory=dict)
    restart_policy: str = ""

    @property
    def is_sidecar(self) -> bool:
        """Whether this init container runs beside the main containers.

        https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
        """
        return self.restart_policy == "Always"


class KubeletPodSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""
    service_account_name: str = ""
    restart_policy: str = "Always"
    containers: list[KubeletContainer] = field(default_factory=list)
    init_containers: list[KubeletContainer] = field(default_factory=list)
    ephemeral_containers: list[KubeletContainer] = field(default_factory=list)
    resources: Json = field(default_factory=dict)
    """Of the pod as a whole: https://kubernetes.io/docs/tasks/configure-pod-container/assign-pod-level-resources/"""


class KubeletContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    resources: Json | None = None
    """What the container runs with; API servers before 1.27 don't store it."""


class KubeletPodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    start_time: str = ""
    resources: Json | None = None
    """Of the pod as a whole; API servers that know no resizing of it don't store it."""
    container_statuses: list[KubeletContainerStatus] = field(default_factory=list)
    init_container_statuses: list[KubeletContainerStatus] = field(default_factory=list)


class KubeletPod(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: KubeletPodSpec = field(default_factory=KubeletPodSpec)
    status: KubeletPodStatus = field(default_factory=KubeletPodStatus)

    @property
    def all_containers(self) -> list[KubeletContainer]:
        """Every container, in the order in which they may start."""
        return [*self.spec.init_containers, *self.spec.containers, *self.spec.ephemeral_containers]


PODS: Final = Kind("v1", "Pod", "pods", KubeletPod, namespaced=True)
