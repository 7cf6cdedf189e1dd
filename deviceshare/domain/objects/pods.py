"""A pod: which group it names or which share it asks for, which devices it has, and whether it may still use them."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import fields, replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.devices import Device, Devices, parse_selected, with_uuids
from deviceshare.domain.objects.nodes import Affinity
from deviceshare.domain.objects.object_decoder import Condition, NamedObject, ObjectMeta
from deviceshare.domain.objects.pod_spec import TERMINAL, Container, PodSpec, PodStatus, Requirements
from deviceshare.domain.objects.share_wishes import REQUIRED
from deviceshare.domain.objects.shares import GROUP, POD, Holder, Share, ShareRequest
from deviceshare.domain.vendors import Vendor

T = TypeVar("T", bound=Struct)

# Whose a pod is by its metadata, as the Binding wrote it: whose devices it has, and for which pod they were.


def holder_uid_of(meta: ObjectMeta) -> str:
    """The UID of the holder whose devices a pod with this metadata got, or "".

    Trusted only together with the label, since admission protects the annotations of labelled pods alone.
    """
    return meta.annotations.get(contract.GROUP_UID, "") if contract.GROUP in meta.labels else ""


def is_impostor(meta: ObjectMeta) -> bool:
    """Whether it bears what was written for another pod, see `Pod.impostor`."""
    return meta.annotations.get(contract.POD_UID, meta.uid) != meta.uid and not meta.hides("metadata.uid")


DEFAULT_GRACE_SECONDS: Final = 30
"""What the API server writes where a pod names no grace period."""
LONGEST_GRACE_SECONDS: Final = 3600
"""Grace periods are capped to this: pods may set days, which the kubelet's eviction doesn't grant."""
UNSCHEDULABLE: Final = "Unschedulable"
"""The reason of `PodScheduled=False` where no node fits (k8s.io/api/core/v1)."""
SHARE_KEY: Final = "/"
"""The beginning of a `Pod.queue_key` that is no group's name."""


