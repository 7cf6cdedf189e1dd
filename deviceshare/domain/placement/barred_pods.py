"""Barred pods: their own nodeSelector or node affinity rules out every node where their devices can be had.

No decision depends on this, since kube-scheduler enforces what pods require. But it would only say that nodes "didn't
match", so the pods are named here, with the cure.
"""

from collections.abc import Iterable
from functools import cache, partial
from typing import Final, NamedTuple

import msgspec

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node, admits
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import POD, Request
from deviceshare.domain.placement.fleet import Fleet

MOST_COMPARED: Final = 400_000
"""Bytes of pods' requirements, times nodes, in one call: a fiftieth of a second. A thousand pods may each require other
things of three thousand nodes, and in a megabyte; those beyond are taken for pods that a node admits."""

_WRITTEN = "an earlier deviceshare wrote a node affinity into the pod, which"
_RECREATE = "delete and recreate the pod, without that affinity if a template of yours has it"
_OWN = "the pod's own nodeSelector or node affinity"
_CHANGE = "change these in what creates the pod and recreate it"


class Barred(NamedTuple):
    """One such pod, and why."""

    pod: Pod
    reason: Reason


def barred(fleet: Fleet, group: Group, pods: Iterable[Pod]) -> list[Barred]:
    """Those of the pods, which name the group, that wait in vain; in the order of their names."""
    return ruled_out(fleet, group.request, pods)


def ruled_out(fleet: Fleet, request: Request, pods: Iterable[Pod]) -> list[Barred]:
    """Those of the pods, which wait for what is requested, that wait in vain; likewise."""
    picky = [pod for pod in pods if pod.pending and (pod.spec.node_selector or pod.spec.affinity)]
    places, rules_out, found = cache(partial(_places, fleet, request)), _Comparison(), []
    for pod in sorted(picky, key=lambda pod: pod.metadata.key):
        frozen = pod.spec.affinity is not None and pod.spec.affinity.frozen_in
        nodes, what = places(frozen)
        if rules_out(pod, nodes):
            requirement, cure = (_WRITTEN, _RECREATE) if frozen else (_OWN, _CHANGE)
            found.append(Barred(pod, Reason(ReasonKind.NODES_RULED_OUT, f"{requirement} rules out {what}", cure)))
    return found


def outsiders(fleet: Fleet, group: Group, pods: Iterable[Pod]) -> list[Barred]:
    """Those of the pods, which name the group, that wait because it takes none of their namespace; likewise."""
    found = ((pod, fleet.namespaces.obstacle(group, pod.metadata.namespace)) for pod in pods if pod.pending)
    return [Barred(pod, reason) for pod, reason in sorted(found, key=lambda each: each[0].metadata.key) if reason]


class _Comparison:
    """Whether a pod rules out every one of some nodes; once for pods that ask for the same, as a Deployment's do."""

    def __init__(self) -> None:
        self._known: dict[bytes, bool] = {}
        self._left = MOST_COMPARED

    def __call__(self, pod: Pod, nodes: list[Node]) -> bool:
        """`nodes` follow from what the pod asks for."""
        asked = msgspec.json.encode((pod.spec.node_selector, pod.spec.affinity))
        if asked not in self._known:
            self._known[asked] = bool(nodes) and all(self._rules_out(pod, node, len(asked)) for node in nodes)
        return self._known[asked]

    def _rules_out(self, pod: Pod, node: Node, size: int) -> bool:
        self._left -= size
        return self._left >= 0 and not admits(pod.spec.node_selector, pod.spec.affinity, node)


def _places(fleet: Fleet, request: Request, now: bool) -> tuple[list[Node], str]:
    """Where the holder's next pod may go, and what these nodes are.

    That is its home; else where it fits `now`; else where its selector would let it.
    """
    holder = "its share" if request.holder.kind == POD else str(request.holder)
    if home := fleet.home(request):
        return fleet.shared_nodes([home]), f"node {home}, where {holder} lives"
    if now:
        fits = fleet.shared_nodes(fleet.filter(request, fleet.names()).fits)
        if usable := [node for node in fits if node.ready and not node.spec.unschedulable]:
            return usable, f"the nodes where {holder} fits"
    selector = request.node_selector.items()
    selected = [node for node in fleet.shared_nodes() if node.metadata.labels.items() >= selector]
    return selected, f"every shared node that {holder} may go to"
