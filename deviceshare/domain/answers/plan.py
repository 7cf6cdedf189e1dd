"""A plan: groups and pods with shares placed on a cluster, one pod after the other, as kube-scheduler would ask.

Whether a node fits, which is best, which devices a group gets and why it waits, all come from the functions that answer
the scheduler extender and the conditions. Cordons, taints, node selectors and required node affinity count as they do
for kube-scheduler; what else it weighs (CPU, memory, other pods) is left out.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.admission.pod_review import review_new_pod
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.device_parts import ContainerPart
from deviceshare.domain.answers.picture import Picture, Unseen, draw
from deviceshare.domain.answers.waiting import WaitingPod, WaitingReasons, candidates, chosen_shares, unusable
from deviceshare.domain.objects.devices import selected
from deviceshare.domain.objects.groups import BOUND, Group
from deviceshare.domain.objects.ledger import Claim, claim_of, share_claim_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import Request, current
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import invalid, pod_obstacle, request_of
from deviceshare.domain.wording import listed


class Placement(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One group of the plan. Without a node it waits, and `message` says for what, as its condition would."""

    group: str
    message: str
    node: str = ""
    devices: dict[str, str] = field(default_factory=dict)
    """As `status.selectedDevices`."""
    why_these: str = ""
    equals: int = 0
    """How many other nodes are as good; kube-scheduler chooses among them by its own scores."""
    already: bool = False
    """Whether it lived there before."""
    pods: list[str] = field(default_factory=list)
    """The pods of the plan that join it, as `namespace/name`."""


