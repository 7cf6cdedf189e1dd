"""SharedDeviceGroups."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.nodes import DNS_SUBDOMAIN, NodeRequirement, is_label_key, is_label_value
from deviceshare.domain.objects.object_decoder import Condition, NamedObject, ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import seconds_of
from deviceshare.domain.objects.shares import GROUP, Holder, Request
from deviceshare.domain.wording import listed, printable, quoted

# A LabelSelector, as the specs of groups and quotas have it, and its validation.
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/label-selector/

OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_SHOWN: Final = 5


class LabelRequirement(NodeRequirement, frozen=True, gc=False):
    """A LabelSelectorRequirement: one condition on one label."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it holds of these labels; a NotIn holds where there is no such label. An unknown operator never."""
        return self.operator in OPERATORS and self.holds(labels)

    def faults(self, path: str) -> list[str]:
        """What the API server would refuse; `path` names the field."""
        faults = [] if is_label_key(self.key) else [f"{path}: {quoted(self.key)} can't be a label's key"]
        if self.operator in ("In", "NotIn") and not self.values:
            faults.append(f"{path}: {self.operator} needs values")
        elif self.operator in ("Exists", "DoesNotExist") and self.values:
            faults.append(f"{path}: {self.operator} takes no values")
        elif self.operator not in OPERATORS:
            faults.append(f"{path}: {quoted(self.operator)} is no operator: use {listed(OPERATORS, link='or')}")
        wrong = (each for each in self.values or () if not is_label_value(each))
        return faults + [f"{path}: {quoted(each)} can't be a label's value" for each in wrong]

    def __str__(self) -> str:
        """As kubectl's `-l` has it."""
        key = printable(self.key)
        if self.operator in ("In", "NotIn"):
            values = self.values or []
            shown = [*map(printable, values[:_SHOWN]), *(["…"] if len(values) > _SHOWN else [])]
            return f"{key} {self.operator.lower()} ({', '.join(shown)})"
        return f"!{key}" if self.operator == "DoesNotExist" else key


class LabelSelector(Struct, frozen=True, gc=False, rename="camel"):
    """All of it must hold; an empty one matches everything."""

    match_labels: dict[str, str] = field(default_factory=dict)
    match_expressions: list[LabelRequirement] = field(default_factory=list)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return labels.items() >= self.match_labels.items() and all(
            each.matches(labels) for each in self.match_expressions
        )

    def __str__(self) -> str:
        """As kubectl's `-l` has it; "" for one that matches everything."""
        equal = [f"{printable(key)}={printable(value)}" for key, value in sorted(self.match_labels.items())]
        parts = [*equal, *map(str, self.match_expressions)]
        return ",".join([*parts[:_SHOWN], *(["…"] if len(parts) > _SHOWN else [])])

    def faults(self, path: str) -> list[str]:
        """What the API server would refuse in a selector of its own; `path` names the field."""
        faults = []
        for key, value in sorted(self.match_labels.items()):
            if not is_label_key(key):
                faults.append(f"{path}.matchLabels: {quoted(key)} can't be a label's key")
            if not is_label_value(value):
                faults.append(f"{path}.matchLabels: {quoted(value)} can't be a label's value")
        for each in self.match_expressions:
            faults += each.faults(f"{path}.matchExpressions")
        return faults


EVERYTHING: Final = LabelSelector()


# A group's life: after how long without pods it is released, and what becomes of its deletion while pods use it.
#
# The group's spec says so, or else deviceshare's own settings.

NEVER: Final = "never"
REFUSE, AFTER_LAST_POD = "Refuse", "AfterLastPod"
DELETION_POLICIES: Final = (REFUSE, AFTER_LAST_POD)


class GroupLife(NamedTuple):
    """What holds for groups whose spec doesn't say."""

    release_after: str = NEVER
    deletion_policy: str = AFTER_LAST_POD

    def release_seconds(self, release_after: str) -> int | None:
        """After how many seconds without pods a group with this in its spec is released; None for never.

        What can't be read is never.
        """
        return seconds_of(release_after or self.release_after) or None

    def outlives_deletion(self, deletion_policy: str) -> bool:
        """Whether a deletion is accepted while pods use the group, and takes effect after the last of them."""
        return (deletion_policy or self.deletion_policy) == AFTER_LAST_POD


