"""The claim protocol where a bound group has no claim, or one without devices: random histories."""

from typing import Any

from deviceshare.domain.objects.groups import Group
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol.release import Cause, Outcome
from tests.unit.loops.histories import CARELESS, GROUP_NAMES, USUAL, HistoryWorld, Move, many, schedules
from tests.unit.loops.model import Actor


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

    def group_leaves(self) -> None:
        """One whose devices others have."""
        for group in self.cluster.all(GROUPS):
            ledger = self.cluster.read(NODE_DEVICES, group.node) if group.node else None
            claim = ledger.claims.get(group.uid) if ledger else None
            if claim and not claim.devices:
                self.begin_release(group.node, group.uid, Cause())

    def settle(self) -> None:
        """Each bound group has its claim again, or has left."""
        for pod in self.cluster.all(PODS):
            if pod.impostor:  # every replica deletes those; they keep a group as long as they live
                self.cluster.remove(PODS, pod.metadata.name, "ns")
        self.refilled |= {ledger.node for ledger in self.cluster.all(NODE_DEVICES) if ledger.devices}
        self.robbed.clear()
        super().settle()
        self.group_leaves()
        for actor, _ in self.others:
            assert Actor.finish(actor) is Outcome.LEFT


UNCLAIMED: list[Move] = [
    *USUAL,
    *CARELESS,
    *[UnclaimedWorld.something_goes_on] * 4,
    *[UnclaimedWorld.claim_is_deleted] * 4,
    *[UnclaimedWorld.claim_is_written_again] * 4,
    *[UnclaimedWorld.group_leaves] * 2,
    UnclaimedWorld.bind_begins,
]


@many
@schedules
def test_a_device_keeps_one_owner_while_claims_are_deleted_and_written_again(schedule: bytes) -> None:
    """Binds, collections, crashes, pauses, deleted ledgers and claims, and the repairs of all that."""
    UnclaimedWorld(schedule, UNCLAIMED).run()
