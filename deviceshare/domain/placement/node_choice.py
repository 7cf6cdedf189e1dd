"""Node choice: the node on which a group's gated pods are put, and what else decides where a pod may run."""

from collections.abc import Collection, Generator, Iterable, Mapping
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from deviceshare.domain.objects.groups import MOVE, STAY, Group
from deviceshare.domain.objects.nodes import UNSCHEDULABLE, Affinity, Node, NodeTerm, admits, untolerated
from deviceshare.domain.objects.pod_requests import CPU, EXCLUSIVE, PODS, Amounts, amounts, requests_of
from deviceshare.domain.objects.pod_spec import TERMINAL
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import Quantity
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import DIALECTS, POD, Request
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import pod_obstacle, request_of
from deviceshare.domain.vendors import VENDORS

# Barred pods: their own nodeSelector or node affinity rules out every node where their devices can be had.
# No decision depends on this, since kube-scheduler enforces what pods require. But it would only say that nodes
# "didn't match", so the pods are named here, with the cure.

MOST_COMPARED: Final = 400_000
"""Bytes of pods' requirements, times nodes, in one call: a fiftieth of a second. A thousand pods may each require other
things of three thousand nodes, and in a megabyte; those beyond are taken for pods that a node admits."""

_WRITTEN = "an earlier deviceshare wrote a node affinity into the pod, which"
_RECREATE = "delete and recreate the pod, without that affinity if a template of yours has it"
_OWN = "the pod's own nodeSelector or node affinity"
_CHANGE = "change these in what creates the pod and recreate it"


BarredPods = Mapping[str, Reason]
"""By pod, `namespace/name`, in the order of their names: why it waits in vain."""


def ruled_out(fleet: Fleet, request: Request, pods: Iterable[Pod]) -> BarredPods:
    """The pods for which there is no room for what is requested."""
    picky = [pod for pod in pods if pod.pending and (pod.spec.node_selector or pod.spec.affinity)]
    places, left, found = cache(partial(_places, fleet, request)), MOST_COMPARED, dict[str, Reason]()
    reasons: dict[bytes, Reason | None] = {}  # by what pods ask for: those of a Deployment ask for the same
    for pod in sorted(picky, key=lambda pod: pod.metadata.key):
        selector, affinity = pod.spec.node_selector, pod.spec.affinity
        asked = msgspec.json.encode((selector, affinity))
        if asked not in reasons:
            frozen = affinity is not None and affinity.frozen_in
            nodes, what = places(frozen)
            bars = ((left := left - len(asked)) >= 0 and not admits(selector, affinity, node) for node in nodes)
            requirement, cure = (_WRITTEN, _RECREATE) if frozen else (_OWN, _CHANGE)
            why = Reason(ReasonKind.NODES_RULED_OUT, f"{requirement} rules out {what}", cure)
            reasons[asked] = why if nodes and all(bars) else None
        if reason := reasons[asked]:
            found[pod.metadata.key] = reason
    return found


def outsiders(fleet: Fleet, group: Group, pods: Iterable[Pod]) -> BarredPods:
    """The pods that name the group and wait because it takes none of their namespace."""
    pending = sorted((pod.metadata.key, pod.metadata.namespace) for pod in pods if pod.pending)
    return {key: reason for key, name in pending if (reason := fleet.namespaces.obstacle(group, name))}


def _places(fleet: Fleet, request: Request, now: bool) -> tuple[list[Node], str]:
    """Its home; else where it fits `now`; else where its selector would let it; and what these nodes are."""
    holder = "its share" if request.holder.kind == POD else str(request.holder)
    if home := fleet.home(request):
        return fleet.shared_nodes([home]), f"node {home}, where {holder} lives"
    if now:
        fits = fleet.shared_nodes(fleet.filter(request, fleet.names()).fits)
        if there := [node for node in fits if node.ready and not node.spec.unschedulable]:
            return there, f"the nodes where {holder} fits"
    selector = request.node_selector.items()
    selected = [node for node in fleet.shared_nodes() if node.metadata.labels.items() >= selector]
    return selected, f"every shared node that {holder} may go to"


# Lost nodes: which nodes nothing runs on any more, for certain, and which pods still keep a group on one.
# A node that isn't Ready, or can't be reached, may still run its pods. One whose object is gone, or that bears the
# taint node.kubernetes.io/out-of-service, was given up by an administrator or the cloud's controller.
# https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown (KEP-2268)


def is_lost(node: Node | None) -> bool:
    """Whether the node's groups may move; None is a node whose object is gone."""
    return node is None or (node.out_of_service and not node.metadata.unreadable)


def moves(group: Group) -> bool:
    """Whether the group leaves a lost node; one that is being deleted ends with its last pod."""
    return group.spec.node_loss_policy == MOVE and not (group.deleting or group.metadata.unreadable)


