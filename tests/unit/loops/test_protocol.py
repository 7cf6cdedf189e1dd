"""The claim protocol over random histories: any interleaving, any crash, stale reads, two collectors, hands in the data.

Hypothesis draws a schedule; each step of it lets one actor go to its next request, stops one for ever, or lets the
world change. After every step the invariants of design.md must hold.
"""

from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from deviceshare.domain import contract
from deviceshare.domain.devices import Device, devices_of
from deviceshare.domain.fleet import Fleet
from deviceshare.domain.groups import Group
from deviceshare.domain.ledger import as_json, new_ledger
from deviceshare.domain.nodes import Node
from deviceshare.loops import claiming, collecting, repairing
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from tests.unit.loops.model import Actor, ModelCluster, Pause

GPU = "nvidia.com/gpu"
NODE_NAMES = ("n1", "n2")
GROUP_NAMES = ("a", "b")
POD_NAMES = ("p1", "p2", "p3")
BINDS_OVER = "every bind that began before is over"


class Protocol(RuleBasedStateMachine):
    """Two nodes of two devices, two groups of two, three pods, any number of binds and collections."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ModelCluster()
        self.binds: list[Actor] = []
        self.collections: list[tuple[Actor, list[Actor]]] = []
        self.repairs: list[tuple[Actor, list[Actor]]] = []
        self.history: dict[str, deque[Group]] = {name: deque(maxlen=4) for name in GROUP_NAMES}
        self.marks = 0
        self.lost: set[str] = set()
        """Nodes whose ledger somebody deleted and nobody made again yet."""

    @initialize()
    def a_cluster_with_groups_and_pods(self) -> None:
        for name in NODE_NAMES:
            self.cluster.put(NODES, {"metadata": {"name": name, "labels": {contract.MODE_LABEL: "shared"}}})
            node = self.cluster.read(NODES, name)
            assert node is not None
            self.cluster.put(NODE_DEVICES, self._ledger_body(node))
        for name in GROUP_NAMES:
            self._make_group(name)
        for name in POD_NAMES:
            self._make_pod(name, "a" if name != "p3" else "b")

    # The world.

    @rule(name=st.sampled_from(GROUP_NAMES))
    def the_group_is_deleted_or_made_again(self, name: str) -> None:
        if self.cluster.read(GROUPS, name):
            self.cluster.remove(GROUPS, name)
        else:
            self._make_group(name)

    @rule(name=st.sampled_from(POD_NAMES), group=st.sampled_from(GROUP_NAMES))
    def the_pod_ends_or_is_made_again(self, name: str, group: str) -> None:
        if self.cluster.read(PODS, name, "ns"):
            self.cluster.remove(PODS, name, "ns")
        else:
            self._make_pod(name, group)

    @rule(name=st.sampled_from(POD_NAMES))
    def the_pod_finishes(self, name: str) -> None:
        pod = self.cluster.read(PODS, name, "ns")
        if pod and pod.lives:
            self.cluster.edit(PODS, name, {"status": {"phase": "Succeeded"}}, "ns")

    @rule(name=st.sampled_from(GROUP_NAMES))
    def somebody_wipes_the_status(self, name: str) -> None:
        group = self.cluster.read(GROUPS, name)
        if group and group.node and group.node not in self.lost and self._claim_of(group):
            self.cluster.edit(GROUPS, name, {"status": None})

    @rule(name=st.sampled_from(NODE_NAMES))
    def somebody_deletes_the_ledger(self, name: str) -> None:
        self.cluster.remove(NODE_DEVICES, name)
        self.lost.add(name)

    # deviceshare.

    @rule(pod=st.sampled_from(POD_NAMES), node=st.sampled_from(NODE_NAMES), age=st.integers(0, 3))
    def a_bind_begins_with_a_group_that_may_be_stale(self, pod: str, node: str, age: int) -> None:
        found = self.cluster.read(PODS, pod, "ns")
        if found is None or not found.pending or len(self.binds) >= 4:
            return
        current = self.cluster.read(GROUPS, found.group)
        if current:
            self._remember(current)
        versions = self.history[found.group]
        if not versions:
            return
        group = versions[max(0, len(versions) - 1 - age)]
        home = self._fleet().home(group)
        work = claiming.bind(self.cluster, found, group, node, home=home, timeout=1)
        self.binds.append(Actor(f"bind {pod} to {node}", work))

    @rule(node=st.sampled_from(NODE_NAMES), data=st.data())
    def a_collection_begins(self, node: str, data: st.DataObject) -> None:
        ledger = self.cluster.read(NODE_DEVICES, node)
        if ledger is None or not ledger.claims or len(self.collections) >= 2:
            return
        uid = data.draw(st.sampled_from(sorted(ledger.claims)))
        started: list[Actor] = []

        async def wait_out_binds(mark: str) -> None:
            started.extend(self.binds)
            await Pause(BINDS_OVER)

        work = collecting.collect(
            self.cluster, node, uid, new_mark=self._new_mark, wait_out_binds=wait_out_binds
        )
        self.collections.append((Actor(f"collect {uid} on {node}", work), started))

    @rule(name=st.sampled_from(GROUP_NAMES))
    def a_wiped_status_is_repaired(self, name: str) -> None:
        if len(self.repairs) < 2:
            self.repairs.append((Actor(f"readopt {name}", repairing.readopt(self.cluster, name)), []))

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def a_lost_ledger_is_made_again(self, data: st.DataObject) -> None:
        if len(self.repairs) >= 2:
            return
        node = self.cluster.read(NODES, data.draw(st.sampled_from(sorted(self.lost))))
        assert node is not None
        started: list[Actor] = []

        async def wait_out_binds() -> None:
            started.extend(self.binds)
            await Pause(BINDS_OVER)

        async def work() -> Any:
            made = await repairing.recreate(self.cluster, node, wait_out_binds=wait_out_binds)
            self.lost.discard(node.metadata.name)
            return made

        self.repairs.append((Actor(f"recreate {node.metadata.name}", work()), started))

    @rule(data=st.data(), steps=st.integers(1, 8))
    def an_actor_goes_on(self, data: st.DataObject, steps: int) -> None:
        actors = self._ready()
        if not actors:
            return
        actor = data.draw(st.sampled_from(actors))
        for _ in range(steps):
            if actor.over:
                break
            actor.step()
            self._track_recreation()
            if actor.waiting:
                break
            self.no_device_has_two_owners()
        self._tidy()

    @rule(data=st.data())
    def an_actor_stops_for_ever(self, data: st.DataObject) -> None:
        actors = [*self.binds, *(a for a, _ in self.collections), *(a for a, _ in self.repairs)]
        if actors:
            data.draw(st.sampled_from(actors)).crash()
        self._tidy()

    @rule()
    def time_passes_until_every_bind_is_over(self) -> None:
        for bind in self.binds:
            bind.crash()
        self._tidy()

    # What must hold after every step.

    @invariant()
    def no_device_has_two_owners(self) -> None:
        owners: dict[tuple[str, Device], str] = {}
        for pod in self.cluster.all(PODS):
            if pod.lives:
                for device in pod.devices:
                    owner = owners.setdefault((pod.node, device), pod.group_uid)
                    assert owner == pod.group_uid, f"{device} of {pod.node} serves {owner} and {pod.group_uid}"

    @invariant()
    def a_device_is_in_at_most_one_claim(self) -> None:
        for ledger in self.cluster.all(NODE_DEVICES):
            devices = [device for claim in ledger.claims.values() for device in claim.devices]
            assert len(devices) == len(set(devices)), ledger

    @invariant()
    def a_group_lives_on_one_node(self) -> None:
        homes: dict[str, str] = {}
        for pod in self.cluster.all(PODS):
            if pod.lives:
                assert homes.setdefault(pod.group_uid, pod.node) == pod.node

    @invariant()
    def a_bound_group_holds_its_claim(self) -> None:
        for group in self.cluster.all(GROUPS):
            if group.node and group.node not in self.lost:
                assert self._claim_of(group), f"{group.name} says it lives on {group.node}"

    @invariant()
    def a_pods_annotation_equals_its_groups_claim(self) -> None:
        for pod in self.cluster.all(PODS):
            ledger = self.cluster.read(NODE_DEVICES, pod.node) if pod.lives else None
            if ledger and pod.group_uid in ledger.claims:
                assert tuple(sorted(ledger.claims[pod.group_uid].devices)) == pod.devices

    def teardown(self) -> None:
        for actor in [*self.binds, *(a for a, _ in self.collections), *(a for a, _ in self.repairs)]:
            actor.crash()

    # How the model is set up.

    def _ready(self) -> list[Actor]:
        waiters = [*self.collections, *self.repairs]
        free = [actor for actor, started in waiters if not actor.waiting or all(bind.over for bind in started)]
        return [actor for actor in [*self.binds, *free] if not actor.over]

    def _tidy(self) -> None:
        self.binds = [actor for actor in self.binds if not actor.over]
        self.collections = [(a, s) for a, s in self.collections if not a.over]
        self.repairs = [(a, s) for a, s in self.repairs if not a.over]

    def _track_recreation(self) -> None:
        self.lost = {name for name in self.lost if self.cluster.read(NODE_DEVICES, name) is None}
        for ledger in self.cluster.all(NODE_DEVICES):
            if not ledger.devices:  # The controller's other half writes what the node has.
                self.cluster.edit(NODE_DEVICES, ledger.node, {"status": {"devices": as_json(devices_of({GPU: 2}))}})

    def _fleet(self) -> Fleet:
        fleet = Fleet()
        for ledger in self.cluster.all(NODE_DEVICES):
            fleet.set_ledger(ledger.node, ledger)
        for pod in self.cluster.all(PODS):
            if pod.lives:
                fleet.set_living(pod.group_uid, pod.metadata.key, pod.node)
        return fleet

    def _claim_of(self, group: Group) -> bool:
        ledger = self.cluster.read(NODE_DEVICES, group.node)
        return ledger is not None and group.uid in ledger.claims

    def _ledger_body(self, node: Node) -> dict[str, Any]:
        return {**new_ledger(node, {}), "status": {"devices": as_json(devices_of({GPU: 2}))}}

    def _make_group(self, name: str) -> None:
        self.cluster.put(GROUPS, {"metadata": {"name": name}, "spec": {"resources": {GPU: 2}}})
        group = self.cluster.read(GROUPS, name)
        assert group is not None
        self._remember(group)

    def _make_pod(self, name: str, group: str) -> None:
        named = {contract.GROUP: group}
        self.cluster.put(PODS, {"metadata": {"name": name, "labels": named, "annotations": named}}, "ns")

    def _remember(self, group: Group) -> None:
        versions = self.history[group.name]
        if not versions or versions[-1] != group:
            versions.append(group)

    def _new_mark(self) -> str:
        self.marks += 1
        return f"mark-{self.marks}"


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=400, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
