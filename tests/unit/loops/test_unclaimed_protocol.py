"""The claim protocol where a bound group has no claim: how that comes about, random histories, and two leaders."""

from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Conflict
from deviceshare.loops.protocol import holders, repair, whole_devices
from deviceshare.loops.protocol.claiming import claim_all
from deviceshare.loops.protocol.release import Release
from deviceshare.loops.protocol.unclaimed import leave
from tests.unit.loops.histories import CARELESS, GROUP_NAMES, USUAL, HistoryWorld, Move, Wait, many, schedules
from tests.unit.loops.model import Actor
from tests.unit.loops.replicas import SteppedReplica


class UnclaimedWorld(HistoryWorld):
    """Somebody deletes claims of groups that are bound and have no live pod."""

    everywhere_at_once = True

    def __init__(self, schedule: bytes, moves: Any) -> None:
        self.robbed: set[tuple[str, str]] = set()
        super().__init__(schedule, moves)

    def claim_is_deleted(self) -> None:
        """Not while a bind is under way that may have read it: nothing could protect its pod."""
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group is None or not group.node or not super().claim_held(group):
            return
        if self.in_flight() or any(replica.binds for replica in self.replicas):
            return
        if group.uid not in {pod.holder_uid for pod in self.using()}:
            self.cluster.edit(NODE_DEVICES, group.node, {"spec": {"claims": {group.uid: None}}})
            self.robbed.add((group.node, group.uid))

    def claim_held(self, group: Group) -> bool:
        return super().claim_held(group) or (group.node, group.uid) in self.robbed

    def leaving_begins(self) -> None:
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and group.node:
            self.begin_leaving(group)

    def begin_leaving(self, group: Group) -> None:
        mark = self._new_mark()

        def work(wait: Wait) -> Any:
            async def wait_out(mark: str) -> None:
                await wait(self.seen_mark.setdefault(mark, self.clock.now) + self.binds_over())

            return leave(
                self.cluster, group.node, group.holder, mark=mark, new_mark=self._new_mark, wait_out_binds=wait_out
            )

        self._begin(f"leave {group.uid}", work)

    def settle(self) -> None:
        """A group that nobody could join leaves."""
        for group in self.cluster.all(GROUPS):
            ledger = self.cluster.read(NODE_DEVICES, group.node) if group.node else None
            if ledger and ledger.devices and group.uid not in ledger.claims:
                self.clock.now += 100
                self.begin_leaving(group)
                assert self.others[-1][0].finish() is Release.LEFT
                self.check()


UNCLAIMED: list[Move] = [
    *USUAL,
    *CARELESS,
    *[UnclaimedWorld.something_goes_on] * 4,
    *[UnclaimedWorld.claim_is_deleted] * 4,
    *[UnclaimedWorld.leaving_begins] * 4,
    UnclaimedWorld.bind_begins,
]


@many
@schedules
def test_a_device_keeps_one_owner_while_groups_without_a_claim_leave(schedule: bytes) -> None:
    """Binds, collections, crashes, pauses, deleted ledgers and claims, and the repairs of all that."""
    UnclaimedWorld(schedule, UNCLAIMED).run()


class IgnoringServer(UnclaimedWorld):
    """Bindings aren't compared. Pod p1 of group a lives on n1, p2 of a waits; b is unbound, and p3 of it waits."""

    compared = False

    def __init__(self) -> None:
        super().__init__(bytes([not self.compared, *[0] * 6]), [])
        assert self.cluster.compares is self.compared

    def group(self, name: str) -> Group:
        found = self.cluster.read(GROUPS, name)
        assert found is not None
        return found

    def ledger(self, node: str) -> NodeDevices:
        found = self.cluster.read(NODE_DEVICES, node)
        assert found is not None
        return found

    def recreating(self, node: str, mark: str) -> Actor:
        async def wait_out() -> None:
            raise AssertionError("nothing has to be waited for")

        work = repair.recreate(
            self.cluster,
            self._node(node),
            gather=lambda: repair.fenced_evidence(self.cluster),
            mark=mark,
            wait_out_binds=wait_out,
        )
        return Actor(f"recreate {mark}", work)

    def open(self, node: str) -> None:
        gather = repair.evidence
        Actor(
            "open",
            repair.open_ledger(self.cluster, node, self.have, gather=lambda: gather(self.cluster), mark="opened"),
        ).finish()

    def a_binding_under_way(self) -> tuple[SteppedReplica, Any]:
        """Of p2, which has read everything, and whose request the server has yet to serve."""
        replica, pod = self.replicas[0], self.cluster.read(PODS, "p2", "ns")
        assert pod is not None
        replica.hear()
        task = replica.begin("p2", pod.metadata.uid, "n1")
        while not replica.requests[0].what.startswith("bind p2"):
            replica.serve(replica.requests[0])
        return replica, task

    def leaving(self, name: str) -> Actor:
        self.begin_leaving(self.group(name))
        return self.others[-1][0]

    def delete_claim(self, name: str) -> None:
        group = self.group(name)
        self.cluster.edit(NODE_DEVICES, group.node, {"spec": {"claims": {group.uid: None}}})
        self.robbed.add((group.node, group.uid))