def left_behind(group: Group, pods: Iterable[Pod]) -> list[Pod]:
    """The pods because of which the group stays on its lost node: their objects are there, so they may still run.

    That a pod has failed doesn't prove it, since others than its kubelet may have written so; that it succeeded does.
    """
    may_run = (pod for pod in pods if pod.status.phase != "Succeeded" and pod.may_be_of(group.uid))
    return [pod for pod in may_run if pod.node == group.node or (not pod.node and pod.metadata.hides("spec.nodeName"))]


# Cordoned nodes: a group of which no pod runs follows a pod that waits to another node, as after a drain.

_MOST_ASKED: Final = 50
"""Pods of one group that ask for different nodes, of which it is asked where they fit."""


def leaves_cordoned(fleet: Fleet, group: Group, pods: Iterable[Pod]) -> bool:
    """Whether the group leaves its cordoned node: none of `pods`, which name it, goes there, and one elsewhere."""
    home = fleet.node(group.node)
    if home is None or not home.spec.unschedulable or group.spec.cordon_policy == STAY or group.deleting:
        return False
    if fleet.pods(group.uid) or fleet.assumed(group.uid):
        return False
    waiting = [pod for pod in pods if pod.pending and not pod.metadata.deletion_timestamp]
    able = [pod for pod in waiting if pod_obstacle(pod, group, fleet.namespaces) is None]
    if not able or any(untolerated([UNSCHEDULABLE], pod.spec.tolerations) is None for pod in able):
        return False
    fits = fleet.shared_nodes(fleet.situations.overview(group.request._replace(node="")).fits.names)
    asked = {msgspec.json.encode((p.spec.node_selector, p.spec.affinity, p.spec.tolerations)): p for p in able}
    return any(not unusable(node, pod) for pod in [*asked.values()][:_MOST_ASKED] for node in fits)


def unusable(node: Node, pod: Pod | None = None) -> Reason | None:
    """Why no pod, or not this one, may be scheduled to the node, whatever is free there."""
    name = node.metadata.name
    if not node.ready:
        return Reason(ReasonKind.NODE_NOT_READY, "the node is not Ready", f"repair it (kubectl describe node {name})")
    if node.spec.unschedulable:
        return Reason(ReasonKind.NODE_CORDONED, "the node is cordoned", f"kubectl uncordon {name}")
    if pod and (taint := untolerated(node.spec.taints, pod.spec.tolerations)):
        return Reason(ReasonKind.NODE_TAINTED, f"the pod doesn't tolerate the node's taint {taint}")
    if pod and not admits(pod.spec.node_selector, pod.spec.affinity, node):
        return Reason(ReasonKind.NODES_RULED_OUT, "the pod's node selector or affinity rules the node out")
    return None


# A pod's node affinity, tightened to one node: the change that a lifted scheduling gate comes with (decision 16).
# A gated pod's required node affinity may only be tightened: each term may get further requirements, none may go, and
# none may be added (kubernetes/kubernetes, `pkg/apis/core/validation`, ValidatePodUpdate). Terms are alternatives, so
# each of them gets the requirement, but for those without any: they match no node, and can't be changed.


def pinned_to(node: str, affinity: Affinity | None) -> dict[str, Any]:
    """A JSON merge patch of `spec.affinity`, after which it admits this node at most."""
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = affinity.terms if affinity else None
    pinned = [{"matchFields": [here]}] if terms is None else [_tightened(term, here) for term in terms]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": pinned}}}


def _tightened(term: NodeTerm, here: dict[str, Any]) -> dict[str, Any]:
    whole = {key: value for key, value in msgspec.to_builtins(term).items() if value is not None}
    fields = whole.get("matchFields") or []
    if not fields and not whole.get("matchExpressions"):
        return whole
    return {**whole, "matchFields": fields if here in fields else [*fields, here]}


# Occupancy: what the pods on each node request of it, kept up to date at each change of a pod.
# Besides pods that are bound it counts those whose scheduling gate was lifted, and those that are being placed just
# now: kube-scheduler will count them a moment later.


