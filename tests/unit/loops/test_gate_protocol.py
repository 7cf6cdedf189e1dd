"""The claim protocol behind scheduling gates, over random histories: a patch that lifts the gate is the last step.

Here kube-scheduler, which binds placed pods, is one of those who may do anything at any time, or nothing. Nothing rests
on clocks, since every last step compares the pod's version.
"""

from collections.abc import Sequence
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Cause, Outcome, release
from tests.unit.domain.objects import INJECTED
from tests.unit.loops.histories import CARELESS, GROUP_NAMES, USUAL, HistoryWorld, Move, many, schedules
from tests.unit.loops.model import Actor, Pause
from tests.unit.loops.replicas import SteppedReplica

GATED = {"schedulingGates": [{"name": contract.PLACEMENT_GATE}]}


class GatedWorld(HistoryWorld):
    """Pods are behind our gate; groups may be moved off their node."""

    def __init__(self, schedule: bytes, moves: Sequence[Move]) -> None:
        super().__init__(bytes([0]) + schedule, moves)
        assert self.cluster.compares

    def make_pod(self, name: str, group: str) -> None:
        named = {contract.GROUP: group}
        spec = {"containers": [{"name": "main", "env": INJECTED}], **GATED}
        self.cluster.put(PODS, {"metadata": {"name": name, "labels": named, "annotations": named}, "spec": spec}, "ns")

    def _replica(self) -> SteppedReplica:
        replica = SteppedReplica(self.cluster, self.clock, lifts=True)
        replica.hear()
        return replica

    def using(self) -> list[Pod]:
        """Those that got devices: a pod whose gate somebody else removed may be anywhere, and has none."""
        return [pod for pod in super().using() if pod.holder_uid]

    def scheduler_binds(self) -> None:
        """To the node that the pod's affinity names, while nobody deletes it."""
        pod = self.cluster.read(PODS, self.pick(self.pods), "ns")
        if pod and pod.placed_on and not pod.status.phase:
            self.cluster.edit(PODS, pod.metadata.name, {"spec": {"nodeName": pod.placed_on}}, "ns")

    def pod_is_ungated(self) -> None:
        """By somebody who may update pods; kube-scheduler then binds it anywhere."""
        pod = self.cluster.read(PODS, self.pick(self.pods), "ns")
        if pod and pod.awaits_placement:
            node = {"nodeName": "n1"} if self.pick((True, False)) else {}
            self.cluster.edit(PODS, pod.metadata.name, {"spec": {"schedulingGates": None, **node}}, "ns")

    def pod_is_being_deleted(self) -> None:
        """A finalizer keeps it; once it bears the time, it can't be bound."""
        pod = self.cluster.read(PODS, self.pick(self.pods), "ns")
        if pod and not pod.spec.node_name:
            self.stopped.add(pod.metadata.uid)
            self.cluster.edit(PODS, pod.metadata.name, {"metadata": {"deletionTimestamp": "2026-01-01"}}, "ns")

    def pod_ends(self) -> None:
        """One that isn't bound never began: kubelets don't start a pod that has ended."""
        super().pod_ends()
        unbound = (pod for pod in self.cluster.all(PODS) if pod.status.phase and not pod.spec.node_name)
        self.stopped |= {pod.metadata.uid for pod in unbound}

    def release_begins(self) -> None:
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and group.node:
            self.begin_release_at_once(group.node, group.uid)

    def begin_release_at_once(self, node: str, uid: str) -> None:
        async def at_once(mark: str) -> None:
            """Nothing rests on clocks."""
            await Pause()

        work = release(self.cluster, node, uid, BindStop(at_once), Cause())
        self._begin(f"release {uid}", lambda wait: work) if len(self.others) < 2 else work.close()


GATES: list[Any] = [
    *USUAL,
    *[GatedWorld.something_goes_on] * 6,
    *[GatedWorld.scheduler_binds] * 2,
    *[GatedWorld.release_begins] * 3,
    GatedWorld.pod_is_ungated,
    GatedWorld.pod_is_being_deleted,
    GatedWorld.bind_begins,
]
# The moves that GatedWorld changes, not those that it changed.
GATES = [getattr(GatedWorld, move.__name__) for move in GATES]


class CarelessGatedWorld(GatedWorld):
    """Mirrors know where groups live whose status was wiped."""

    everywhere_at_once = True


@many
@schedules
def test_a_device_keeps_one_owner_behind_gates_in_any_order_of_events(schedule: bytes) -> None:
    """Binds, collections, releases, crashes, deletions, stale mirrors; kube-scheduler binds when it likes."""
    GatedWorld(schedule, GATES).run()


