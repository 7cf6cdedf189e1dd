"""A node: whether it is shared, ready, and rebooted since its agent's last report."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.object_decoder import Condition, NamedObject, ObjectMeta
from deviceshare.domain.objects.quantities import Quantity
from deviceshare.domain.vendors import NAME

# Taints of nodes and tolerations of pods.
#
# https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/

REPELLING: Final = ("NoSchedule", "NoExecute")
"""The effects that keep a pod from a node; PreferNoSchedule only counts in kube-scheduler's scores."""


class Taint(Struct, frozen=True, gc=False):
    """A node repels pods that don't tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        """As kube-scheduler writes it in its events."""
        return f"{{{self.key}: {self.value}}}"


class Toleration(Struct, frozen=True, gc=False):
    """A pod tolerates each taint that it matches."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def matches(self, taint: Taint) -> bool:
        """An operator of a later Kubernetes matches nothing: better a node too few than one that doesn't fit."""
        if self.effect not in ("", taint.effect):
            return False
        if self.key not in ("", taint.key):
            return False
        if self.operator == "Exists":
            return True
        # An empty key needs the operator Exists.
        return self.operator in ("", "Equal") and bool(self.key) and self.value == taint.value


OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""The key of the taint, whatever its value and effect, that says that the node is down and runs nothing (KEP-2268)."""

UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""What a cordon adds; kube-scheduler lets pods that tolerate it on a cordoned node, such as those of DaemonSets."""


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that repels a pod with these tolerations."""
    known = tuple(tolerations)
    repelling = (taint for taint in taints if taint.effect in REPELLING)
    return next((taint for taint in repelling if not any(each.matches(taint) for each in known)), None)


# Labels of other systems by which a node is shared, where a setting names them: `gpushare=true`.
#
# Such a node is seen as if it had our own label, so that nothing else needs to know of theirs. Our own label wins: by
# another value of it an owner keeps a node out.

T = TypeVar("T", bound=NamedObject)

DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


def is_label_value(value: str) -> bool:
    """Whether a label can have this value."""
    return not value or NAME.fullmatch(value) is not None


def is_label_key(key: str) -> bool:
    """Whether it is a qualified name, as labels' keys are.

    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
    """
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return NAME.fullmatch(name) is not None


def is_label(text: str) -> bool:
    """Whether this is a label with its value."""
    key, equals, value = text.partition("=")
    return bool(equals) and is_label_key(key) and is_label_value(value) and key != contract.MODE_LABEL


class SharingLabels:
    """Calling it with a node returns the node as it is seen."""

    def __init__(self, labels: Iterable[str] = ()) -> None:
        """`labels` are written `key=value`."""
        self.pairs = frozenset((key, value) for key, _, value in (label.partition("=") for label in labels))

    @classmethod
    def written(cls, text: str) -> "SharingLabels":
        """As a flag has them: `key=value`, several with commas."""
        return cls(filter(None, text.split(",")))

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __call__(self, node: T) -> T:
        """`node` is of any type that has a node's metadata."""
        meta = node.metadata
        if contract.MODE_LABEL in meta.labels or self.pairs.isdisjoint(meta.labels.items()):
            return node
        labels = {**meta.labels, contract.MODE_LABEL: contract.MODE_SHARED}
        return replace(node, metadata=replace(meta, labels=labels))


def may_be_shared(node: Any) -> bool:
    """Whether a node as it is seen takes part, or can't be read well enough to tell."""
    meta: ObjectMeta = node.metadata
    return meta.labels.get(contract.MODE_LABEL) == contract.MODE_SHARED or meta.hides("metadata.labels")


class NodeSpec(Struct, frozen=True, gc=False, rename="camel"):
    """The part of a node's spec that matters for placement."""

    unschedulable: bool = False
    taints: list[Taint] = field(default_factory=list)


class NodeInfo(Struct, frozen=True, gc=False):
    boot_id: str = field(default="", name="bootID")


class NodeAddress(Struct, frozen=True, gc=False):
    """https://kubernetes.io/docs/reference/node/node-status/#addresses"""

    type: str = ""
    address: str = ""


class NodeStatus(Struct, frozen=True, gc=False, rename="camel"):
    """`capacity` is what device plugins report, `allocatable` what of it is healthy."""

    allocatable: dict[str, Quantity] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    node_info: NodeInfo = NodeInfo()
    capacity: dict[str, Quantity] = field(default_factory=dict)
    addresses: list[NodeAddress] = field(default_factory=list)


