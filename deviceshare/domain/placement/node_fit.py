"""The fit check: whether kube-scheduler would let a pod onto a node, as far as deviceshare checks that before it.

In clusters without a kube-scheduler of our own, deviceshare chooses the node, and the cluster's scheduler binds the pod
there or nowhere. So what it surely refuses is asked first: taints, cordons, the pod's nodeSelector and required node
affinity, and the resources that it requests. It checks more than this (inter-pod affinity, topology spread, volumes,
host ports, ResourceClaims): a pod that it refuses for those is placed once more (loops/leader/gates.py).
https://kubernetes.io/docs/reference/scheduling/config/#scheduling-plugins
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from deviceshare.domain.objects.nodes import UNSCHEDULABLE, Node, admits, untolerated
from deviceshare.domain.objects.pod_requests import CPU, Amounts, amounts
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import Quantity
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import DIALECTS

MEMORY: Final = "memory"
_NODES: Final = 16_384
"""Nodes whose numbers are remembered: exact arithmetic takes more time than all the rest of the check."""

_NODES_WORD: Final = "node(s)"
# The words after the number of nodes, as kube-scheduler has them in its events.
NOT_READY: Final = Reason(ReasonKind.NODE_NOT_READY, "node(s) were not ready")
CORDONED: Final = Reason(ReasonKind.NODE_CORDONED, "node(s) were unschedulable")
RULED_OUT: Final = Reason(ReasonKind.NODES_RULED_OUT, "node(s) didn't match Pod's node affinity/selector")


def misfit(pod: Pod, requests: Amounts, node: Node, used: Amounts) -> Reason | None:
    """Why the pod, which requests this much, would not get onto the node, or None.

    `used` is what the pods there request.
    """
    if not node.ready:
        return NOT_READY
    tolerations = pod.spec.tolerations
    if node.spec.unschedulable and untolerated([UNSCHEDULABLE], tolerations):
        return CORDONED
    if taint := untolerated(node.spec.taints, tolerations):
        return Reason(ReasonKind.NODE_TAINTED, f"node(s) had untolerated taint {taint}")
    if not admits(pod.spec.node_selector, pod.spec.affinity, node):
        return RULED_OUT
    return _shortage(requests, _allocatable(node), used)


def _shortage(requests: Amounts, allocatable: Mapping[str, int], used: Amounts) -> Reason | None:
    lacking = [
        resource
        for resource, number in sorted(requests.items())
        # Of parts of devices the ledger decides; a node advertises more than it has, once it does (share_capacity.py).
        if number > allocatable.get(resource, 0) - (0 if resource in DIALECTS else used.get(resource, 0))
    ]
    if not lacking:
        return None
    names = ["Too many pods" if resource == "pods" else f"Insufficient {resource}" for resource in lacking]
    return Reason(ReasonKind.INSUFFICIENT, ", ".join(names))


def room(node: Node, used: Amounts) -> float:
    """How much of the node's CPU and memory is left, 0 to 1: the more, the rather kube-scheduler would choose it."""
    allocatable = _allocatable(node)
    shares = [1 - used.get(each, 0) / allocatable[each] for each in (CPU, MEMORY) if allocatable.get(each)]
    return max(0.0, sum(shares) / len(shares)) if shares else 0.0


def _allocatable(node: Node) -> Mapping[str, int]:
    return _numbers(tuple(node.status.allocatable.items()))


@lru_cache(_NODES)
def _numbers(quantities: tuple[tuple[str, Quantity], ...]) -> Mapping[str, int]:
    return amounts(dict(quantities), unread=0)


def summary(refused: Mapping[Reason, list[str]], total: int) -> str:
    """Why none of so many shared nodes is chosen, counted by reason, as in kube-scheduler's events."""
    counts = sorted(f"{len(nodes)} {_plural(reason)}" for reason, nodes in refused.items())
    return f"0/{total} shared nodes fit: {', '.join(counts)}" if counts else "no node is shared"


def _plural(reason: Reason) -> str:
    """The reason after a number of nodes; many are sentences about one."""
    counted = reason.kind is ReasonKind.INSUFFICIENT or reason.text.startswith(_NODES_WORD)
    return reason.text if counted else f"{_NODES_WORD}: {reason.text}"
