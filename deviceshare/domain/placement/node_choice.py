"""The choice of a node for a pod behind deviceshare's scheduling gate, and the order in which pods are chosen for.

Devices decide as in filter and prioritize; of nodes that they like equally, the one with the most CPU and memory left
is taken, as kube-scheduler would by default.
"""

from collections.abc import Collection, Generator, Iterable
from typing import Final, NamedTuple

import msgspec

from deviceshare.domain.objects.pod_requests import requests_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.domain.placement.node_fit import misfit, room, summary
from deviceshare.domain.placement.occupancy import Occupancy
from deviceshare.domain.vendors import VENDORS

AT_A_TIME: Final = 64
"""Nodes looked at between two pauses: a millisecond, or 20 where their numbers were never read before."""


class Choice(NamedTuple):
    """The node, or "" and why there is none."""

    node: str
    reason: str = ""


AVOIDED = Reason(ReasonKind.NODE_AVOIDED, "node(s) where kube-scheduler lately found no place for such a pod")


def choose_node(
    fleet: Fleet, occupancy: Occupancy, pod: Pod, request: Request, avoided: Collection[str]
) -> Generator[None, None, Choice]:
    """Returns the node for the pod, which has no obstacle of its own; pauses at each `yield`, as nodes may be many.

    `avoided` are nodes where the cluster's scheduler refused it; its group's home is not avoided, since there is no
    other for it.
    """
    nodes = {node.metadata.name: node for node in fleet.shared_nodes()}
    found, requests = fleet.filter(request, nodes), requests_of(pod)
    refused = {reason: list(names) for reason, names in found.refused.items()}
    pinned, fits = fleet.pinned(request), dict[str, float]()
    for number, name in enumerate(found.fits):
        if number % AT_A_TIME == 0:
            yield
        used = occupancy.used(name)
        reason = misfit(pod, requests, nodes[name], used)
        if reason is None and name in avoided and name != pinned:
            reason = AVOIDED
        if reason is None:
            fits[name] = room(nodes[name], used)
        else:
            refused.setdefault(reason, []).append(name)
    if not fits:
        return Choice("", summary(refused, len(nodes)))
    scores = fleet.prioritize(request, fits)
    return Choice(max(sorted(fits), key=lambda name: (scores[name], fits[name])))


def alike(fleet: Fleet, pod: Pod, avoided: Collection[str]) -> bytes:
    """Equal for waiting pods that are refused for the same reasons; a pod that may have a claim of its own is alone.

    `avoided` as for `choose_node`.
    """
    request = request_of(pod, None) if pod.share and not pod.group else None
    own = pod.metadata.uid if (fleet.home(request) if request else pod.share) else ""
    spec = pod.spec
    asked = spec.node_selector, spec.affinity, spec.tolerations, requests_of(pod), sorted(pod.lacking(VENDORS))
    # A group may take the pods of some namespaces only.
    whose = pod.metadata.namespace if pod.group else ""
    return msgspec.json.encode((own, whose, pod.group or (pod.strategy, pod.share), sorted(avoided), *asked))


def in_turn(pods: Iterable[Pod]) -> list[Pod]:
    """The order of kube-scheduler's queue: by priority, then by age (the plugin PrioritySort)."""
    return sorted(
        pods, key=lambda pod: (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.key)
    )
