"""Drafts: pods as an admission webhook receives them, before the API server has validated, defaulted or stored them.

Lists and maps may be null there, and the variables that the webhook rewrites must be kept whole, with fields of later
Kubernetes releases. So those stay plain JSON; the rest of the pod is not decoded.
"""

from typing import Any

from msgspec import Struct, field

from deviceshare.domain.objects.shares import INIT, MAIN, SIDECAR, ContainerLimits, ShareRequest, share_request

Json = dict[str, Any]


class DraftMeta(Struct, frozen=True, rename="camel"):
    """The part of a pod's metadata that says whether the pod concerns deviceshare."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Capabilities(Struct, frozen=True):
    add: list[str | None] | None = None


class SecurityContext(Struct, frozen=True):
    privileged: bool | None = None
    capabilities: Capabilities | None = None


class DraftMount(Struct, frozen=True, rename="camel"):
    mount_path: str | None = None


class DraftResources(Struct, frozen=True):
    limits: Json | None = None


class DraftContainer(Struct, frozen=True, rename="camel"):
    """A container, init container or ephemeral container."""

    name: str = ""
    env: list[Json] | None = None
    env_from: list[Json] | None = None
    restart_policy: str | None = None
    security_context: SecurityContext | None = None
    volume_mounts: list[DraftMount] | None = None
    resources: DraftResources | None = None

    @property
    def privileged(self) -> bool:
        return self.security_context is not None and self.security_context.privileged is True

    @property
    def capabilities(self) -> set[str]:
        """The capabilities added to the runtime's default ones."""
        wanted = self.security_context and self.security_context.capabilities
        return {name.upper() for name in (wanted and wanted.add) or () if name}

    @property
    def limits(self) -> Json:
        return (self.resources and self.resources.limits) or {}


class HostPath(Struct, frozen=True):
    path: str | None = None


class DraftVolume(Struct, frozen=True, rename="camel"):
    host_path: HostPath | None = None


class DraftSpec(Struct, frozen=True, rename="camel"):
    node_name: str | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[Json] | None = None
    runtime_class_name: str | None = None
    tolerations: list[Json] | None = None
    containers: list[DraftContainer] | None = None
    init_containers: list[DraftContainer] | None = None
    ephemeral_containers: list[DraftContainer] | None = None
    host_pid: bool | None = field(default=None, name="hostPID")
    volumes: list[DraftVolume] | None = None
    resource_claims: list[Json] | None = None

    def lists(self) -> tuple[tuple[str, list[DraftContainer] | None], ...]:
        """The three lists of containers, by the names of their fields."""
        return (
            ("containers", self.containers),
            ("initContainers", self.init_containers),
            ("ephemeralContainers", self.ephemeral_containers),
        )

    @property
    def share(self) -> ShareRequest:
        """The parts of devices that its containers ask for; ephemeral containers can't ask for anything."""
        mains, inits, _ = self.lists()
        return share_request(
            ContainerLimits(each.name, f"spec.{field}[{i}]", _role(field, each), each.limits)
            for field, containers in (mains, inits)
            for i, each in enumerate(containers or ())
        )


class Draft(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: DraftMeta = field(default_factory=DraftMeta)
    spec: DraftSpec = field(default_factory=DraftSpec)


def _role(field: str, container: DraftContainer) -> str:
    """As `PodSpec.share` has it."""
    if field == "containers":
        return MAIN
    return SIDECAR if container.restart_policy == "Always" else INIT


def add(path: str, value: Any) -> Json:
    """The JSON patch operation that sets a member, whether it exists or not (RFC 6902, 4.1)."""
    return {"op": "add", "path": path, "value": value}