@many
@schedules
def test_a_device_keeps_one_owner_behind_gates_while_people_delete_what_they_should_not(schedule: bytes) -> None:
    """The same, with statuses wiped and ledgers deleted, and the repairs of both."""
    CarelessGatedWorld(schedule, [*GATES, *CARELESS]).run()


class GateBounds(GatedWorld):
    """Pod p1 of group a is placed on n1; p2 of a and p3 of b, which wants both devices, too, wait."""

    def __init__(self) -> None:
        super().__init__(bytes([0, 0, 0]), [])
        self.replica = self.replicas[0]
        self.replica.hear()

    def pod(self, name: str) -> Pod:
        found = self.cluster.read(PODS, name, "ns")
        assert found is not None
        return found

    def bind(self, name: str, replica: SteppedReplica | None = None) -> str:
        chosen = replica or self.replica
        return chosen.finish(chosen.begin(name, self.pod(name).metadata.uid, "n1"))

    def releasing(self) -> Actor:
        group = self.cluster.read(GROUPS, "a")
        assert group is not None

        async def at_once(mark: str) -> None:
            """Nothing rests on clocks."""

        return Actor("release", release(self.cluster, "n1", group.uid, BindStop(at_once), Cause()))

    def holders(self) -> list[str]:
        ledger = self.cluster.read(NODE_DEVICES, "n1")
        assert ledger is not None
        return [claim.group for claim in ledger.claims.values()]


def test_one_patch_places_a_pod() -> None:
    """Devices, the node, its affinity and the gate; from then on it lives there, though nobody bound it."""
    world = GateBounds()
    pod = world.pod("p1")
    assert (pod.spec.node_name, pod.placed_on, pod.node, pod.lives, pod.pending) == ("", "n1", "n1", True, False)
    assert not pod.spec.scheduling_gates
    assert pod.spec.affinity and [term.match_fields for term in pod.spec.affinity.terms or ()] != [None]
    assert {device.index for device in pod.devices} == {0, 1}
    world.close()


def test_a_pod_whose_gate_somebody_removed_gets_nothing() -> None:
    """It may be on any node by then."""
    world = GateBounds()
    world.cluster.edit(PODS, "p2", {"spec": {"schedulingGates": None}}, "ns")
    assert contract.PLACEMENT_GATE in world.bind("p2")
    assert not world.pod("p2").lives
    assert not world.pod("p2").devices
    world.close()


def test_a_gate_that_somebody_removes_meanwhile_is_noticed() -> None:
    """The patch compares the version; what is read again has no gate."""
    world = GateBounds()
    task = world.replica.begin("p2", world.pod("p2").metadata.uid, "n1")
    world.cluster.edit(PODS, "p2", {"spec": {"schedulingGates": None}}, "ns")
    assert contract.PLACEMENT_GATE in world.replica.finish(task)
    assert not world.pod("p2").devices
    world.close()


def test_a_replica_that_died_between_claim_and_patch_leaves_a_pod_that_the_next_one_places() -> None:
    """The claim is the group's; the pod is as gated as before."""
    world = GateBounds()
    task = world.replica.begin("p2", world.pod("p2").metadata.uid, "n1")
    while not world.replica.requests[0].what.startswith("patch p2"):
        world.replica.serve(world.replica.requests[0])
    assert not task.done()
    for request in world.replica.die():
        request.work.close()
    assert world.pod("p2").awaits_placement
    world.replicas[0] = again = world._replica()
    assert world.bind("p2", again) == ""
    assert world.pod("p2").placed_on == "n1"
    world.close()


def test_a_group_leaves_its_node_once_no_pod_lives_there() -> None:
    """A placed one does; a waiting one is no reason to stay."""
    world = GateBounds()
    assert world.releasing().finish() is Outcome.STAYS
    assert world.holders() == ["a"]
    world.cluster.remove(PODS, "p1", "ns")
    assert world.releasing().finish() is Outcome.LEFT
    group = world.cluster.read(GROUPS, "a")
    assert group is not None and not group.node
    assert world.holders() == []
    world.close()


def test_a_patch_under_way_fails_when_the_group_leaves() -> None:
    """It read the ledger before the mark; its pod was written since."""
    world = GateBounds()
    world.cluster.remove(PODS, "p1", "ns")
    task = world.replica.begin("p2", world.pod("p2").metadata.uid, "n1")
    while not world.replica.requests[0].what.startswith("patch p2"):
        world.replica.serve(world.replica.requests[0])
    assert world.releasing().finish() is Outcome.LEFT
    assert world.replica.finish(task)
    assert not world.pod("p2").placed_on
    world.close()
