"""A plan: groups and pods placed on a cluster, one pod after the other, as kube-scheduler would ask.

Whether a node fits, which is best, which devices a group gets and why it waits, all come from the functions that answer
the scheduler extender and the conditions. What only kube-scheduler weighs (CPU, memory, taints, affinity) is left out.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.admission.pod_review import review_new_pod
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.drawing import draw
from deviceshare.domain.answers.picture import Picture
from deviceshare.domain.answers.verdicts import candidates
from deviceshare.domain.answers.waiting import why_a_pod_waits
from deviceshare.domain.objects.devices import selected
from deviceshare.domain.objects.groups import BOUND, Group
from deviceshare.domain.objects.ledger import claim_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement import allocation, topology
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import pod_obstacle


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
    """Those of the plan that join it, as `namespace/name`."""


class Waits(Struct, frozen=True, rename="camel"):
    """One pod of the plan that isn't placed, or that the webhook would refuse."""

    pod: str
    group: str
    reason: str
    why: Reason
    """The same for programs."""


class Plan(Struct, frozen=True, rename="camel"):
    """The answer; `after` is the whole cluster as it would be then."""

    groups: list[Placement]
    waiting: list[Waits]
    after: Picture

    @property
    def complete(self) -> bool:
        """Whether nothing waits."""
        return not self.waiting and all(placement.node for placement in self.groups)


class Planner:
    """Places pods on a fleet, which changes with each."""

    def __init__(self, fleet: Fleet, groups: Mapping[str, Group]) -> None:
        """`groups`: all that exist then, by name; those that live somewhere already stay there."""
        self._fleet = fleet
        self._groups = dict(groups)
        self._before = {name: group.node for name, group in groups.items()}
        self._equals: dict[str, int] = {}
        self._pods: list[Pod] = []
        self._refused: list[Waits] = []

    def plan(self, names: Iterable[str], pods: Iterable[Pod]) -> Plan:
        """Places the pods in their order, then those of the named groups that no pod asked for.

        `pods` are admitted ones that name a group; `names` are the groups to report.
        """
        for pod in pods:
            self._place(pod)
        for name in names:
            if not any(pod.group == name for pod in self._pods):
                self._settle(self._groups[name])
        placements = [self._placement(self._groups[name]) for name in names]
        after = draw(self._fleet, self._groups.values(), self._pods)
        return Plan(placements, [*self._refused, *self._waiting()], after)

    def _place(self, pod: Pod) -> None:
        group = self._groups.get(pod.group)
        if refusal := review_new_pod(pod, group):
            reason = Reason(ReasonKind.REFUSED, f"the webhook would refuse it: {refusal}")
            self._refused.append(Waits(pod.metadata.key, pod.group, str(reason), reason))
            return
        if group is not None and not pod_obstacle(pod, group):
            group = self._settle(group)
            if group.node and not self._fleet.joining_obstacle(group.request, group.node):
                pod = replace(pod, spec=replace(pod.spec, node_name=group.node))
                self._fleet.set_living(group.uid, pod.metadata.key, group.node)
        self._pods.append(pod)

    def _settle(self, group: Group) -> Group:
        """Allocates devices of a node to the group, unless it has some or none fits."""
        fleet = self._fleet
        if fleet.home(group.request):
            return group
        scores = candidates(fleet, group).scores
        if not scores:
            return group
        node = min(scores, key=lambda name: (-scores[name], name))
        devices = allocation.choose(group.request, fleet.available(node))
        ledger = fleet.ledger(node)
        assert devices is not None and ledger is not None, "a node fits only with enough free devices in its ledger"
        claims = {**ledger.claims, group.uid: claim_of(group.holder, devices)}
        fleet.set_ledger(node, replace(ledger, spec=replace(ledger.spec, claims=claims)))
        then = replace(group.status, phase=BOUND, node_name=node, selected_devices=selected(devices))
        self._equals[group.name] = sum(score == scores[node] for score in scores.values()) - 1
        self._groups[group.name] = replace(group, status=then)
        return self._groups[group.name]

    def _placement(self, group: Group) -> Placement:
        mine = [pod for pod in self._pods if pod.group == group.name]
        held = self._fleet.held(group.uid, group.node) or ()
        return Placement(
            group=group.name,
            message=str(group_status.bound(group, self._fleet, mine)),
            node=group.node,
            devices=selected(held),
            why_these=topology.reason(held, self._fleet.available(group.node).links),
            equals=self._equals.get(group.name, 0),
            already=bool(self._before[group.name]),
            pods=[pod.metadata.key for pod in mine if pod.node],
        )

    def _waiting(self) -> Iterable[Waits]:
        for pod in self._pods:
            if not pod.node:
                group = self._groups.get(pod.group)
                bound = group_status.bound(group, self._fleet, [pod]) if group else None
                reason = why_a_pod_waits(self._fleet, pod, group, bound)
                yield Waits(pod.metadata.key, pod.group, str(reason), reason)