class Pod(NamedObject, frozen=True, gc=False, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/"""

    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)
    left_out: str = ""
    """The name of the holder, for a pod that can't be trusted (pod_guard.py). No API server sends this field."""

    def trimmed(self) -> "Pod":
        """The pod without what is read of no pod: a megabyte of annotations is not held, nor are 30,000 variables.

        What has more entries than any pod needs counts as unreadable.
        """
        excess: dict[str, str] = {}
        meta = _bounded(self.metadata, "metadata", excess)
        spec, status = _bounded(self.spec, "spec", excess), _bounded(self.status, "status", excess)
        meta = replace(
            meta,
            labels={key: text for key, text in meta.labels.items() if key.startswith(contract.PREFIX)},
            annotations={
                key: text for key, text in meta.annotations.items() if key.startswith(_OURS) or key in _OTHERS_READ
            },
            unreadable=excess | (meta.unreadable or {}) or None,
        )
        if spec.affinity and spec.affinity.avoids:
            spec = replace(spec, affinity=spec.affinity.trimmed(self.metadata.labels))
        containers, inits = ([*map(_shared, each)] for each in (spec.containers, spec.init_containers))
        spec = replace(spec, containers=containers, init_containers=inits)
        if any(len(each.message) > _LONGEST_MESSAGE for each in status.conditions):
            conditions = [replace(each, message=each.message[:_LONGEST_MESSAGE]) for each in status.conditions]
            status = replace(status, conditions=conditions)
        return replace(self, metadata=meta, spec=spec, status=status)

    @property
    def group(self) -> str:
        """The name of the group that the pod joins, or ""."""
        named = self.metadata.annotations.get(contract.GROUP, "")
        if not named and self.metadata.hides("metadata.annotations"):
            return self.metadata.labels.get(contract.GROUP, "")
        return named

    @property
    def share(self) -> ShareRequest:
        """The parts of devices that its containers ask for."""
        return self.spec.share

    @property
    def wants_devices(self) -> bool:
        """Whether it names a group or asks for a share."""
        return bool(self.group or self.share)

    @property
    def claim(self) -> str:
        """The ResourceClaim by which it gets its group's devices, or "". kube-scheduler alone binds such a pod."""
        return self.metadata.annotations.get(contract.CLAIM, "") if contract.GROUP in self.metadata.labels else ""

    @property
    def bound_by_us(self) -> bool:
        """Whether it waits for what our own bind gives."""
        return contract.CLAIM not in self.metadata.annotations and self.wants_devices

    @property
    def holder_uid(self) -> str:
        """The UID of the holder whose devices the pod got at its binding, or at its creation by a ResourceClaim."""
        return holder_uid_of(self.metadata)

    @property
    def holder(self) -> Holder:
        """The holder whose devices the pod got at its binding: its group, or the pod itself."""
        return Holder(self.holder_uid, GROUP, self.group) if self.group else self.sharer._replace(uid=self.holder_uid)

    @property
    def holder_name(self) -> str:
        """The name of the holder of its devices; "" for a pod that wants none."""
        return self.group or (self.metadata.key if self.share else "")

    @property
    def workload(self) -> str:
        """What made it, as `Deployment ns/infer`, or "". A Deployment's ReplicaSets have its name and a digest."""
        owner = self.metadata.controller
        if owner is None:
            return ""
        name, dash, _ = owner.name.rpartition("-")
        kind, name = ("Deployment", name) if owner.kind == "ReplicaSet" and dash else (owner.kind, owner.name)
        return f"{kind} {self.metadata.namespace}/{name}"

    @property
    def strategy(self) -> str:
        """How a device is chosen for its share: `binpack`, or as its annotation says."""
        return self.metadata.annotations.get(contract.STRATEGY, "binpack")

    @property
    def isolated(self) -> bool:
        """Whether its share goes only where limits are enforced."""
        return self.metadata.annotations.get(contract.ISOLATION) == REQUIRED

    @property
    def queue_key(self) -> str:
        """Equal for waiting pods that want the same: their group, or their namespace and share; "" for others."""
        if self.group or not self.share:
            return self.group
        return f"{SHARE_KEY}{self.metadata.namespace} {self.strategy}{self.isolated:d} {tuple(self.share)}"

    @property
    def sharer(self) -> Holder:
        """The pod as a holder of shares."""
        return Holder(self.metadata.uid, POD, self.metadata.key)

    @property
    def share_uid(self) -> str:
        """The UID of the pod whose shares it got at its binding, which is its own unless it is an impostor, or ""."""
        annotations = self.metadata.annotations
        return annotations.get(contract.POD_UID, "") if contract.SHARES in annotations else ""

    @property
    def shares(self) -> tuple[Share, ...]:
        """The parts of devices that its containers got, former ones among them.

        Empty where the annotation is missing or unreadable.
        """
        text = self.metadata.annotations.get(contract.SHARES, "") if contract.GROUP in self.metadata.labels else ""
        try:
            return tuple(sorted(msgspec.json.decode(text, type=list[Share]))) if text else ()
        except ValueError:
            return ()

    @property
    def node(self) -> str:
        """The node it is bound to or, until it is bound, the one that its scheduling gate was lifted for; or ""."""
        return self.spec.node_name or self.placed_on

    @property
    def placed_on(self) -> str:
        """The node that the scheduling gate of a pod that isn't bound yet was lifted for, or "".

        Its devices were written into it then, and it can't be bound to another node (decision 16). A pod that is being
        deleted can't be bound any more (kubernetes/kubernetes, `pkg/registry/core/pod/storage/storage.go`). Trusted as
        `holder_uid` is: without the label, or by another pod's annotation, nobody placed it.
        """
        meta, annotations = self.metadata, self.metadata.annotations
        if self.spec.node_name or meta.deletion_timestamp or contract.PLACED_ON not in annotations:
            return ""
        ours = contract.GROUP in meta.labels and annotations.get(contract.POD_UID) == meta.uid
        return annotations[contract.PLACED_ON] if ours and not self.spec.scheduling_gates else ""

    @property
    def nominated_node(self) -> str:
        """Where room is made for the pod while it waits, or ""."""
        ours = contract.GROUP in self.metadata.labels and self.pending
        return self.metadata.annotations.get(contract.NOMINATED_NODE, "") if ours else ""

    @property
    def finished(self) -> bool:
        """Whether all its containers have ended, which its phase alone doesn't prove (pod_spec.py).

        The kubelet publishes `Succeeded` only when they have; there only a container reported as running contradicts
        that. Of a pod that failed every container must be reported as terminated.
        """
        status = self.status
        if status.phase not in TERMINAL:
            return False
        if not self.spec.node_name or self.metadata.annotations.get(contract.ENDED) == self.metadata.uid:
            return True
        kinds = (status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses)
        every = [each for statuses in kinds for each in statuses or ()]
        if status.phase == "Succeeded":
            return not any(each.running for each in every)
        if not all(each.terminated for each in every):
            return False
        containers = [container.name for container in self.spec.containers]
        return bool(containers) and {each.name for each in every}.issuperset(containers)

    @property
    def ending(self) -> bool:
        """Whether the pod's phase says that it has ended, but its containers may still run."""
        return self.status.phase in TERMINAL and not self.finished

    @property
    def grace_seconds(self) -> int:
        """How long its containers may run after the kubelet begins to stop them, by its spec or its deletion."""
        named, deleting = self.spec.termination_grace_period_seconds, self.metadata.deletion_grace_period_seconds
        longest = max(DEFAULT_GRACE_SECONDS if named is None else named, deleting or 0, 0)
        return min(longest, LONGEST_GRACE_SECONDS)

    @property
    def lives(self) -> bool:
        """Whether the pod's containers may be using devices. A pod being deleted may, until it is removed."""
        somewhere = bool(self.spec.node_name or self.placed_on) or self.metadata.hides("spec.nodeName")
        return somewhere and not self.finished

    def lives_on(self, node: str) -> bool:
        """Whether it may be using devices of the node; a pod whose node can't be read may be on any."""
        return self.lives and self.node in (node, "")

    def holds(self, uid: str, node: str) -> bool:
        """Whether the pod may hold devices of the holder with this UID on the node."""
        return self.lives_on(node) and self.may_be_of(uid)

    def may_be_of(self, uid: str) -> bool:
        """Whether the pod may have received devices of the holder with this UID, wherever it is."""
        known = bool(self.holder_uid) or not self.metadata.hides("metadata.annotations")
        return uid in (self.holder_uid, self.share_uid) or not known

    @property
    def pending(self) -> bool:
        """Whether devices may still be allocated to the pod: it is neither bound nor placed."""
        return not (self.spec.node_name or self.placed_on or self.finished)

    @property
    def gates(self) -> list[str]:
        """The scheduling gates of others, still to be removed; until then nobody may place the pod."""
        others = (gate.name for gate in self.spec.scheduling_gates if gate.name != contract.PLACEMENT_GATE)
        return list(others) if self.pending else []

    @property
    def awaits_placement(self) -> bool:
        """Whether nothing but deviceshare's own scheduling gate holds it back."""
        return self.pending and [gate.name for gate in self.spec.scheduling_gates] == [contract.PLACEMENT_GATE]

    @property
    def refusal(self) -> Condition | None:
        """The scheduler's condition after a failed try; None where there was none, as behind a scheduling gate."""
        if self.spec.node_name or self.spec.scheduling_gates or self.finished:
            return None
        said = (c for c in self.status.conditions if c.type == "PodScheduled" and c.status == "False")
        return next((c for c in said if c.reason in _REFUSALS), None)

    @property
    def impostor(self) -> bool:
        """Whether the pod received the Binding of an earlier pod of its name.

        Old API servers don't compare the UID of a Binding (claims.md, bind, step 5).
        """
        return is_impostor(self.metadata)

    @property
    def devices(self) -> Devices:
        """The devices that its containers see at their start; empty where the annotation is missing or unreadable."""
        annotations = self.metadata.annotations
        text = annotations.get(contract.SELECTED_DEVICES, "")
        if not text:
            return tuple(sorted({share.device for share in shares.current(self.shares)}))
        try:
            chosen = parse_selected(msgspec.json.decode(text, type=dict[str, str]))
        except ValueError:
            return ()
        return with_uuids(chosen, annotations)

    @property
    def sealed(self) -> bool:
        """Whether its containers get the same devices until it ends, whatever its annotations say later.

        At each start of a container, runtimes pass to their NRI plugins the annotations that the pod's sandbox was
        created with (containerd/containerd, `internal/cri/nri`).
        """
        domains = vendors.cdi_domains(vendors.VENDORS)
        for key in self.metadata.annotations:  # noqa: SIM110 a generator would be a call for each pod
            if key.partition("/")[0] in domains:
                return True
        return False

    @property
    def rebind(self) -> str:
        """The last request for another device in place of an unhealthy one of which it has a share, or ""."""
        token = self.metadata.annotations.get(contract.REBIND, "") if contract.GROUP in self.metadata.labels else ""
        return "" if shares.token_fault(token) else token

    @property
    def former(self) -> Devices:
        """The devices of its group that rebinds replaced: the pod's containers may use them until it ends."""
        text = self.metadata.annotations.get(contract.FORMER_DEVICES, "")
        try:
            return tuple(sorted(msgspec.json.decode(text, type=list[Device]))) if text else ()
        except ValueError:
            return ()

    @property
    def received(self) -> Devices:
        """All devices that the pod ever received."""
        return (*self.devices, *self.former)

    def lacking(self, wanted: Iterable[Vendor]) -> list[str]:
        """What of the injection the pod lacks to get devices of these vendors, for texts.

        A pod that was admitted without it lacks some, and must never be bound: devices of a pod without the label,
        which no mirror shows, could be allocated twice, and an image may bake `all` into a variable. The variables of
        other vendors aren't asked for: a pod may be older than a vendor's row.
        """
        containers, share = [*self.spec.init_containers, *self.spec.containers], self.share
        label = [] if self.metadata.labels.get(contract.GROUP) == self.group else [f"the label {contract.GROUP}"]
        if contract.CLAIM in self.metadata.annotations:
            return label
        asking = {need.container for need in share.needs}
        served = vendors.vendors_of(share.of)

        def reads_its_own(container: Container, vendor: Vendor) -> bool:
            path = vendor.field_path
            if vendor in served and container.name in asking:
                path = shares.field_path(shares.devices_of_container(vendor, container.name))
            return container.path_of(vendor.env) == path

        return label + [
            f"the env {vendor.env}"
            for vendor in wanted
            if not containers or not all(reads_its_own(container, vendor) for container in containers)
        ]

    @property
    def injected(self) -> bool:
        """Whether the pod was injected, for whatever devices its group asks for."""
        return not self.lacking(vendors.VENDORS)

    @property
    def containers_hidden(self) -> bool:
        """Whether the resources that its containers request can't be read."""
        return self.metadata.hides("spec.containers") or self.metadata.hides("spec.initContainers")

    @property
    def past_us(self) -> bool:
        """Whether it may have devices from a device plugin, not from deviceshare."""
        return self.containers_hidden or bool(self.plugin_resources())

    def plugin_resources(self) -> set[str]:
        """Device resources, or parts of devices, that the pod requests from a device plugin.

        The parts that a pod with deviceshare's label asks for come from deviceshare. Those of any other pod come from
        the plugin of the system whose resource it is, as far as that has one. What DRA serves in a plugin's place is in
        a ResourceClaim, which says what it holds.
        """
        containers = [*self.spec.init_containers, *self.spec.containers]
        asked = [self.spec.resources, *(container.resources for container in containers)]
        claim = self.status.extended_resource_claim_status
        claimed = {each.resource_name for each in claim.request_mappings} if claim else set()
        served = {name for name in claimed if (vendor := vendors.plugin_vendor_of(name)) and vendor.dra}
        found = {resource for each in asked for resource in each.devices} - served
        if contract.GROUP in self.metadata.labels:
            return found
        return found | {r for each in asked for r in each.parts if vendors.plugin_vendor_of(r)}


def _shared(container: Container) -> Container:
    """The container with the variables of ours that it has, in one copy for all pods of a workload."""
    if container.env:
        container = replace(container, env=[each for each in container.env if each.name in _VARIABLES])
    key = msgspec.json.encode(container)
    if len(_CONTAINERS) >= _MOST_CONTAINERS:
        _CONTAINERS.clear()
    return container if len(key) > _LONGEST_CONTAINER else _CONTAINERS.setdefault(key, container)


_CONTAINERS: Final[dict[bytes, Container]] = {}
_MOST_CONTAINERS: Final = 1024
_LONGEST_CONTAINER: Final = 2048
"""In bytes of JSON; one of ours has some hundreds. Both bound what of strangers' pods is held after them."""


def _bounded(part: T, path: str, excess: dict[str, str]) -> T:
    """The part without what has more entries than any pod needs, which is added to `excess` by its path."""
    left_out: dict[str, Any] = {}
    for name in _COUNTED[path]:
        value = getattr(part, name)
        if value and _size(value) > _MANY:
            left_out[name] = getattr(type(part)(), name)
    if not left_out:
        return part
    excess |= {f"{path}.{f.encode_name}": f"more than {_MANY} entries" for f in fields(part) if f.name in left_out}
    return replace(part, **left_out)


def _size(value: Any) -> int:
    """Of a list or a map; of containers, or an eighth as many of what they ask for."""
    match value:
        case Affinity():
            return value.size // 4
        case Requirements():
            return len(value.limits) + len(value.requests)
        case [Container(), *_]:
            asked = sum(len(each.resources.limits) + len(each.resources.requests) + len(each.ports) for each in value)
            return max(len(value), asked // 8)
    return len(value)


_MANY: Final = 500
"""Entries of a list or map. A pod of ours has at most as many containers (web/admission.py)."""
_COUNTED: Final[Mapping[str, tuple[str, ...]]] = {
    "metadata": ("finalizers", "owner_references"),
    "spec": (
        *("node_selector", "affinity", "scheduling_gates", "containers", "init_containers", "resources"),
        *("tolerations", "overhead"),
    ),
    "status": ("conditions", "container_statuses", "init_container_statuses", "ephemeral_container_statuses"),
}
_VARIABLES: Final = frozenset(vendor.env for vendor in vendors.VENDORS)
_OURS: Final = (contract.PREFIX, *vendors.cdi_domains(vendors.VENDORS))
_OTHERS_READ: Final = frozenset({contract.JOB_INDEX_FAILURES, *contract.KEEPING})
_LONGEST_MESSAGE: Final = 1024
_REFUSALS = (UNSCHEDULABLE, "SchedulerError")
"""The reasons of `PodScheduled=False` after a try; `SchedulingGated` means that there was none (k8s.io/api/core/v1)."""