DEFAULT_LIFE: Final = GroupLife()


def release_fault(text: str) -> str:
    """Why this can't be `spec.releaseAfter`, or "". No time at all is refused: elsewhere it often means never."""
    if text == NEVER or seconds_of(text):
        return ""
    return f"{quoted(text)} is neither a duration of at least 1s, such as 30m or 1h30m, nor never"


# A group's `spec.allowedNamespaces`: the namespaces whose pods may join, in the form that Gateway API's routes have.
#
# https://gateway-api.sigs.k8s.io/reference/spec/#routenamespaces

ALL, SELECTOR = "All", "Selector"
PATH: Final = "spec.allowedNamespaces"
_LONGEST: Final = 256
"""Characters of the owner's message, as in the CRD's schema."""


class AllowedNamespaces(Struct, frozen=True, gc=False):
    """Without it in a group's spec, the pods of all namespaces may join."""

    from_: str = field(default=ALL, name="from")
    selector: LabelSelector | None = None
    names: list[str] = field(default_factory=list)
    message: str = ""
    """What the group's owner says to those whose pods are refused: strangers write and strangers read it."""

    def admits(self, name: str, labels: Mapping[str, str] | None) -> bool | None:
        """Whether pods of the namespace may join; None where that takes its `labels` and they aren't known."""
        if self.from_ == ALL or name in self.names:
            return True
        if self.selector is None:
            return False
        return None if labels is None else self.selector.matches(labels)

    @property
    def described(self) -> str:
        """Whose pods the group takes: the object of a sentence."""
        if self.from_ == ALL:
            return "those of every namespace"
        parts, names = [], listed(map(printable, self.names), most=_SHOWN)
        if names:
            parts.append(f"those of {'namespace' if len(self.names) == 1 else 'namespaces'} {names}")
        if self.selector is not None:
            labels = str(self.selector)
            parts.append(f"those of namespaces with the labels {labels}" if labels else "those of every namespace")
        return listed(parts) or "those of no namespace, since neither selector nor names says which"

    @property
    def said(self) -> str:
        """The owner's message in one line, or ""."""
        return printable(self.message[:_LONGEST]).strip()

    def faults(self) -> list[str]:
        """What makes it impossible to say who may join, each naming the field and what to do."""
        if self.from_ not in (ALL, SELECTOR):
            return [f"{PATH}.from: {quoted(self.from_)} is neither {ALL} nor {SELECTOR}"]
        if self.from_ == ALL and (self.names or self.selector is not None):
            return [
                f"{PATH}: from is {ALL}, so selector and names would not count: set from: {SELECTOR}, or leave them out"
            ]
        return self.selector.faults(f"{PATH}.selector") if self.selector else []


MAX_COUNT = 1024
"""Devices of one resource in a group, as in the CRD's schema; more than any node has."""

CLAIM: Final = "claim"
"""How a group's devices are handed over: by a ResourceClaim that its pods name (DRA), not by variables."""

STAY, MOVE = "Stay", "Move"
"""What becomes of a group whose node is lost, or cordoned."""

PENDING, BOUND, DEGRADED, TERMINATING = "Pending", "Bound", "Degraded", "Terminating"


class GroupSpec(Struct, frozen=True, gc=False, rename="camel"):
    """What the user requests."""

    resources: dict[str, int] = field(default_factory=dict)
    scheduling_strategy: str = "binpack"
    node_selector: dict[str, str] = field(default_factory=dict)
    release_after: str = ""
    deletion_policy: str = ""
    node_loss_policy: str = STAY
    cordon_policy: str = MOVE
    allowed_namespaces: AllowedNamespaces | None = None
    handover: str = ""

    @property
    def binding(self) -> tuple[object, ...]:
        """What can't change while the group is bound."""
        return self.resources, self.scheduling_strategy, self.node_selector, self.handover, self.claim_namespace

    @property
    def claim_namespace(self) -> str:
        """The namespace of the ResourceClaim by which devices are handed over; "" where they are not."""
        allowed = self.allowed_namespaces
        one = allowed and allowed.from_ == SELECTOR and allowed.selector is None and len(allowed.names) == 1
        return allowed.names[0] if self.handover == CLAIM and allowed and one else ""


