"""Taints of nodes and tolerations of pods.

https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

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