class PlacedPod(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One pod of the plan that gets a share."""

    pod: str
    """`namespace/name`."""
    node: str
    shares: list[ContainerPart]
    """What its containers get."""
    group: str = ""
    """The group of whose devices these are parts."""
    equals: int = 0
    """As of a group."""
    already: bool = False
    """Whether the cluster has the pod, and it is bound."""


class Plan(Struct, frozen=True, rename="camel"):
    """The answer; `after` is the whole cluster as it would be then."""

    groups: list[Placement]
    waiting: list[WaitingPod]
    after: Picture
    pods: list[PlacedPod] = field(default_factory=list)
    """The pods with shares, in the order of the manifests; others are in their group's `pods`."""
    notes: list[str] = field(default_factory=list)
    """How manifests were understood."""
    unseen: list[Unseen] = field(default_factory=list)
    """What the person who asked may not read, and so isn't considered."""

    @property
    def complete(self) -> bool:
        """Whether nothing waits."""
        return not self.waiting and all(placement.node for placement in self.groups)


class Planner:
    """Places pods on a fleet, which changes with each."""

    def __init__(self, fleet: Fleet, groups: Mapping[str, Group], present: Mapping[str, Pod]) -> None:
        """`groups`: all that exist then, by name; those that live somewhere already stay there, as do pods `present`.

        `present` are the cluster's pods by `namespace/name`.
        """
        self._fleet = fleet
        self._groups = dict(groups)
        self._present = present
        self._equals: dict[str, int] = {}
        """How many other nodes are as good, by the groups that were given one."""
        self._pods: list[Pod] = []
        self._placed: list[PlacedPod] = []
        self._refused: list[WaitingPod] = []
        self._kept_off: dict[str, Reason] = {}
        """Why the nodes with room for a pod don't take it, by pod."""

    def plan(self, names: Iterable[str], pods: Iterable[Pod]) -> Plan:
        """Places the pods in their order, then those of the named groups that no pod asked for.

        `pods` are admitted ones that name a group or ask for a share; `names` are the groups to report.
        """
        for pod in pods:
            self._place(pod)
        for name in names:
            if not any(pod.group == name for pod in self._pods):
                self._settle(self._groups[name], self._groups[name].request)
        placements = [self._placement(self._groups[name]) for name in names]
        after = draw(self._fleet, self._groups.values(), self._pods)
        return Plan(placements, [*self._refused, *self._waiting()], after, self._placed)

    def _place(self, pod: Pod) -> None:
        group = self._groups.get(pod.group)
        outsider = self._fleet.namespaces.refusal(group, pod.metadata.namespace) if group else None
        if refusal := review_new_pod(pod, group, largest=self._fleet.largest, outsider=outsider):
            reason = Reason(ReasonKind.REFUSED, f"deviceshare would refuse it: {refusal}")
            self._refused.append(WaitingPod.of(pod, reason))
            return
        there = self._present.get(pod.metadata.key)
        if there is not None and there.shares and there.lives:
            shares = [ContainerPart.of(share) for share in current(there.shares)]
            self._placed.append(PlacedPod(there.metadata.key, there.node, shares, there.group, already=True))
            self._pods.append(there)
            return
        pod = replace(pod, metadata=replace(pod.metadata, uid=pod.metadata.uid or f"planned:{pod.metadata.key}"))
        if not pod_obstacle(pod, group, self._fleet.namespaces):
            pod = self._bound(pod, group)
        self._pods.append(pod)

    def _bound(self, pod: Pod, group: Group | None) -> Pod:
        """The pod on its node, with what it gets there; or as it is, where it has to wait."""
        if (request := request_of(pod, group)) is None:
            return pod
        equals, only = 0, pod.spec.affinity.only_node if pod.spec.affinity else ""
        if group is not None:
            group = self._settle(group, request, pod)
            node = "" if self._fleet.joining_obstacle(group.request, group.node) else group.node
            request = request_of(pod, group) or request
            if node and (why := unusable(self._fleet, node, pod)):
                self._keep_off(pod, f"its group lives on node {node}: {why}")
                return pod
        else:
            node, equals = self._best(request, pod)
        if not node and only and (reason := self._fleet.filter(request, [only]).reasons.get(only)):
            self._kept_off[pod.metadata.key] = replace(reason, text=f"{only}: {reason.text}")
        shares = chosen_shares(self._fleet, request, node) if node and pod.share else ()
        if not node or (pod.share and not shares):
            return pod
        if shares:
            self._claim(node, pod.metadata.uid, share_claim_of(pod.sharer, shares, request.within))
            self._placed.append(PlacedPod(pod.metadata.key, node, [*map(ContainerPart.of, shares)], pod.group, equals))
        for uid in {request.holder.uid, pod.metadata.uid} if shares else {request.holder.uid}:
            self._fleet.set_living(uid, pod.metadata.key, node)
        return replace(pod, spec=replace(pod.spec, node_name=node))

    def _settle(self, group: Group, request: Request, pod: Pod | None = None) -> Group:
        """Allocates devices of a node to the group, of one that the pod may go to, unless it has some or none fits.

        `request` is the group's, with the share of the pod that needs it, if any.
        """
        if self._fleet.home(group.request) or invalid(group):
            return group
        node, equals = self._best(request, pod)
        if not node:
            return group
        devices = allocation.choose(group.request, self._fleet.available(node))
        assert devices is not None, "a node fits only with enough free devices in its ledger"
        self._claim(node, group.uid, claim_of(group.holder, devices))
        self._fleet.quotas.reserve(group.request)
        then = replace(group.status, phase=BOUND, node_name=node, selected_devices=selected(devices))
        self._equals[group.name] = equals
        self._groups[group.name] = replace(group, status=then)
        return self._groups[group.name]

    def _best(self, request: Request, pod: Pod | None) -> tuple[str, int]:
        """The best node for the request that the pod may go to, and how many are as good; "" where none fits."""
        scores, reasons = candidates(self._fleet, request, pod)
        if pod is not None and not scores:
            alike: dict[str, list[str]] = {}
            for name in self._fleet.filter(request, [*reasons]).fits:
                alike.setdefault(str(reasons[name]), []).append(name)
            text = "; ".join(f"{listed(sorted(names), most=3)}: {why}" for why, names in sorted(alike.items()))
            if alike:
                self._keep_off(pod, f"no node with room takes it: {text}")
        if not scores:
            return "", 0
        node = min(scores, key=lambda name: (-scores[name], name))
        return node, sum(score == scores[node] for score in scores.values()) - 1

    def _keep_off(self, pod: Pod, text: str) -> None:
        self._kept_off[pod.metadata.key] = Reason(ReasonKind.NODES_RULED_OUT, text)

    def _claim(self, node: str, uid: str, claim: Claim) -> None:
        ledger = self._fleet.ledger(node)
        assert ledger is not None, "a node without a ledger fits nobody"
        self._fleet.set_ledger(node, replace(ledger, spec=replace(ledger.spec, claims={**ledger.claims, uid: claim})))

    def _placement(self, group: Group) -> Placement:
        mine = [pod for pod in self._pods if pod.group == group.name]
        held = self._fleet.held(group.uid, group.node) or ()
        return Placement(
            group=group.name,
            message=str(group_status.bound(group, self._fleet, mine)),
            node=group.node,
            devices=selected(held),
            why_these=allocation.topology_reason(held, self._fleet.available(group.node).links),
            equals=self._equals.get(group.name, 0),
            already=bool(group.node) and group.name not in self._equals,
            pods=[pod.metadata.key for pod in mine if pod.node],
        )

    def _waiting(self) -> Iterable[WaitingPod]:
        waits = WaitingReasons(self._fleet)
        for pod in self._pods:
            if not pod.node:
                group = self._groups.get(pod.group)
                bound = group_status.bound(group, self._fleet, [pod], waits) if group else None
                said = waits.of_pod(pod, group, bound)
                if said.kind is not ReasonKind.NODES_RULED_OUT:  # which conditions say in the same words
                    said = self._kept_off.get(pod.metadata.key, said)
                yield WaitingPod.of(pod, said)