class GroupStatus(Struct, frozen=True, gc=False, rename="camel"):
    """Where the group is bound. `node_name` decides that; the other fields inform people.

    `fence` is raised by the collector, so that a bind that read the group before fails (claims.md, collect, step 2).
    `claim_token` is that of the claim by which the group is bound (claims.md, bind, step 2).
    """

    phase: str = ""
    reason: str = ""
    """In one word why it isn't ready, or has no devices yet; "" where it has them. For people, as the next two."""
    wants: str = ""
    devices: str = ""
    node_name: str = ""
    selected_devices: dict[str, str] = field(default_factory=dict)
    allocated_pods: list[str] = field(default_factory=list)
    pod_count: int | None = None
    conditions: list[Condition] = field(default_factory=list)
    idle_since: str = ""
    observed_generation: int = 0
    fence: int = 0
    claim_token: str = ""


class FieldManager(Struct, frozen=True, gc=False):
    """Who set some of an object's fields: by `Apply`, server-side, or by `Update`."""

    operation: str = ""


class GroupMeta(ObjectMeta, frozen=True, gc=False, rename="camel"):
    managed_fields: list[FieldManager] = field(default_factory=list)


class Group(NamedObject, frozen=True, gc=False, rename="camel"):
    """The object that users create. Its identity is its UID: a recreated group is another group."""

    metadata: GroupMeta = field(default_factory=GroupMeta)
    spec: GroupSpec = field(default_factory=GroupSpec)
    status: GroupStatus = field(default_factory=GroupStatus)

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def node(self) -> str:
        """The node that the group is bound to, or "" while it is pending."""
        return self.status.node_name

    @property
    def as_read(self) -> dict[str, Any]:
        """The metadata of a write that fails where somebody has written the group since it was read.

        It also clears the managed fields that admission didn't.
        https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields
        """
        meta: dict[str, Any] = {"resourceVersion": self.metadata.resource_version}
        if self.has_idle_managers:
            meta["managedFields"] = [{}]
        return meta

    @property
    def has_idle_managers(self) -> bool:
        """Whether the API server works at each write through a record of who set which field that nobody uses.

        It is used where somebody applies the group server-side: it says what the next apply removes (decision 4).
        """
        managers = self.metadata.managed_fields
        return bool(managers) and all(each.operation == "Update" for each in managers)

    @property
    def holder(self) -> Holder:
        """The group as a holder of devices."""
        return Holder(self.metadata.uid, GROUP, self.metadata.name)

    @property
    def request(self) -> Request:
        """What it wants, and where it lives."""
        spec = self.spec
        return Request(
            self.holder,
            spec.resources,
            spec.scheduling_strategy,
            spec.node_selector,
            self.node,
            labels=self.metadata.labels,
            by_claim=bool(spec.handover),
        )

    @property
    def deleting(self) -> bool:
        """Whether the group is being deleted and waits for a finalizer: it keeps its devices, and no pod may join."""
        return self.metadata.deletion_timestamp is not None

    @property
    def claim(self) -> str:
        """The ResourceClaim by which its pods get the devices, as `namespace/name`, or ""."""
        return f"{self.spec.claim_namespace}/{claim_name(self.uid)}" if self.spec.claim_namespace else ""

    @property
    def rebind(self) -> str:
        """The last request for other devices in place of unhealthy ones; "" when there was none."""
        return "" if self.claim else self.metadata.annotations.get(contract.REBIND, "")


def claim_name(uid: str) -> str:
    """The name of the ResourceClaim of the group with this UID."""
    return f"{contract.NAME}-{uid}"


def name_fault(name: str) -> str:
    """Why no pod could join a group of this name, or "". Pods carry it as a label's value."""
    if not name:
        return "the group's name is empty"
    if len(name) > 63:
        return f"the group's name has {len(name)} characters, but pods carry it as a label, which holds 63"
    if not DNS_SUBDOMAIN.fullmatch(name):
        return f"{name!r} can't be a group's name: use lower case letters, digits, '-' and '.'"
    return ""


