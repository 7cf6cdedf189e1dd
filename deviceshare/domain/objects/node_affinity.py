"""A pod's nodeSelector and required node affinity, matched against nodes.

kube-scheduler enforces these; deviceshare reads them only to report the pods that can't run on their group's node.
https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.objects.nodes import Node

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
"""kube-scheduler reads 64 bits; and Python raises ValueError for numbers of more than 4,300 digits."""


class NodeRequirement(Struct, frozen=True, gc=False):
    """A requirement on one label, or on the field `metadata.name`."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None

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


class Affinity(Struct, frozen=True, gc=False, rename="camel"):
    """A pod's `spec.affinity`, as far as it names nodes."""

    node_affinity: NodeAffinity | None = None

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
        fields = [term.match_fields or () for term in self.terms or ()]
        names = {tuple(each.values or ()) for one in fields for each in one if _names_node(each)}
        every = fields and all(any(map(_names_node, one)) for one in fields)
        return next(iter(names))[0] if every and len(names) == 1 else ""

    @property
    def frozen_in(self) -> bool:
        """Whether an earlier deviceshare wrote it: that required shared nodes in each term (decision 10)."""
        ours = NodeRequirement(contract.MODE_LABEL, "In", [contract.MODE_SHARED])
        return any(ours in (term.match_expressions or ()) for term in self.terms or ())


def _names_node(field: NodeRequirement) -> bool:
    return field.key == "metadata.name" and field.operator == "In" and len(field.values or ()) == 1


def admits(selector: Mapping[str, str] | None, affinity: Affinity | None, node: Node) -> bool:
    """Whether a pod with this `spec.nodeSelector` and `spec.affinity` may be scheduled to the node."""
    terms = affinity.terms if affinity else None
    suits = terms is None or any(term.matches(node) for term in terms)
    return suits and (selector or {}).items() <= node.metadata.labels.items()
