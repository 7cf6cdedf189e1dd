"""A pod's spec and status, as far as deviceshare reads them: its containers, their variables and their limits."""

from typing import Final

from msgspec import Struct, field

from deviceshare.domain import vendors
from deviceshare.domain.objects.nodes import Affinity, Toleration
from deviceshare.domain.objects.object_decoder import Condition
from deviceshare.domain.objects.quantities import Quantity, is_some
from deviceshare.domain.objects.shares import DIALECTS, ShareRequest, share_request

# Container states, which prove that a pod's containers have ended; its phase alone doesn't.
#
# Kubelets before 1.22.8, 1.23.5 and 1.24 publish `phase: Failed` of a pod that they evict, or whose deadline has
# passed, before they kill its containers, and leave the containers' statuses unchanged, or out (kubernetes#88613,
# #98742). With every version of the kubelet, the state `terminated` of every container is proof. Where that is never
# reported, the leader waits for the grace period and records that it did (loops/leader/controller.py).
# https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-states

TERMINAL = ("Succeeded", "Failed")
"""The phases that a pod never leaves."""


class StateDetails(Struct, frozen=True, gc=False):
    """Present where a container is in this state; none of its fields is read."""


class ContainerState(Struct, frozen=True, gc=False):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#ContainerState"""

    running: StateDetails | None = None
    terminated: StateDetails | None = None


class SeenContainer(Struct, frozen=True, gc=False, rename="camel"):
    """One container as the kubelet last saw it."""

    name: str = ""
    state: ContainerState | None = None
    allocated_resources: dict[str, Quantity] = field(default_factory=dict)
    """What the kubelet set aside for it, while its requests are being changed in place (Kubernetes 1.27 and later)."""

    @property
    def running(self) -> bool:
        return self.state is not None and self.state.running is not None

    @property
    def terminated(self) -> bool:
        return self.state is not None and self.state.terminated is not None


class FieldRef(Struct, frozen=True, gc=False, rename="camel"):
    field_path: str = ""


class EnvSource(Struct, frozen=True, gc=False, rename="camel"):
    field_ref: FieldRef | None = None


class EnvVar(Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    value_from: EnvSource | None = None

    @property
    def field_path(self) -> str:
        """The field of the pod that the variable's value comes from, or ""."""
        source = self.value_from and self.value_from.field_ref
        return source.field_path if source else ""


class Requirements(Struct, frozen=True, gc=False):
    """Resource limits and requests. For extended resources, such as devices, both are equal, and limits required."""

    limits: dict[str, Quantity] = field(default_factory=dict)
    requests: dict[str, Quantity] = field(default_factory=dict)

    @property
    def devices(self) -> set[str]:
        """The device resources that it requests from the vendor's device plugin; a limit of `0` requests none."""
        return {r for r, q in self.limits.items() if r not in DIALECTS and vendors.plugin_vendor_of(r) and is_some(q)}

    @property
    def parts(self) -> set[str]:
        """The resources by which it asks for parts of devices: ours, or another system's."""
        return {r for r, quantity in self.limits.items() if r in DIALECTS and is_some(quantity)}


class ContainerPort(Struct, frozen=True, gc=False, rename="camel"):
    host_port: int = 0
    protocol: str = ""
    host_ip: str = field(default="", name="hostIP")


class Container(Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    env: list[EnvVar] = field(default_factory=list)
    resources: Requirements = field(default_factory=Requirements)
    restart_policy: str = ""
    ports: list[ContainerPort] = field(default_factory=list)

    @property
    def limits(self) -> dict[str, Quantity]:
        return self.resources.limits

    def path_of(self, variable: str) -> str:
        """The field of the pod that the variable's value comes from, or ""."""
        # The last of several variables of one name takes effect in a container.
        return next((each.field_path for each in reversed(self.env) if each.name == variable), "")


class SchedulingGate(Struct, frozen=True, gc=False):
    """https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/"""

    name: str = ""


class PodSpec(Struct, frozen=True, gc=False, rename="camel"):
    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    scheduling_gates: list[SchedulingGate] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    init_containers: list[Container] = field(default_factory=list)
    resources: Requirements = field(default_factory=Requirements)
    """The pod's as a whole; Kubernetes 1.32 and later have them."""
    termination_grace_period_seconds: int | None = None
    tolerations: list[Toleration] = field(default_factory=list)
    priority: int | None = None
    preemption_policy: str = ""
    overhead: dict[str, Quantity] = field(default_factory=dict)

    @property
    def share(self) -> ShareRequest:
        """The parts of devices that its containers ask for; read some thirty times of a pod on its way to a node."""
        known = _SHARES.get(id(self))
        if known and known[0] is self:
            return known[1]
        if len(_SHARES) >= _MOST_SHARES:
            _SHARES.clear()
        _SHARES[id(self)] = self, share_request(self.containers, self.init_containers)
        return _SHARES[id(self)][1]


_SHARES: dict[int, tuple[PodSpec, ShareRequest]] = {}
"""What was asked last. No field of the Struct: those are what somebody sends."""
_MOST_SHARES: Final = 1024


class ExtendedResourceRequest(Struct, frozen=True, gc=False, rename="camel"):
    """One container's extended resource that DRA serves."""

    resource_name: str = ""


class ExtendedResourceClaim(Struct, frozen=True, gc=False, rename="camel"):
    """The ResourceClaim that kube-scheduler created for extended resources in limits (KEP-5004, from 1.34 on).

    So it does where a DeviceClass has an `extendedResourceName` and the node no device plugin for it.
    """

    request_mappings: list[ExtendedResourceRequest] = field(default_factory=list)


class PodStatus(Struct, frozen=True, gc=False, rename="camel"):
    phase: str = ""
    conditions: list[Condition] = field(default_factory=list)
    container_statuses: list[SeenContainer] | None = None
    init_container_statuses: list[SeenContainer] | None = None
    ephemeral_container_statuses: list[SeenContainer] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None
    nominated_node_name: str = ""
    """Where kube-scheduler evicts pods of lower priority for this one."""