def spec_faults(spec: GroupSpec) -> list[str]:
    """What makes the group impossible to bind, each naming the field and what to do; empty for a valid spec.

    The CRD's schema refuses most of this; the rest can't be expressed in a schema that Kubernetes 1.20 accepts.
    """
    faults = []
    if not spec.resources:
        faults.append("spec.resources is empty: name at least one, such as nvidia.com/gpu: 1")
    by_variable: dict[str, str] = {}
    for resource, count in sorted(spec.resources.items()):
        vendor = vendors.vendor_of(resource)
        if vendor is None:
            what = "unknown resource" if is_label_key(resource) else "no resource can be called"
            faults.append(f"spec.resources: {what} {quoted(resource)}; known are {listed(vendors.known_resources())}")
        elif vendor.env in by_variable:
            other = by_variable[vendor.env]
            faults.append(f"spec.resources: {other} and {resource} share the variable {vendor.env}; use two groups")
        else:
            by_variable[vendor.env] = resource
        if not 1 <= count <= MAX_COUNT:
            faults.append(f"spec.resources[{printable(resource)}]: {count} is not between 1 and {MAX_COUNT}")
    if spec.scheduling_strategy not in ("binpack", "spread"):
        faults.append(f"spec.schedulingStrategy: {quoted(spec.scheduling_strategy)} is neither binpack nor spread")
    for key, value in sorted(spec.node_selector.items()):
        if not is_label_key(key):
            fault = f"{quoted(key)} can't be a label's key; see kubectl get nodes --show-labels"
            faults.append(f"spec.nodeSelector: {fault}")
        if not is_label_value(value):
            faults.append(f"spec.nodeSelector[{printable(key)}]: {quoted(value)} can't be a label's value")
    if spec.release_after and (fault := release_fault(spec.release_after)):
        faults.append(f"spec.releaseAfter: {fault}")
    if spec.deletion_policy and spec.deletion_policy not in DELETION_POLICIES:
        faults.append(f"spec.deletionPolicy: {quoted(spec.deletion_policy)} is neither Refuse nor AfterLastPod")
    faults += spec.allowed_namespaces.faults() if spec.allowed_namespaces else []
    return faults + _handover_faults(spec)


def _handover_faults(spec: GroupSpec) -> list[str]:
    if not spec.handover:
        return []
    if spec.handover != CLAIM:
        return [f"spec.handover: {quoted(spec.handover)} is not {CLAIM}: leave it out to hand over by variables"]
    if not spec.claim_namespace:
        whose = f"set {PATH} to from: {SELECTOR} and one namespace in names"
        return [f"spec.handover: pods of one namespace can share a ResourceClaim: {whose}, or leave handover out"]
    return [
        f"spec.handover: {resource} has no DRA driver whose devices deviceshare can tell apart: leave it out"
        for resource in sorted(spec.resources)
        if (vendor := vendors.vendor_of(resource)) and not (vendor.dra and vendor.dra.whole)
    ]


# Users of a group: the pods that its deletion, refused or accepted, is about.


def uses(pod: Pod, group: Group) -> bool:
    """A pod with devices names their group by UID; one that runs without may have lost that record, so it counts."""
    return pod.lives and (pod.holder_uid == group.uid if pod.holder_uid else pod.group == group.name)


def users(group: Group, pods: Iterable[Pod]) -> list[str]:
    """The pods that use the group, as `namespace/name`."""
    return sorted(pod.metadata.key for pod in pods if uses(pod, group))


# A Namespace, of which only name and labels are read.


class NamespaceObject(NamedObject, frozen=True, gc=False):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/namespace-v1/"""

    @property
    def labels(self) -> dict[str, str] | None:
        """None where they can't be read."""
        return None if self.metadata.hides("metadata.labels") else self.metadata.labels


def without_annotations(namespace: NamespaceObject) -> NamespaceObject:
    """What is worth holding of it, since a cluster may have thousands."""
    return replace(namespace, metadata=replace(namespace.metadata, annotations={}))