class Node(NamedObject, frozen=True, gc=False, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/node-v1/"""

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatus = field(default_factory=NodeStatus)

    @property
    def shared(self) -> bool:
        """Whether the node has the label by which its owner shares it."""
        return self.metadata.labels.get(contract.MODE_LABEL) == contract.MODE_SHARED

    @property
    def ready(self) -> bool:
        """Whether the kubelet reports the node Ready. A node without that condition is not ready."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)

    @property
    def out_of_service(self) -> bool:
        """Whether somebody says that the node is down, so that none of its pods runs any more."""
        return any(taint.key == OUT_OF_SERVICE for taint in self.spec.taints)

    @property
    def address(self) -> str:
        """Its first internal IP address, or ""."""
        return next((each.address for each in self.status.addresses if each.type == "InternalIP"), "")


def same_boot(node: Node, hardware: Hardware) -> bool:
    """Whether the node is known to be in the boot in which its agent reported."""
    return bool(hardware.boot_id) and node.status.node_info.boot_id == hardware.boot_id


def rebooted(node: Node, hardware: Hardware) -> bool:
    """Whether the node rebooted since its agent reported: the numbers may mean other devices now."""
    booted = node.status.node_info.boot_id
    return bool(booted and hardware.boot_id) and booted != hardware.boot_id


# A pod's nodeSelector and required node affinity, matched against nodes.
#
# kube-scheduler enforces these; deviceshare reads them only to report the pods that can't run on their group's node.
# https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
"""kube-scheduler reads 64 bits; and Python raises ValueError for numbers of more than 4,300 digits."""


class NodeRequirement(Struct, frozen=True, gc=False):
    """A requirement on one label, or on the field `metadata.name`."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None

    @property
    def node_names(self) -> Sequence[str]:
        """The nodes of which it requires one, as a requirement on fields; empty for others."""
        return (self.values or ()) if (self.key, self.operator) == ("metadata.name", "In") else ()

    def holds(self, have: Mapping[str, str]) -> bool:
        value, wanted = have.get(self.key), self.values or ()
        match self.operator:
            case "In":
                return value in wanted
            case "NotIn":
                return value not in wanted
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                numbers = [int(text) for text in (value or "", *wanted) if _INTEGER.fullmatch(text)]
                if len(numbers) != 2:
                    return False
                return numbers[0] > numbers[1] if self.operator == "Gt" else numbers[0] < numbers[1]
        return True  # An operator of a later Kubernetes: better no report than a false one.


class NodeTerm(Struct, frozen=True, gc=False, rename="camel"):
    """Requirements that must all hold. A term without requirements matches no node."""

    match_expressions: list[NodeRequirement] | None = None
    match_fields: list[NodeRequirement] | None = None

    def matches(self, node: Node) -> bool:
        labels, fields = self.match_expressions or [], self.match_fields or []
        if not labels and not fields:
            return False
        name = {"metadata.name": node.metadata.name}
        return all(each.holds(node.metadata.labels) for each in labels) and all(each.holds(name) for each in fields)


class NodeTerms(Struct, frozen=True, gc=False, rename="camel"):
    """Terms of which at least one must match."""

    node_selector_terms: list[NodeTerm] | None = None


class NodeAffinity(Struct, frozen=True, gc=False):
    required: NodeTerms | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


HOSTNAME: Final = "kubernetes.io/hostname"


class PodSelector(Struct, frozen=True, gc=False, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[NodeRequirement] | None = None


class PodTerm(Struct, frozen=True, gc=False, rename="camel"):
    """Pods that it selects by their labels are avoided."""

    topology_key: str = ""
    label_selector: PodSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: PodSelector | None = None

    def excludes(self, labels: Mapping[str, str]) -> bool:
        """Whether it keeps pods with these labels, in the same namespace, off the node."""
        chosen = self.label_selector
        if self.topology_key != HOSTNAME or chosen is None or self.namespaces or self.namespace_selector:
            return False
        same = (chosen.match_labels or {}).items() <= labels.items()
        return same and all(each.holds(labels) for each in chosen.match_expressions or ())


class PodAntiAffinity(Struct, frozen=True, gc=False):
    required: list[PodTerm] | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Struct, frozen=True, gc=False, rename="camel"):
    """A pod's `spec.affinity`, as far as it names nodes, or keeps pods like it apart."""

    node_affinity: NodeAffinity | None = None
    pod_anti_affinity: PodAntiAffinity | None = None

    @property
    def avoids(self) -> list[PodTerm]:
        """The pods that may not be on its node."""
        return (self.pod_anti_affinity and self.pod_anti_affinity.required) or []

    def trimmed(self, labels: Mapping[str, str]) -> "Affinity":
        """Without what it says of pods, unless one with these labels, its own, keeps others like it off its node."""
        mine = [PodTerm(HOSTNAME, PodSelector())] if any(each.excludes(labels) for each in self.avoids) else None
        return Affinity(self.node_affinity, PodAntiAffinity(mine) if mine else None)

    @property
    def terms(self) -> Iterable[NodeTerm] | None:
        """None where any node matches."""
        required = self.node_affinity.required if self.node_affinity else None
        return None if required is None else required.node_selector_terms or ()

    @property
    def size(self) -> int:
        """How many terms, requirements and values it has together."""
        asked = [[*(term.match_expressions or ()), *(term.match_fields or ())] for term in self.terms or ()]
        return sum(1 + sum(1 + len(each.values or ()) for each in requirements) for requirements in asked)

    @property
    def only_node(self) -> str:
        """The node that every term names, as in pods of DaemonSets; "" where another may do."""
        names = [[each.node_names for each in term.match_fields or ()] for term in self.terms or ()]
        single = [{each[0] for each in term if len(each) == 1} for term in names]
        only = set[str]().union(*single)
        return only.pop() if all(single) and len(only) == 1 else ""

    @property
    def frozen_in(self) -> bool:
        """Whether an earlier deviceshare wrote it: that required shared nodes in each term (decision 10)."""
        ours = NodeRequirement(contract.MODE_LABEL, "In", [contract.MODE_SHARED])
        return any(ours in (term.match_expressions or ()) for term in self.terms or ())


def admits(selector: Mapping[str, str] | None, affinity: Affinity | None, node: Node) -> bool:
    """Whether a pod with this `spec.nodeSelector` and `spec.affinity` may be scheduled to the node."""
    terms = affinity.terms if affinity else None
    suits = terms is None or any(term.matches(node) for term in terms)
    return suits and (selector or {}).items() <= node.metadata.labels.items()
