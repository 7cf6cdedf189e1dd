"""Readiness, the condition Ready of a group: one answer for `kubectl wait`, kstatus, Argo CD and `kubectl get`.

A group that nobody waits for is ready: it may get its first pod long after it was created, and tools that wait for all
that they applied would never end (docs/decisions/0018-ready-condition.md).
https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
"""

from typing import Final, NamedTuple

from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.reasons import Reason, ReasonKind

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

_UNASKED: Final = (ReasonKind.NO_PODS, ReasonKind.RELEASED, ReasonKind.GATED)
"""Of a valid group without a node: no pod that may be scheduled now wants its devices."""


class Readiness(NamedTuple):
    """The condition's status and reason, and the word of the column WHY: "" where the group has what it wants."""

    status: str
    reason: Reason
    why: str


def readiness(group: Group, bound: Reason, healthy: str, health: Reason) -> Readiness:
    """What follows from the reason of Bound, and from the status and reason of Healthy."""
    if group.deleting:
        text = "it is being deleted, and no pod can join it"
        return _readiness(FALSE, Reason(ReasonKind.GROUP_DELETING, text))
    if not group.node:
        return _readiness(TRUE if bound.kind in _UNASKED else FALSE, bound)
    return Readiness(TRUE, bound, "") if healthy == TRUE else _readiness(healthy, health)


def wants_line(group: Group) -> str:
    """`nvidia.com/gpu: 2`, as in the spec."""
    return ", ".join(f"{resource}: {count}" for resource, count in sorted(group.spec.resources.items()))


def devices_line(chosen: dict[str, str]) -> str:
    """`0,1`; of several resources `amd.com/gpu 0 and nvidia.com/gpu 0,1`."""
    return described(chosen) if len(chosen) > 1 else "".join(chosen.values())


def _readiness(status: str, reason: Reason) -> Readiness:
    return Readiness(status, reason, reason.kind.value)
