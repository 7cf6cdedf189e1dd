"""The kinds of API objects that deviceshare reads and writes: the Structs they are decoded to, and what is done to one.

An object that may be gone is found, one annotated by its version, and the subject of an Event named.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import Group, NamespaceObject
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import TERMINAL
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice
from deviceshare.loops.ports import Cluster, Kind, NotFound, Subject

T = TypeVar("T")
Written = TypeVar("Written", bound=Group | NodeDevices | Pod)


class LeaseSpec(Struct, frozen=True, rename="camel"):
    """Times are RFC 3339; they are for people, nothing is decided by them."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/lease-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: LeaseSpec = field(default_factory=LeaseSpec)


class Event(Struct, frozen=True, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/event-v1/, as core/v1 has it"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int = 0
    last_timestamp: str | None = None


class JobSpec(Struct, frozen=True, rename="camel"):
    """How many of its pods may fail. The API server fills in what is left out."""

    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None


class UncountedPods(Struct, frozen=True):
    failed: list[str] = field(default_factory=list)


class JobStatus(Struct, frozen=True, rename="camel"):
    """How many of its pods have failed; those that the status doesn't count yet are named by their UIDs."""

    failed: int = 0
    uncounted_terminated_pods: UncountedPods | None = None


class Job(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: JobSpec = field(default_factory=JobSpec)
    status: JobStatus = field(default_factory=JobStatus)

    @property
    def failures(self) -> int:
        """How many of its pods have failed."""
        uncounted = self.status.uncounted_terminated_pods
        return self.status.failed + len(uncounted.failed if uncounted else ())

    def spent(self, pod: Pod, failures: int) -> str:
        """What makes the Job, or the pod's index, fail if this pod fails after so many others; or ""."""
        count = pod.metadata.annotations.get(contract.JOB_INDEX_FAILURES, "")
        of_index, limits = int(count) if re.fullmatch("[0-9]{1,9}", count) else 0, self.spec
        if limits.backoff_limit_per_index is not None and of_index >= limits.backoff_limit_per_index:
            return f"backoffLimitPerIndex {limits.backoff_limit_per_index}, failed {of_index}"
        if limits.backoff_limit is not None and failures >= limits.backoff_limit:
            return f"backoffLimit {limits.backoff_limit}, failed {failures}"
        return ""


class ResourceQuotaSpec(Struct, frozen=True):
    hard: dict[str, Any] = field(default_factory=dict)


class ResourceQuota(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/resource-quota-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: ResourceQuotaSpec = field(default_factory=ResourceQuotaSpec)


class Secret(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/secret-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    data: dict[str, bytes] = field(default_factory=dict)  # msgspec takes bytes out of base64


class WebhookConfiguration(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/extend-resources/mutating-webhook-configuration-v1/

    The webhooks are kept whole, since a merge patch can only replace their list as a whole.
    """

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    webhooks: list[dict[str, Any]] = field(default_factory=list)


_OURS = f"{contract.API_GROUP}/{contract.API_VERSION}"

PODS: Final = Kind("v1", "Pod", "pods", Pod, namespaced=True)
NODES: Final = Kind("v1", "Node", "nodes", Node, namespaced=False)
NAMESPACES: Final = Kind("v1", "Namespace", "namespaces", NamespaceObject, namespaced=False)
GROUPS: Final = Kind(_OURS, contract.GROUP_KIND, "shareddevicegroups", Group, namespaced=False)
NODE_DEVICES: Final = Kind(_OURS, contract.NODE_DEVICES_KIND, "nodedevices", NodeDevices, namespaced=False)
DEVICE_QUOTAS: Final = Kind(_OURS, contract.DEVICE_QUOTA_KIND, "devicequotas", DeviceQuota, namespaced=False)
JOBS: Final = Kind("batch/v1", "Job", "jobs", Job, namespaced=True)
LEASES: Final = Kind("coordination.k8s.io/v1", "Lease", "leases", Lease, namespaced=True)
EVENTS: Final = Kind("v1", "Event", "events", Event, namespaced=True)
RESOURCE_QUOTAS: Final = Kind("v1", "ResourceQuota", "resourcequotas", ResourceQuota, namespaced=True)
SECRETS: Final = Kind("v1", "Secret", "secrets", Secret, namespaced=True)
WEBHOOK_CONFIGURATIONS: Final = tuple(
    Kind("admissionregistration.k8s.io/v1", kind, f"{kind.lower()}s", WebhookConfiguration, namespaced=False)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
)

DRA_GROUP: Final = "resource.k8s.io"
DRA_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions with both kinds, the newest first: from Kubernetes 1.34, 1.33 and 1.32; the betas are off unless set."""
RESOURCE_SLICES: Final = tuple(
    Kind(f"{DRA_GROUP}/{version}", "ResourceSlice", "resourceslices", ResourceSlice, namespaced=False)
    for version in DRA_VERSIONS
)
RESOURCE_CLAIMS: Final = tuple(
    Kind(f"{DRA_GROUP}/{version}", "ResourceClaim", "resourceclaims", ResourceClaim, namespaced=True)
    for version in DRA_VERSIONS
)

HOLDS: Final = RESOURCE_CLAIMS[0]
"""Those of our own (placement/holds.py)."""
SHARED_NODES: Final = f"{contract.MODE_LABEL}={contract.MODE_SHARED}"
"""The label selector of nodes that take part."""
LIVE_PODS: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that may be using devices."""
UNBOUND_PODS: Final = "spec.nodeName=,status.phase=Pending"
"""The field selector of pods that have no node yet."""


# Admission policies and their bindings, with the fields by which commands judge them. Policies of one name and kind are
# bound by a binding of any name; deviceshare's have the same.


class AdmissionPolicySpec(Struct, frozen=True, rename="camel"):
    failure_policy: str = "Fail"
    """The API server's default."""
    match_constraints: dict[str, Any] = field(default_factory=dict)


class ExpressionWarning(Struct, frozen=True, rename="camel"):
    field_ref: str = ""
    warning: str = ""


class TypeChecking(Struct, frozen=True, rename="camel"):
    expression_warnings: list[ExpressionWarning] = field(default_factory=list)


class AdmissionPolicyStatus(Struct, frozen=True, rename="camel"):
    type_checking: TypeChecking = TypeChecking()
    """Written by kube-controller-manager, of ValidatingAdmissionPolicies only."""


class AdmissionPolicy(Struct, frozen=True):
    """https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/ and the mutating one's"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: AdmissionPolicySpec = AdmissionPolicySpec()
    status: AdmissionPolicyStatus = AdmissionPolicyStatus()


class PolicyBindingSpec(Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    match_resources: dict[str, Any] = field(default_factory=dict)
    validation_actions: list[str] = field(default_factory=list)


class PolicyBinding(Struct, frozen=True):
    """What puts a policy in force; it may narrow what the policy matches."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: PolicyBindingSpec = PolicyBindingSpec()


class PolicyKinds(Struct, frozen=True):
    """A kind of policies, and the one of their bindings."""

    policies: Kind[AdmissionPolicy]
    bindings: Kind[PolicyBinding]


def _kinds(does: str) -> PolicyKinds:
    api, name = "admissionregistration.k8s.io/v1", f"{does}AdmissionPolicy"
    return PolicyKinds(
        Kind(api, name, f"{does.lower()}admissionpolicies", AdmissionPolicy, namespaced=False),
        Kind(api, f"{name}Binding", f"{does.lower()}admissionpolicybindings", PolicyBinding, namespaced=False),
    )


MUTATING: Final = _kinds("Mutating")
VALIDATING: Final = _kinds("Validating")


async def find(cluster: Cluster, kind: Kind[T], name: str, namespace: str = "") -> T | None:
    """The object, read fresh; None where there is no such object. Raises ApiError."""
    try:
        return await cluster.get(kind, name, namespace)
    except NotFound:
        return None


async def annotate(cluster: Cluster, obj: Written, annotations: Mapping[str, str | None]) -> Written | None:
    """The object with these annotations changed; None where it is gone.

    Raises:
        Conflict: somebody else wrote the object since it was read.
        ApiError: the object could not be written.
    """
    meta = obj.metadata
    body = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
    try:
        return await cluster.patch(_kind_of(obj), meta.name, body, namespace=meta.namespace)
    except NotFound:
        return None


def says_the_same(old: Pod, new: Pod) -> bool:
    """Whether nothing of the pod has changed by which anything is decided here.

    Most changes of a pod that starts or runs are its kubelet's, of its conditions, of its containers' statuses and of a
    phase in which it hasn't ended; and of one that waits kube-scheduler's, of the words of its refusal.
    """
    return (
        old.spec == new.spec
        and replace(old.metadata, resource_version="") == replace(new.metadata, resource_version="")
        and (old.status == new.status or (old.left_out == new.left_out and _decisive(old) == _decisive(new)))
    )


def _decisive(pod: Pod) -> object:
    status, refusal = pod.status, pod.refusal
    if pod.placed_on or status.phase in TERMINAL:
        return status
    every = (status.container_statuses, status.init_container_statuses)
    seen = (each for statuses in every for each in statuses or () if each.allocated_resources)
    allocated = [(each.name, each.allocated_resources) for each in seen]
    running = {"container_statuses": None, "init_container_statuses": None, "ephemeral_container_statuses": None}
    return replace(status, phase="", conditions=[], **running), allocated, refusal and refusal.reason


def subject_of(obj: Group | NodeDevices | Node | Pod) -> Subject:
    """The object as the subject of an Event."""
    meta = obj.metadata
    if isinstance(obj, Node):
        return node_subject(meta.name)
    return Subject(_kind_of(obj), meta.name, meta.namespace, meta.uid)


def _kind_of(obj: Group | NodeDevices | Pod) -> Kind[Any]:
    return PODS if isinstance(obj, Pod) else GROUPS if isinstance(obj, Group) else NODE_DEVICES


def node_subject(name: str) -> Subject:
    """Events about nodes carry the name as UID, as the kubelet's do: `kubectl describe node` looks for that."""
    return Subject(NODES, name, uid=name)
