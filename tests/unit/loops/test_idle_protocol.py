"""The claim protocol with releases of idle groups, over random histories, on new and on old API servers.

A release may begin at any time, by several leaders, whether its group is idle or not: what it looks at decides.
"""

from typing import Any

from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol import bind, holders
from deviceshare.loops.protocol.bind import claim_all
from deviceshare.loops.protocol.release import Cause, Outcome
from tests.unit.loops.histories import CARELESS, GROUP_NAMES, USUAL, HistoryWorld, Move, many, schedules
from tests.unit.loops.model import Actor

WANTED = Cause(lambda _, pods: any(pod.pending for pod in pods))
"""A waiting pod wants the devices."""
UNWANTED = Cause()
"""None of those that wait could join, or the group is being deleted."""


class IdleWorld(HistoryWorld):
    """Groups without pods are released."""

    def release_begins(self) -> None:
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and group.node:
            self.begin_release(group.node, group.uid, self.pick((WANTED, UNWANTED)))


IDLE: list[Move] = [*USUAL, *[IdleWorld.something_goes_on] * 4, *[IdleWorld.release_begins] * 4, IdleWorld.bind_begins]


class CarelessIdleWorld(IdleWorld):
    """Mirrors know where groups live whose status was wiped."""

    everywhere_at_once = True


@many
@schedules
def test_a_device_keeps_one_owner_while_idle_groups_are_released(schedule: bytes) -> None:
    """Binds, collections, releases, crashes, pauses, deletions and stale mirrors."""
    IdleWorld(schedule, IDLE).run()


@many
@schedules
def test_a_device_keeps_one_owner_while_idle_groups_are_released_and_people_are_careless(schedule: bytes) -> None:
    """The same, with statuses wiped and ledgers deleted, and the repairs of both."""
    CarelessIdleWorld(schedule, [*IDLE, *CARELESS]).run()


@many
@schedules
def test_a_device_keeps_one_owner_while_groups_are_released_whose_pods_refuse_our_writes(schedule: bytes) -> None:
    """Their annotations are full, or a webhook is against any write."""
    IdleWorld(schedule, [*IDLE, *[IdleWorld.pod_refuses_writes] * 3]).run()


class OldServer(IdleWorld):
    """Bindings aren't compared. Pod p1 of group a lives on n1, p2 of a waits."""

    def __init__(self) -> None:
        super().__init__(bytes([1, *[0] * 6]), [])
        assert not self.cluster.compares
        self.replicas[0].hear()

    def releasing(self, cause: Cause) -> Actor:
        group = self.cluster.read(GROUPS, "a")
        assert group is not None
        self.begin_release(group.node, group.uid, cause)
        return self.others[-1][0]

    def a_binding_under_way(self) -> Any:
        """Of p2, which has read everything, and whose request the server has yet to serve."""
        replica, pod = self.replicas[0], self.cluster.read(PODS, "p2", "ns")
        assert pod is not None
        task = replica.begin("p2", pod.metadata.uid, "n1")
        while not replica.requests[0].what.startswith("bind p2"):
            replica.serve(replica.requests[0])
        return task


def test_binds_under_way_are_waited_out_before_a_group_is_released() -> None:
    """One that read the ledger before the mark may still post its Binding; then the group stays."""
    world = OldServer()
    task = world.a_binding_under_way()
    world.cluster.remove(PODS, "p1", "ns")
    actor = world.releasing(UNWANTED)
    while not actor.waiting and not actor.over:
        actor.step()
    assert world.replicas[0].finish(task) == ""
    assert actor.finish() is Outcome.STAYS
    world.check()
    world.close()


def test_a_waiting_pod_takes_the_mark_away_at_once() -> None:
    """It joins by the same claim."""
    world = OldServer()
    world.cluster.remove(PODS, "p1", "ns")
    actor = world.releasing(WANTED)
    assert actor.finish() is Outcome.STAYS
    assert not world.others[-1][1], "nothing was waited for"
    ledger = world.cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert [bool(claim.releasing) for claim in ledger.claims.values()] == [False]
    world.close()


def test_without_a_waiting_pod_nothing_is_waited_for() -> None:
    """Whoever binds now reads the mark."""
    world = OldServer()
    for name in ("p1", "p2"):
        world.cluster.remove(PODS, name, "ns")
    actor = world.releasing(UNWANTED)
    assert actor.finish() is Outcome.LEFT
    assert not world.others[-1][1]
    ledger = world.cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert ledger.claims == {}
    world.close()


def test_a_claim_that_lost_lets_nobody_join_who_read_the_group_before_its_release() -> None:
    """The group left the node, a bind claimed there once more, and another bound the group elsewhere first."""
    world = OldServer()
    world.cluster.remove(PODS, "p1", "ns")
    assert world.releasing(UNWANTED).finish() is Outcome.LEFT
    left = world.cluster.read(GROUPS, "a")
    assert left is not None
    for token, node in (("lost", "n1"), ("won", "n2")):
        Actor(token, claim_all(world.cluster, [bind.wanted_devices(left.request, token=token)], node)).finish()
    ledger = world.cluster.read(NODE_DEVICES, "n2")
    assert ledger is not None
    Actor(
        "won", holders.settle(world.cluster, left, "n2", tuple(ledger.claims[left.uid].devices), token="won")
    ).finish()

    replica, pod = world.replicas[0], world.cluster.read(PODS, "p2", "ns")
    assert pod is not None
    assert (stale := replica.binder._groups.get("a")) and stale.node == "n1", "its mirror is old"
    assert "bound again" in replica.finish(replica.begin("p2", pod.metadata.uid, "n1"))
    world.check()
    world.close()
