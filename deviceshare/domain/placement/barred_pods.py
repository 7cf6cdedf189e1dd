"""Pods that wait in vain: their own nodeSelector or node affinity rules out every node where their group can be had.

Nothing that deviceshare decides depends on this: kube-scheduler holds pods to what they ask for. It would only say that
nodes "didn't match", so the pods are named here, with the cure.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Final, NamedTuple

import msgspec

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.node_affinity import admits
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.fleet import Fleet

MOST_COMPARED: Final = 2_000_000
"""Bytes of what pods ask of nodes, times nodes, in one look: a tenth of a second. A thousand pods may each ask for
something else of three thousand nodes, and in a megabyte; those beyond are taken for pods that a node admits."""

_RECREATE = "delete and recreate the pod, without that affinity if a template of yours has it"
_CHANGE = "change these in what creates the pod and recreate it"


class Barred(NamedTuple):
    """One such pod, and why."""

    pod: Pod
    reason: Reason


class _Places(NamedTuple):
    """Nodes of which a group's pod must admit one, and what they are."""

    nodes: list[Node]
    what: str


def barred(fleet: Fleet, group: Group, pods: Iterable[Pod]) -> list[Barred]:
    """Those of the pods, which name the group, that wait in vain; in the order of their names."""
    picky = [pod for pod in pods if pod.pending and (pod.spec.node_selector or pod.spec.affinity)]
    if not picky:
        return []
    places = cache(lambda now: _places(fleet, group, now=now))
    ruled_out = _Comparison()
    found = (_judge(pod, places, ruled_out) for pod in sorted(picky, key=lambda pod: pod.metadata.key))
    return [each for each in found if each]


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


def _judge(pod: Pod, places: Callable[[bool], _Places], ruled_out: _Comparison) -> Barred | None:
    frozen = pod.spec.affinity is not None and pod.spec.affinity.frozen_in
    nodes, what = places(frozen)
    if not ruled_out(pod, nodes):
        return None
    if frozen:
        text, cure = f"an earlier deviceshare wrote a node affinity into the pod, which rules out {what}", _RECREATE
    else:
        text, cure = f"the pod's own nodeSelector or node affinity rules out {what}", _CHANGE
    return Barred(pod, Reason(ReasonKind.NODES_RULED_OUT, text, cure))


def _places(fleet: Fleet, group: Group, *, now: bool) -> _Places:
    """Where the group's next pod may go: its home; else where it fits `now`; else where its selector would let it."""
    if home := fleet.home(group.request):
        return _Places(_shared(fleet, [home]), f"node {home}, where group {group.name} lives")
    names = fleet.names()
    if now:
        fits = [node for node in _shared(fleet, fleet.filter(group.request, names).fits) if _usable(node)]
        if fits:
            return _Places(fits, f"the nodes where group {group.name} fits")
    selector = group.spec.node_selector.items()
    selected = [node for node in _shared(fleet, names) if node.metadata.labels.items() >= selector]
    return _Places(selected, f"every shared node that group {group.name} may go to")


def _shared(fleet: Fleet, names: Iterable[str]) -> list[Node]:
    return [node for name in names if (node := fleet.node(name)) and node.shared]


def _usable(node: Node) -> bool:
    return node.ready and not node.spec.unschedulable
