"""DeviceQuotas over random histories: binders on both nodes, and leaders that recount at any time without any wait.

Two quotas count both groups, and each allows the devices of one. Groups come, go, are released, change their labels
while they are unbound, and are written by anybody; replicas and leaders stop anywhere.
"""

from collections.abc import Coroutine, Sequence
from typing import Any

from deviceshare.domain.objects.device_quota import DeviceQuota, quota_patch
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NODE_DEVICES
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Cause, release
from deviceshare.loops.protocol.reserve import recount
from tests.unit.domain.objects import AMD, GPU
from tests.unit.loops.histories import GROUP_NAMES, NODE_NAMES, USUAL, HistoryWorld, Move, Wait, many, schedules
from tests.unit.loops.model import Actor
from tests.unit.loops.replicas import KINDS, SteppedReplica

QUOTAS = ("first", "second")
COUNTED = {"team": "vision"}


class QuotaWorld(HistoryWorld):
    """Each group wants two devices; two nodes have two each; the quotas allow two in all."""

    def __init__(self, schedule: bytes, moves: Sequence[Move]) -> None:
        self._quotas_put = False
        super().__init__(bytes([0]) + schedule, moves)
        assert self.cluster.compares

    def make_group(self, name: str) -> None:
        if not self._quotas_put:
            self._quotas_put = True
            for quota in QUOTAS:
                spec = {"groupSelector": {"matchLabels": COUNTED}, "hard": {GPU: self.wanted}}
                self.cluster.put(DEVICE_QUOTAS, {"metadata": {"name": quota}, "spec": spec})
                Actor("first count", recount(self.cluster, quota, suspects=[], bound=[])).finish()
        body = {"metadata": {"name": name, "labels": COUNTED}, "spec": {"resources": {GPU: self.wanted}}}
        self.cluster.put(GROUPS, body)

    def _replica(self) -> SteppedReplica:
        replica = super()._replica()
        replica.hear((DEVICE_QUOTAS,))
        return replica

    def quotas_are_heard_of(self) -> None:
        self.pick(self.replicas).hear((DEVICE_QUOTAS, *KINDS))

    def group_is_relabelled(self) -> None:
        """A bound one would take its devices along, in which nobody can hinder its owner."""
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and not group.node:
            labels = {"team": None} if group.metadata.labels else COUNTED
            self.cluster.edit(GROUPS, group.name, {"metadata": {"labels": labels}})

    def quota_is_changed(self) -> None:
        """By which nothing is known to be counted."""
        devices = {GPU: self.wanted, AMD: int(self.pick("01"))}
        self.cluster.edit(DEVICE_QUOTAS, self.pick(QUOTAS), {"spec": {"hard": devices}})

    def quota_is_recounted(self) -> None:
        """Everybody is suspected: how long a bind may take is never waited for."""
        name = self.pick(QUOTAS)
        quota = self._quota(name)
        bound = [group for group in self.cluster.all(GROUPS) if group.node]
        suspects = list(quota.status.reservations)
        self._begin(f"recount {name}", lambda _: recount(self.cluster, name, suspects=suspects, bound=bound))

    def group_is_released(self) -> None:
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        if ledger is None or not ledger.claims:
            return
        uid = self.pick(sorted(ledger.claims))

        def work(wait: Wait) -> Coroutine[Any, Any, Any]:
            async def wait_out(_: str) -> None:
                await wait(self.clock.now)

            return release(self.cluster, ledger.node, uid, BindStop(wait_out), Cause())

        self._begin(f"release {uid}", work)

    def check(self) -> None:
        super().check()
        bound = [group.name for group in self.cluster.all(GROUPS) if group.node and group.metadata.labels]
        assert len(bound) <= 1, "bound groups exceed no quota"

    def settle(self) -> None:
        """Once nobody disturbs, each quota counts the bound groups that match, and nothing else."""
        for name in QUOTAS:
            everybody = self.cluster.all(GROUPS)
            suspects = list(self._quota(name).status.reservations)
            done = Actor("", recount(self.cluster, name, suspects=suspects, bound=everybody)).finish()
            assert isinstance(done, DeviceQuota)
            bound = {group.uid for group in self.cluster.all(GROUPS) if group.node and group.metadata.labels}
            assert done.status.reservations.keys() == bound
            assert quota_patch(done, add={}) == {}
            assert done.status.summary.endswith(f"{GPU}: {2 * len(bound)}/2")

    def _quota(self, name: str) -> DeviceQuota:
        found = self.cluster.read(DEVICE_QUOTAS, name)
        assert found is not None
        return found


MOVES: list[Move] = [
    *USUAL,
    *[QuotaWorld.quota_is_recounted] * 4,
    *[QuotaWorld.quotas_are_heard_of] * 2,
    *[QuotaWorld.group_is_released] * 2,
    QuotaWorld.group_is_relabelled,
    QuotaWorld.quota_is_changed,
]


@many
@schedules
def test_bound_groups_never_exceed_a_quota_in_any_order_of_events(schedule: bytes) -> None:
    """Two groups that only one node's ledger could tell apart, on two nodes: the quota's own versions decide."""
    QuotaWorld(schedule, MOVES).run()
