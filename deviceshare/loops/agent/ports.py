"""The ports of the agent's loops: what the driver shows, what the kubelet answers, and the agent's few writes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct, field

from deviceshare.domain.device_health.process_owners import Owner
from deviceshare.domain.objects.hardware import Link, Part
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.loops.ports import Kind

T = TypeVar("T")

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"


class Running(Struct, frozen=True):
    """A process on a device."""

    pid: int
    name: str
    memory_mib: int
    owner: Owner | None
    """None for a process outside of any pod."""
    started: int = 0
    """In clock ticks since the node booted: PIDs are reused."""


class ReadUse(Struct, frozen=True):
    """The use of one device; None where the driver doesn't say."""

    uuid: str
    memory_used_mib: int | None = None
    memory_total_mib: int | None = None
    utilization: int | None = None
    processes: list[Running] = field(default_factory=list)


class Xid(Struct, frozen=True):
    """An error that the driver reported. `uuid` is empty where it didn't name the device."""

    uuid: str
    number: int
    text: str


class Sight(Struct, frozen=True):
    """One look at the node's devices."""

    parts: list[Part] | None = None
    """What the driver shows, without marks; None while it doesn't answer: `trouble` then says why."""
    links: list[Link] = field(default_factory=list)
    uses: list[ReadUse] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)
    """Since the last look."""
    absent: Mapping[int, str] = field(default_factory=dict)
    """Why the device with this index isn't among the parts, where the driver says so."""
    driver: str = ""
    boot_id: str = ""
    trouble: str = ""
    cdi_kinds: list[str] | None = None
    """As `Hardware.cdi_kinds`; of interest only where there are parts, and so is `runtime`."""
    runtime: str = ""
    read_at: float | None = None
    """When the reading of `uses` began, in seconds of the monotonic clock; None for now."""


class PluginAllocation(Protocol):
    """The devices of one resource that device plugins allocated to one pod."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def device_ids(self) -> tuple[str, ...]: ...


class AllocationsUnknown(Exception):
    """The kubelet doesn't say what was allocated; the text says why and what to do."""


Kubelet = Callable[[], Awaitable[Sequence[PluginAllocation]]]
"""What device plugins allocated. Bounded in time; raises AllocationsUnknown."""


class Writer(Protocol):
    """What agents write, beside events. Every call is bounded in time and raises an `ApiError`."""

    async def apply(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Server-side apply, by force."""
        ...

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None: ...


class ContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    container_id: str = field(default="", name="containerID")
    """`containerd://ID`; empty until the container has started once."""


class PodAddress(Struct, frozen=True):
    ip: str = ""


class NodePodSpec(Struct, frozen=True, rename="camel"):
    host_network: bool = False


class NodePodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    host_ip: str = field(default="", name="hostIP")
    pod_ips: list[PodAddress] = field(default_factory=list, name="podIPs")
    container_statuses: list[ContainerStatus] = field(default_factory=list)
    init_container_statuses: list[ContainerStatus] = field(default_factory=list)
    ephemeral_container_statuses: list[ContainerStatus] = field(default_factory=list)


class NodePod(Struct, frozen=True):
    """A pod as its node's agent sees it: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: NodePodSpec = field(default_factory=NodePodSpec)
    status: NodePodStatus = field(default_factory=NodePodStatus)

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def mirrored(self) -> bool:
        """Whether it only shows a static pod, as the kubelet says: for one that lies it runs no containers.

        https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror
        """
        return MIRROR_ANNOTATION in self.metadata.annotations

    def container(self, id: str) -> str:
        """The name of the container that the runtime knows by this ID, or ""."""
        status = self.status
        every = (*status.container_statuses, *status.init_container_statuses, *status.ephemeral_container_statuses)
        return next((each.name for each in every if id and each.container_id.endswith(f"//{id}")), "")


NODE_PODS: Final = Kind("v1", "Pod", "pods", NodePod, namespaced=True)