class Occupancy:
    """Mutable, but pure: no await, no clock, no log."""

    def __init__(self) -> None:
        self._seats: dict[str, tuple[str, Amounts]] = {}
        """By the pod's UID, its node and what it requests there."""
        self._assumed: dict[str, tuple[str, Amounts]] = {}
        self._used: dict[str, Amounts] = {}

    def change(self, old: Pod | None, new: Pod | None) -> bool:
        """Takes in a change of one pod; returns whether a node has more left than before."""
        before = self._seats.pop(old.metadata.uid, None) if old else None
        # Its phase alone decides for kube-scheduler, too. Its devices are another matter (Pod.lives).
        seated = new is not None and bool(new.node) and new.status.phase not in TERMINAL
        now = (new.node, requests_of(new)) if new and seated else None
        if new and now:
            self._seats[new.metadata.uid] = now
        if before == now:
            return False
        self._count(before, -1)
        self._count(now, 1)
        return before is not None

    def assume(self, pod: Pod, node: str) -> None:
        """Counts the pod while it is being placed on the node."""
        self.forget(pod)
        self._assumed[pod.metadata.uid] = seat = node, requests_of(pod)
        self._count(seat, 1)

    def forget(self, pod: Pod) -> None:
        """Ends an assumption: the pod was placed, which a change of it shows, or could not be."""
        self._count(self._assumed.pop(pod.metadata.uid, None), -1)

    def assumed(self, pod: Pod) -> bool:
        """Whether the pod is being placed."""
        return pod.metadata.uid in self._assumed

    def used(self, node: str) -> Amounts:
        """What is requested of the node already."""
        return self._used.get(node, {})

    def _count(self, seat: tuple[str, Amounts] | None, sign: int) -> None:
        if seat is None:
            return
        node, requests = seat
        used = self._used.setdefault(node, {})
        for resource, number in requests.items():
            used[resource] = used.get(resource, 0) + sign * number
        if not any(used.values()):
            del self._used[node]


# The fit check: whether kube-scheduler would let a pod onto a node, as far as deviceshare checks that before it.
# Where a scheduling gate has the leader choose the node, the cluster's scheduler binds the pod there or nowhere. It
# checks more than this (other inter-pod affinity, topology spread, volumes, ResourceClaims): a pod that it refuses for
# those is placed once more (loops/leader/gates.py).

MEMORY: Final = "memory"
_NODES: Final = 16_384
"""Nodes whose numbers are remembered: exact arithmetic takes more time than all the rest of the check."""


def misfit(pod: Pod, requests: Amounts, node: Node, used: Amounts) -> Reason | None:
    """Why the pod, which requests this much beside `used`, would not get onto the node: as kube-scheduler says it."""
    if not node.ready:
        return Reason(ReasonKind.NODE_NOT_READY, "node(s) were not ready")
    tolerations = pod.spec.tolerations
    if node.spec.unschedulable and untolerated([UNSCHEDULABLE], tolerations):
        return Reason(ReasonKind.NODE_CORDONED, "node(s) were unschedulable")
    if taint := untolerated(node.spec.taints, tolerations):
        return Reason(ReasonKind.NODE_TAINTED, f"node(s) had untolerated taint {taint}")
    if not admits(pod.spec.node_selector, pod.spec.affinity, node):
        return Reason(ReasonKind.NODES_RULED_OUT, "node(s) didn't match Pod's node affinity/selector")
    lacking, allocatable = list[str](), _allocatable(node)
    for resource, number in sorted(requests.items()):
        there = allocatable.get(resource, 1 if resource.startswith(tuple(EXCLUSIVE)) else 0)
        # The ledger decides on parts of devices; a node advertises more than it has, once it does.
        if number > there - (0 if resource in DIALECTS else used.get(resource, 0)):
            kinds = (text for kind, text in EXCLUSIVE.items() if resource.startswith(kind))
            lacking.append(next(kinds, "Too many pods" if resource == PODS else f"Insufficient {resource}"))
    return Reason(ReasonKind.INSUFFICIENT, ", ".join(dict.fromkeys(lacking))) if lacking else None


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
    counts = []
    for reason, nodes in refused.items():  # many are sentences about one node
        counted = reason.kind is ReasonKind.INSUFFICIENT or reason.text.startswith("node(s)")
        counts.append(f"{len(nodes)} {'' if counted else 'node(s): '}{reason.text}")
    return f"0/{total} shared nodes fit: {', '.join(sorted(counts))}" if counts else "no node is shared"


# The choice of a node for a pod behind deviceshare's scheduling gate, and the order in which pods are chosen for.

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

    `avoided` are nodes where the cluster's scheduler refused it; its group's home is not avoided.
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
    request, spec = request_of(pod, None) if pod.share and not pod.group else None, pod.spec
    own = pod.metadata.uid if (fleet.home(request) if request else pod.share) else ""
    asked = spec.node_selector, spec.affinity, spec.tolerations, requests_of(pod), sorted(pod.lacking(VENDORS))
    whose = pod.metadata.namespace if pod.group else ""  # a group may take the pods of some namespaces only
    wanted = pod.group or (pod.strategy, pod.isolated, pod.share)
    return msgspec.json.encode((own, whose, wanted, sorted(avoided), *asked))


def in_turn(pods: Iterable[Pod]) -> list[Pod]:
    """The order of kube-scheduler's queue: by priority, then by age (the plugin PrioritySort)."""
    return sorted(pods, key=lambda p: (-(p.spec.priority or 0), p.metadata.creation_timestamp or "", p.metadata.key))
