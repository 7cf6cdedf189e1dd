"""A pod as an admission webhook receives it: before the API server has checked, completed or stored it.

Lists and maps may be null there, and what the webhook rewrites (variables, node affinity) must be kept whole, down to
fields that did not exist when this was written. So those stay plain JSON; the rest of the pod is not even decoded.
"""

from typing import Any

from msgspec import Struct, field

Json = dict[str, Any]


class DraftMeta(Struct, frozen=True, rename="camel"):
    """The part of a pod's metadata that says whether deviceshare is concerned at all."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class SecurityContext(Struct, frozen=True):
    privileged: bool | None = None


class DraftContainer(Struct, frozen=True, rename="camel"):
    """A container of any of the three lists."""

    name: str = ""
    env: list[Json] | None = None
    security_context: SecurityContext | None = None

    @property
    def privileged(self) -> bool:
        return self.security_context is not None and self.security_context.privileged is True


class Term(Struct, frozen=True, rename="camel"):
    """Requirements that hold together. A term without any matches no node."""

    match_expressions: list[Json] | None = None
    match_fields: list[Json] | None = None


class NodeSelector(Struct, frozen=True, rename="camel"):
    """Terms of which one must match."""

    node_selector_terms: list[Term] | None = None


class NodeAffinity(Struct, frozen=True, rename="camel"):
    required: NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity"""

    node_affinity: NodeAffinity | None = None


class DraftSpec(Struct, frozen=True, rename="camel"):
    scheduler_name: str | None = None
    runtime_class_name: str | None = None
    affinity: Affinity | None = None
    containers: list[DraftContainer] | None = None
    init_containers: list[DraftContainer] | None = None
    ephemeral_containers: list[DraftContainer] | None = None


class Draft(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: DraftMeta = field(default_factory=DraftMeta)
    spec: DraftSpec = field(default_factory=DraftSpec)


def add(path: str, value: Any) -> Json:
    """The JSON patch operation that sets a member, whether it exists or not (RFC 6902, 4.1)."""
    return {"op": "add", "path": path, "value": value}
