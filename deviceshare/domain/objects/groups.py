"""A SharedDeviceGroup, and the validation of its name and spec."""

import re

from msgspec import Struct, field

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.allowed_namespaces import AllowedNamespaces
from deviceshare.domain.objects.group_life import life_faults
from deviceshare.domain.objects.label_selector import is_label_key, is_label_value
from deviceshare.domain.objects.object_meta import Condition, ObjectMeta
from deviceshare.domain.objects.printable import printable, quoted
from deviceshare.domain.objects.requests import GROUP, Holder, Request
from deviceshare.domain.wording import listed

MAX_COUNT = 1024
"""Devices of one resource in a group, as in the CRD's schema; more than any node has."""

STAY, MOVE = "Stay", "Move"
"""What becomes of a group whose node is lost."""

PENDING, BOUND, DEGRADED, TERMINATING = "Pending", "Bound", "Degraded", "Terminating"

_DNS_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


class GroupSpec(Struct, frozen=True, gc=False, rename="camel"):
    """What the user requests."""

    resources: dict[str, int] = field(default_factory=dict)
    scheduling_strategy: str = "binpack"
    node_selector: dict[str, str] = field(default_factory=dict)
    release_after: str = ""
    deletion_policy: str = ""
    node_loss_policy: str = STAY
    allowed_namespaces: AllowedNamespaces | None = None

    @property
    def binding(self) -> tuple[dict[str, int], str, dict[str, str]]:
        """What can't change while the group is bound."""
        return self.resources, self.scheduling_strategy, self.node_selector


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


class Group(Struct, frozen=True, gc=False, rename="camel"):
    """The object that users create. Its identity is its UID: a recreated group is another group."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: GroupSpec = field(default_factory=GroupSpec)
    status: GroupStatus = field(default_factory=GroupStatus)

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def node(self) -> str:
        """The node that the group is bound to, or "" while it is pending."""
        return self.status.node_name

    @property
    def holder(self) -> Holder:
        """The group as a holder of devices."""
        return Holder(self.uid, GROUP, self.name)

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
        )

    @property
    def deleting(self) -> bool:
        """Whether the group is being deleted and waits for a finalizer: it keeps its devices, and no pod may join."""
        return self.metadata.deletion_timestamp is not None

    @property
    def rebind(self) -> str:
        """The last request for other devices in place of unhealthy ones; "" when there was none."""
        return self.metadata.annotations.get(contract.REBIND, "")


def name_fault(name: str) -> str:
    """Why no pod could join a group of this name, or "". Pods carry it as a label's value."""
    if not name:
        return "the group's name is empty"
    if len(name) > 63:
        return f"the group's name has {len(name)} characters, but pods carry it as a label, which holds 63"
    if not _DNS_SUBDOMAIN.fullmatch(name):
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
    faults += life_faults(spec.release_after, spec.deletion_policy)
    return faults + (spec.allowed_namespaces.faults() if spec.allowed_namespaces else [])