class ComparingServer(IgnoringServer):
    """Bindings are compared, and nobody waits."""

    compared = True


def test_a_recreation_that_slept_leaves_a_group_without_its_claim_and_that_is_repaired() -> None:
    """The ledger is lost, recreated by another leader, and lost once more before the sleeper creates it."""
    world = IgnoringServer()
    world.cluster.remove(NODE_DEVICES, "n2")
    sleeper = world.recreating("n2", "asleep")
    for _ in ("list groups", "fence b", "list pods", "create"):
        sleeper.step()
    world.recreating("n2", "awake").finish()
    world.open("n2")
    unbound = world.group("b")
    claiming = claim_all(world.cluster, [whole_devices.wanted(unbound.request, token="t")], "n2")
    devices = tuple(Actor("claim", claiming).finish().ledger.claims[unbound.uid].devices)
    world.cluster.remove(NODE_DEVICES, "n2")
    sleeper.finish()
    world.open("n2")
    Actor("settle", holders.settle(world.cluster, unbound, "n2", devices, token="t")).finish()

    assert world.group("b").node == "n2"
    assert world.ledger("n2").claims == {}
    assert world.leaving("b").finish() is Release.LEFT
    assert not world.group("b").node
    world.close()


def test_binds_under_way_are_waited_out_before_a_group_leaves() -> None:
    """One that read the claim before it was deleted may still post its Binding; then the group stays."""
    world = IgnoringServer()
    replica, task = world.a_binding_under_way()
    world.cluster.remove(PODS, "p1", "ns")
    world.delete_claim("a")
    actor = world.leaving("a")
    while not actor.waiting and not actor.over:
        actor.step()
    assert replica.finish(task) == ""
    assert actor.finish() is Release.STAYS
    assert world.group("a").node == "n1"
    world.close()


def test_a_binding_under_way_fails_once_the_group_left() -> None:
    """Where it carries the version of the pod, which was touched meanwhile."""
    world = ComparingServer()
    replica, task = world.a_binding_under_way()
    world.cluster.remove(PODS, "p1", "ns")
    world.delete_claim("a")
    assert world.leaving("a").finish() is Release.LEFT
    replica.finish(task)
    assert not world.using()
    world.close()


def test_a_leader_that_saw_a_live_pod_before_claims_nothing_for_it_any_more() -> None:
    """A pod could join by that claim while its group leaves."""
    world = IgnoringServer()
    pods, group = world.using(), world.group("a")
    world.delete_claim("a")
    seen = world.ledger("n1")
    for name in ("p1", "p2"):
        world.cluster.remove(PODS, name, "ns")
    actor = world.leaving("a")
    for _ in ("get group", "get ledger", "list pods", "write ledger", "write group"):
        actor.step()
    assert not actor.over
    late = repair.cover(world.cluster, seen, pods, group.uid, token=group.status.claim_token)
    assert isinstance(Actor("cover", late).finish(), Conflict)
    assert contract.BIND_FENCE in world.ledger("n1").metadata.annotations, "an API server stores no equal object"
    assert actor.finish() is Release.LEFT
    world.close()


def test_a_group_whose_claim_is_put_back_meanwhile_stays() -> None:
    """Whatever step of its leaving that comes after; then there is nothing to repair."""
    for steps in range(1, 5):
        world = IgnoringServer()
        claim = world.cluster.objects[NODE_DEVICES.plural]["n1"]["spec"]["claims"][world.group("a").uid]
        for name in ("p1", "p2"):
            world.cluster.remove(PODS, name, "ns")
        world.delete_claim("a")
        actor = world.leaving("a")
        for _ in range(steps):
            actor.step()
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {world.group("a").uid: claim}}})
        assert actor.finish() is Release.ABSENT or isinstance(actor.outcome, Conflict)
        assert world.group("a").node == "n1"
        world.close()


def test_a_closed_or_lost_ledger_is_left_to_its_repair() -> None:
    """Which claims for the groups that are bound there."""
    world = IgnoringServer()
    world.delete_claim("a")
    for name in ("p1", "p2"):
        world.cluster.remove(PODS, name, "ns")
    world.cluster.edit(NODE_DEVICES, "n1", {"status": {"devices": None}})
    assert world.leaving("a").finish() is Release.ABSENT
    world.cluster.remove(NODE_DEVICES, "n1")
    assert world.leaving("a").finish() is Release.ABSENT
    assert world.group("a").node == "n1"
    world.close()
