"""A LabelSelector, as the specs of groups and quotas have it, and its validation.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/label-selector/
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from deviceshare.domain.objects.printable import printable, quoted
from deviceshare.domain.wording import listed

_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


_PREFIX = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")


OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


_SHOWN: Final = 5


class LabelRequirement(Struct, frozen=True, gc=False):
    """A LabelSelectorRequirement: one condition on one label."""

    key: str = ""
    operator: str = ""
    values: list[str] = field(default_factory=list)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it holds of these labels; a NotIn holds where there is no such label. An unknown operator never."""
        match self.operator:
            case "In":
                return self.key in labels and labels[self.key] in self.values
            case "NotIn":
                return self.key not in labels or labels[self.key] not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False

    def __str__(self) -> str:
        """As kubectl's `-l` has it."""
        key = printable(self.key)
        if self.operator in ("In", "NotIn"):
            shown = [*map(printable, self.values[:_SHOWN]), *(["…"] if len(self.values) > _SHOWN else [])]
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
            faults += _faults(each, f"{path}.matchExpressions")
        return faults


EVERYTHING: Final = LabelSelector()


def _faults(requirement: LabelRequirement, path: str) -> list[str]:
    key, operator, values = requirement.key, requirement.operator, requirement.values
    faults = [] if is_label_key(key) else [f"{path}: {quoted(key)} can't be a label's key"]
    if operator in ("In", "NotIn") and not values:
        faults.append(f"{path}: {operator} needs values")
    elif operator in ("Exists", "DoesNotExist") and values:
        faults.append(f"{path}: {operator} takes no values")
    elif operator not in OPERATORS:
        faults.append(f"{path}: {quoted(operator)} is no operator: use {listed(OPERATORS, link='or')}")
    return faults + [f"{path}: {quoted(each)} can't be a label's value" for each in values if not is_label_value(each)]


def is_label_value(value: str) -> bool:
    """Whether a label can have this value."""
    return not value or _LABEL_NAME.fullmatch(value) is not None


def is_label_key(key: str) -> bool:
    """Whether it is a qualified name, as labels' keys are.

    https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
    """
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _PREFIX.fullmatch(prefix)):
        return False
    return _LABEL_NAME.fullmatch(name) is not None
