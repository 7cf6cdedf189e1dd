"""Drafts: pods as admission receives them, and whether they concern deviceshare.

The API server has neither validated, defaulted nor stored them. Lists and maps may be null there, and the variables
that are rewritten must be kept whole, with fields of later Kubernetes releases. So those stay plain JSON; the rest of
the pod is not decoded.

A pod concerns deviceshare that names a group, or whose containers ask for a share in their limits. Its label has the
group's name, and is empty where it names none: mirrors and webhooks select by the label's existence.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects import share_wishes, shares
from deviceshare.domain.objects.groups import name_fault
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.quantities import amount, is_some
from deviceshare.domain.objects.shares import DIALECTS, NO_SHARE, SYSTEMS, ShareRequest, is_annotation, share_request
from deviceshare.domain.wording import listed

SEVERAL: Final = "aliyun.com/gpu-count"
"""As a pod's label: on how many devices its memory is wanted, in equal parts."""
CORES: Final = "aliyun.com/gpu-core.percentage"
OF_OTHERS: Final = (SEVERAL, CORES)
"""Limits of other systems that are right, though deviceshare doesn't serve them."""

Json = dict[str, Any]
Names = Mapping[str, str] | None
Systems = tuple[str, ...] | frozenset[str]
"""The other systems whose resources are served (shares.SYSTEMS)."""


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
    requests: Json | None = None
    claims: list[Json] | None = None


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


class Place(NamedTuple):
    """A container, and where it stands in its pod."""

    field: str
    position: int
    container: DraftContainer

    def __str__(self) -> str:
        return f"spec.{self.field}[{self.position}]"

    def asks_for(self, resource: str) -> bool:
        """Whether its limits have some of this."""
        return is_some(self.container.limits.get(resource))


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

    def places(self, *, ephemeral: bool = False, skip: Collection[str] = ()) -> list[Place]:
        """Its containers and init containers, or all, and where they stand, but for those with names to skip."""
        lists = {"containers": self.containers, "initContainers": self.init_containers}
        if ephemeral:
            lists["ephemeralContainers"] = self.ephemeral_containers
        return [
            Place(kind, position, each)
            for kind, containers in lists.items()
            for position, each in enumerate(containers or ())
            if each.name not in skip
        ]

    @property
    def share(self) -> ShareRequest:
        """The parts of devices that its containers ask for; ephemeral containers can't ask for anything."""
        return share_request(self.containers or (), self.init_containers or ())


class Draft(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    metadata: DraftMeta = field(default_factory=DraftMeta)
    spec: DraftSpec = field(default_factory=DraftSpec)

    def misspelt(self, dialects: Systems) -> str:
        """Which of deviceshare's names its author misspelt, and what may be meant; "" where all are right."""
        for key in sorted(self.metadata.annotations or ()):
            if key.startswith(contract.PREFIX) and not is_annotation(key):
                meant = listed(sorted(contract.USERS), link="or")
                return f"metadata.annotations[{key}] means nothing to deviceshare: did you mean {meant}?"
        served = [row for name, row in sorted(DIALECTS.items()) if name not in _off(dialects)]
        for where, name, limits in self._limits():
            meant = listed((row.resource for row in served if name.startswith(row.family)), link="or")
            if name == shares.DEVICE_COUNT and not any(is_some(limits.get(each)) for each in DIALECTS):
                return f"{where} says on how many devices, not how much of each: add {meant}"
            if meant and name not in DIALECTS and name not in (*OF_OTHERS, shares.DEVICE_COUNT):
                return f"{where} means nothing to deviceshare: did you mean {meant}?"
        return ""

    @property
    def asks_for_nothing(self) -> str:
        """Where a container's limit says 0 of a device, as charts write it; "" where none does."""
        zeros = (where for where, name, limits in self._limits() if name in DIALECTS and amount(limits[name]) == 0)
        return next(zeros, "")

    def _limits(self) -> Iterator[tuple[str, str, Json]]:
        """The limits by which containers ask for shares, or may mean to: where each is, its name, the container's."""
        for place in self.spec.places():
            limits = place.container.limits
            for name in sorted(limits):
                if name.startswith(shares.FAMILIES):
                    yield f"{place}.resources.limits[{name}]", name, limits


def concerns(labels: Names, annotations: Names, share: ShareRequest = NO_SHARE, dialects: Systems = SYSTEMS) -> bool:
    """Whether a pod names a group, or asks for a share by a resource that is served here.

    Every other pod is left unchanged, also one that asks by another system's resource which a setting turned off.
    """
    if (labels and contract.GROUP in labels) or (annotations and contract.GROUP in annotations):
        return True
    return bool(share) and not _off(dialects).issuperset(share.resources)


class Concern(NamedTuple):
    """What a pod that concerns deviceshare asks for."""

    group: str
    """The one that it names, or ""."""
    share: ShareRequest
    fault: str
    """What is wrong with the way in which it asks, and what to do, or ""."""
    ours: list[str]
    """Its annotations that only deviceshare may write."""


def concern_of(metadata: DraftMeta | ObjectMeta, share: ShareRequest, dialects: Systems) -> Concern | None:
    """What the pod asks for; None where it doesn't concern deviceshare."""
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    if not concerns(labels, annotations, share, dialects):
        return None
    unserved = sorted(_off(dialects).intersection(share.resources))
    fault = (
        (_UNSERVED.format(listed(unserved)) if unserved else "; ".join(share.faults))
        or _group_fault(labels, annotations, share)
        or share_wishes.fault(annotations, bool(share))
    )
    return Concern(annotations.get(contract.GROUP, ""), share, fault, sorted(filter(is_ours_alone, annotations)))


_UNSERVED: Final = (
    "spec.containers: the limit {} asks for a share by a resource that deviceshare doesn't serve in this cluster"
    " (--dialects, shares.dialects): ask by deviceshare.io/gpu-mem or deviceshare.io/gpu-percent, or leave"
    f" {contract.GROUP} out"
)


def is_ours_alone(key: str) -> bool:
    """Whether only deviceshare may write the annotation with this name on a pod that concerns it."""
    ours = key.startswith(contract.PREFIX) and key not in contract.USERS and key != contract.WARNINGS
    return ours or vendors.is_cdi_annotation(key)


def _group_fault(labels: Mapping[str, str], annotations: Mapping[str, str], share: ShareRequest) -> str:
    name, label = annotations.get(contract.GROUP), labels.get(contract.GROUP)
    field = f"metadata.labels[{contract.GROUP}]"
    if name is None and label:
        cure = f"join the group with the annotation {contract.GROUP}: {label} and leave the label out"
        return f"{field} is written by deviceshare only: {cure}"
    if name is None:
        empty = f"{field} is empty, as deviceshare sets it on pods that ask for a share, and no container does"
        return "" if share else f"{empty}: leave the label out"
    if fault := name_fault(name):
        return f"metadata.annotations[{contract.GROUP}]: {fault}; `kubectl get sdg` lists the groups"
    if label not in (None, name):
        text = f"{field} says {label!r}, but the annotation of that name says {name!r}"
        return f"{text}: leave the label out, deviceshare sets it"
    return ""


@cache
def _off(dialects: Systems) -> frozenset[str]:
    return frozenset(each.resource for each in DIALECTS.values() if each.system and each.system not in dialects)
