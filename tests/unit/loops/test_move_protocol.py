"""The claim protocol's move off lost nodes: random histories, and every step interrupted by what could spoil it.

Nodes go and come back with another UID, or bear the taint; empty ledgers of nodes that went are deleted.
"""

from collections.abc import Callable
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import OUT_OF_SERVICE
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.node_choice import is_lost
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS, find
from deviceshare.loops.leader.releaser import stays_on_lost_node
from deviceshare.loops.ports import ApiError
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Cause, Outcome, release
from tests.unit.domain.objects import GPU
from tests.unit.loops.histories import CARELESS, GROUP_NAMES, NODE_NAMES, USUAL, HistoryWorld, Wait, many, schedules
from tests.unit.loops.model import Actor

TAINTED = {"spec": {"taints": [{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]}}


ENDED = {"containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}


class MoveWorld(HistoryWorld):
    """Groups may leave lost nodes."""

    everywhere_at_once = True

    def make_group(self, name: str) -> None:
        spec = {"resources": {GPU: self.wanted}, "nodeLossPolicy": "Move"}
        self.cluster.put(GROUPS, {"metadata": {"name": name}, "spec": spec})

    def node_goes_or_comes_back(self) -> None:
        name = self.pick(NODE_NAMES)
        if self.cluster.read(NODES, name):
            self.cluster.remove(NODES, name)
        else:
            self.node_comes_back(name)

    def node_comes_back(self, name: str) -> None:
        self.cluster.put(NODES, {"metadata": {"name": name, "labels": {contract.MODE_LABEL: "shared"}}})

    def node_is_tainted_or_not(self) -> None:
        name = self.pick(NODE_NAMES)
        if node := self.cluster.read(NODES, name):
            self.cluster.edit(NODES, name, {"spec": None} if node.out_of_service else TAINTED)

    def ledger_is_retired(self) -> None:
        """An empty one of a node that is gone, by its version."""
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        if ledger and not ledger.claims and not self.cluster.read(NODES, ledger.node):
            self.cluster.remove(NODE_DEVICES, ledger.node)
            self.lost.add(ledger.node)

    def move_begins(self) -> None:
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and group.node:
            self._begin(f"move {group.name}", lambda wait: self.moving(group.node, group.uid, wait))

    async def moving(self, name: str, uid: str, wait: Wait) -> Outcome | None:
        """As the reconciler does it."""
        node = await find(self.cluster, NODES, name)
        if not is_lost(node):
            return None
        return await release(self.cluster, name, uid, self.stop_binds(wait), Cause(stays_on_lost_node))


MOVES: list[Any] = [
    *USUAL,
    *CARELESS,
    *[MoveWorld.something_goes_on] * 8,
    *[MoveWorld.move_begins] * 4,
    *[MoveWorld.node_goes_or_comes_back] * 2,
    *[MoveWorld.node_is_tainted_or_not] * 2,
    MoveWorld.ledger_is_retired,
    MoveWorld.bind_begins,
]
MOVES = [getattr(MoveWorld, each.__name__) for each in MOVES]


@many
@schedules
def test_a_device_keeps_one_owner_while_nodes_go_and_come_back(schedule: bytes) -> None:
    """Binds, collections, moves and repairs by two leaders, crashes, stale mirrors, garbage collection."""
    MoveWorld(schedule, MOVES).run()


class Lost(MoveWorld):
    """Group a is bound to n1 and has no pod there any more; p2 of a waits. The replica has heard all of that."""

    def __init__(self, *, gone: bool = True) -> None:
        super().__init__(bytes([0, 0, 0, 0]), [])
        self.replica = self.replicas[0]
        self.replica.hear()
        self.cluster.remove(PODS, "p1", "ns")
        group = self.cluster.read(GROUPS, "a")
        assert group is not None and group.node == "n1"
        self.uid = group.uid
        if gone:
            self.cluster.remove(NODES, "n1")
        else:
            self.cluster.edit(NODES, "n1", TAINTED)

    def begin(self) -> Actor:
        async def at_once(until: float) -> None:
            """Nothing rests on clocks."""

        return Actor("move", self.moving("n1", self.uid, at_once))

    def ledger(self) -> NodeDevices | None:
        return self.cluster.read(NODE_DEVICES, "n1")

    def node(self) -> str:
        group = self.cluster.read(GROUPS, "a")
        assert group is not None
        return group.node

    def pod(self, name: str) -> Pod:
        found = self.cluster.read(PODS, name, "ns")
        assert found is not None
        return found

    # What may happen at any step.

    def bind(self, node: str = "n1") -> str:
        """With a mirror that has heard nothing since the group was bound to n1."""
        return self.replica.finish(self.replica.begin("p2", self.pod("p2").metadata.uid, node))

    def joined(self) -> None:
        self.bind()

    def node_returns(self) -> None:
        """With what another leader does then: its ledger is filled if it is new, marks are taken away."""
        if self._node("n1") is None:
            self.node_comes_back("n1")
        elif self._node("n1").out_of_service:
            self.cluster.edit(NODES, "n1", {"spec": None})
        self.repaired()
        self.collected()

    def repaired(self) -> None:
        """By another leader, which has waited long enough, whether the node is there or not."""

        async def at_once(until: float) -> None:
            """Likewise."""

        Actor("repair", self.recreating("n1", at_once)).finish()

    def collected(self) -> None:
        """By another leader, to which the claim may be suspect."""
        self.collecting().finish()

    def collecting(self) -> Actor:
        async def at_once(mark: str) -> None:
            """Likewise."""

        work = release(self.cluster, "n1", self.uid, BindStop(at_once))
        return Actor("collect", work)

    def ledger_goes(self) -> None:
        """Somebody deletes it, and it comes back with the node."""
        self.cluster.remove(NODE_DEVICES, "n1")
        self.lost.add("n1")
        self.node_returns()

    def ledger_is_replaced(self) -> None:
        """Likewise, and no claim of it has been looked at yet."""
        self.cluster.remove(NODE_DEVICES, "n1")
        self.lost.add("n1")
        self.repaired()

    def sound(self) -> None:
        """A group without a node has no pod, and the protocol's invariants hold."""
        if self._node("n1") and (ledger := self.ledger()) and ledger.devices:
            self.lost.discard("n1")
        self.check()
        using = [pod for pod in self.using() if pod.holder_uid == self.uid]
        assert self.node() or not using, "a group whose pods live somewhere is bound there"


SPOILED: list[Callable[[Lost], None]] = [
    Lost.joined,
    Lost.node_returns,
    Lost.collected,
    Lost.ledger_goes,
    Lost.ledger_is_replaced,
]
STEPS = 18
"""More than a move has."""
WRITTEN = 4
"""The steps of a collection that has written the group, and not yet taken the mark away."""


@pytest.mark.parametrize("gone", [True, False])
def test_a_group_leaves_a_lost_node(gone: bool) -> None:
    """Its next pod goes elsewhere; the ledger outlives its node."""
    world = Lost(gone=gone)
    assert world.begin().finish() is Outcome.LEFT
    ledger = world.ledger()
    assert ledger is not None
    assert (world.node(), ledger.claims) == ("", {})
    world.replica.hear()
    assert world.bind("n2") == ""
    assert world.node() == "n2"
    world.check()
    world.close()


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("steps", range(STEPS))
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("spoil", SPOILED, ids=lambda each: each.__name__)
def test_whatever_happens_between_two_steps_is_safe(
    steps: int, crash: bool, spoil: Callable[[Lost], None], gone: bool
) -> None:
    """A join by a stale mirror in particular: it fails, or the group stays."""
    world = Lost(gone=gone)
    leader = world.begin()
    for _ in range(steps):
        if not leader.over:
            leader.step()
    spoil(world)
    world.sound()
    world.joined()
    world.sound()
    if crash:
        leader.crash()
    else:
        leader.finish()
    world.sound()
    world.joined()
    world.sound()
    assert isinstance(world.begin().finish(), Outcome | ApiError | None)
    world.sound()
    world.close()


@pytest.mark.parametrize("begins", range(1, 14))
@pytest.mark.parametrize("apart", [1, 2, 3])
def test_a_collection_under_way_does_not_let_a_pod_join_a_group_that_leaves(begins: int, apart: int) -> None:
    """Another leader's has written the group already, and takes the mark away after the group was read again."""
    world = Lost(gone=False)
    leader, other = world.begin(), world.collecting()
    for _ in range(begins):
        if not leader.over:
            leader.step()
    for _ in range(WRITTEN):
        if not other.over:
            other.step()
    for _ in range(apart):
        if not leader.over:
            leader.step()
    other.finish()
    world.joined()
    leader.finish()
    world.sound()
    world.close()


@pytest.mark.parametrize("status", [{}, {"phase": "Failed"}, {"phase": "Failed", **ENDED}, {"phase": "Running"}])
def test_a_pod_whose_object_is_there_keeps_the_group(status: dict[str, Any]) -> None:
    """Also while it is being deleted, and when somebody says that it failed: it may still run."""
    world = Lost()
    world.node_comes_back("n1")
    world.repaired()
    world.collected()
    assert world.bind() == ""
    meta = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    world.cluster.edit(PODS, "p2", {"metadata": meta, "status": status}, "ns")
    world.cluster.remove(NODES, "n1")
    assert world.begin().finish() is Outcome.STAYS
    assert world.node() == "n1"
    world.cluster.edit(PODS, "p2", {"status": {"phase": "Succeeded"}}, "ns")
    assert world.begin().finish() is Outcome.LEFT
    world.close()


def test_a_policy_that_was_changed_keeps_the_group() -> None:
    """Until the last step."""
    world = Lost()
    world.cluster.edit(GROUPS, "a", {"spec": {"nodeLossPolicy": "Stay"}})
    assert world.begin().finish() is Outcome.STAYS
    assert world.node() == "n1"
    world.close()


def test_a_node_that_is_only_not_ready_keeps_its_groups() -> None:
    """Its pods may still run."""
    world = Lost()
    world.node_comes_back("n1")
    assert world.begin().finish() is None
    assert world.node() == "n1"
    world.close()


def test_what_others_hold_there_stays_claimed() -> None:
    """A group that stays, by its policy, finds its devices again when the node is back."""
    world = Lost()
    ledger = {"phase": "Bound", "nodeName": "n1", "selectedDevices": {GPU: "0,1"}}
    world.cluster.edit(GROUPS, "a", {"status": None})
    world.cluster.edit(GROUPS, "b", {"spec": {"nodeLossPolicy": "Stay"}, "status": ledger})
    world.cluster.edit(GROUPS, "a", {"status": {"nodeName": "n1", "selectedDevices": {}}})
    world.ledger_is_replaced()
    world.begin().finish()
    found = world.ledger()
    assert found is not None
    assert [claim.group for claim in found.claims.values()] == ["b"]
    world.close()
