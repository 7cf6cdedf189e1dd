"""The protocol's shares over random histories, in the same world: pods want parts of devices, or of a group's.

What holds is judged from API objects alone, by what pods were told: no device over its size, none of a group and of an
outsider at once, a group's parts inside the group, every live part claimed as it was told, and at last nothing leaked.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GPU_MEM, GPU_PERCENT
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol import repair
from deviceshare.loops.protocol.bind import claim_all, wanted_share
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import release
from tests.unit.domain.objects import GPU, a_sharing_container
from tests.unit.loops.histories import CARELESS, GROUP_NAMES, NODE_NAMES, USUAL, HistoryWorld, many, schedules
from tests.unit.loops.model import Actor, Pause

GIB = 16
"""Memory of each device."""
WANTED: tuple[tuple[bool, dict[str, dict[str, int]]], ...] = (
    (False, {"main": {GPU_MEM: 10}}),
    (False, {"main": {GPU_PERCENT: 70}}),
    (False, {"main": {GPU_MEM: 4}, "other": {GPU_PERCENT: 40}}),
    (False, {"main": {GPU_PERCENT: 100}}),
    (True, {"main": {GPU_MEM: 10}}),
    (True, {"main": {GPU_PERCENT: 70}, "other": {}}),
    (True, {"main": {}}),
)
"""Whether the pod names a group, and what its containers ask for. Few of them fit on one device together."""


class SharingWorld(HistoryWorld):
    """Two nodes of one device, two groups that want it whole, four pods that want parts of it, or of the group's."""

    devices = 1
    wanted = 1
    pods: Sequence[str] = ("p1", "p2", "p3", "p4")
    known: ClassVar[Mapping[str, Any]] = {"memoryMib": {GPU: GIB * 1024}}

    def memory_is_known(self) -> None:
        """A ledger that was recreated doesn't know it at first."""
        node = self.pick(NODE_NAMES)
        if self.cluster.read(NODE_DEVICES, node):
            self.cluster.edit(NODE_DEVICES, node, {"status": dict(self.known)})

    def make_pod(self, name: str, group: str) -> None:
        joins, containers = self.pick(WANTED)
        named = {contract.GROUP: group} if joins else {}
        meta = {"name": name, "labels": {contract.GROUP: group if joins else ""}, "annotations": named}
        spec = {"containers": [a_sharing_container(each, limits) for each, limits in containers.items()]}
        self.cluster.put(PODS, {"metadata": meta, "spec": spec}, "ns")

    def bind_gives_up_half_way(self) -> None:
        """With its claim written, all at once, so that most histories have something to get wrong."""
        pod = self.cluster.read(PODS, self.pick(self.pods), "ns")
        node = self.pick(NODE_NAMES)
        if pod is None or not pod.pending or not pod.share or not self.cluster.read(NODE_DEVICES, node):
            return
        request = request_of(pod, self.cluster.read(GROUPS, pod.group) if pod.group else None)
        if request is not None:
            Actor("binder", claim_all(self.cluster, [wanted_share(request)], node)).finish()
            self.check()

    def share_is_collected(self) -> None:
        """Up to its wait, if there is one; what the collector does then is told by `something_goes_on`."""
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        mine = [uid for uid, claim in ledger.claims.items() if claim.pod] if ledger else []
        if ledger and mine:
            self.begin_collection(ledger.node, self.pick(sorted(mine)))
            collector, waits = self.others[-1]
            while not collector.over and not waits and self.pick((True, True, True, True, False)):
                collector.step()
                self.check()
            self._tidy()

    # The invariants.

    def check(self) -> None:
        pods = self.using()
        homes: dict[str, str] = {}
        whole: dict[tuple[str, int], str] = {}
        for pod in pods:
            uid = pod.metadata.annotations[contract.GROUP_UID]
            assert homes.setdefault(uid, pod.node) == pod.node, "a group lives on one node"
            for number in told_whole(pod):
                assert whole.setdefault((pod.node, number), uid) == uid, "a device serves one group"
        parts: dict[tuple[str, int], Fraction] = {}
        for pod in pods:
            for number, part in told_parts(pod).items():
                key = pod.node, number
                parts[key] = parts.get(key, Fraction(0)) + part
                assert parts[key] <= 1, "a device is never over its size"
                if pod.group:
                    assert number in told_whole(pod), "a part of a group's pod is of the group's devices"
                else:
                    assert key not in whole, "a device is never a group's and an outsider's at once"
        for ledger in self.cluster.all(NODE_DEVICES):
            self.check_ledger(ledger, [pod for pod in pods if pod.node == ledger.node])
        for group in self.cluster.all(GROUPS):
            known = not group.node or group.node in self.lost | self.refilled
            assert known or self.claim_held(group), "a bound group holds its claim"

    def check_ledger(self, ledger: NodeDevices, pods: Iterable[Pod]) -> None:
        owners: dict[int, str] = {}
        parts: dict[int, Fraction] = {}
        for uid, claim in ledger.claims.items():
            mine = [share_json(share) for share in claim.shares]
            for device in claim.devices:
                owner = claim.within or ("pods" if claim.shares else uid)
                if not claim.within or claim.within in ledger.claims:
                    assert owners.setdefault(device.index, owner) == owner, "a device is a group's, or for shares"
            for number, part in parts_of(mine).items():
                parts[number] = parts.get(number, Fraction(0)) + part
                assert parts[number] <= 1, "claims never exceed a device"
        if ledger.node in self.lost:
            return
        for pod in pods:
            annotations = pod.metadata.annotations
            if pod.group:
                claim = ledger.claims[annotations[contract.GROUP_UID]]
                assert {device.index for device in claim.devices} == told_whole(pod), "a pod is told what its group has"
            if told := json.loads(annotations.get(contract.SHARES, "[]")):
                assert pod.metadata.uid in ledger.claims, "the share of a live pod stays claimed"
                claim = ledger.claims[pod.metadata.uid]
                assert [share_json(share) for share in claim.shares] == told, "a pod is told what its claim has"
                assert claim.within == (annotations[contract.GROUP_UID] if pod.group else ""), "and of whose devices"

    def settle(self) -> None:
        """Whatever was left half-way, leaders end it, and every claim is of somebody who lives there."""
        for pod in self.cluster.all(PODS):
            if pod.impostor:  # every replica deletes those
                self.cluster.remove(PODS, pod.metadata.name, "ns")
        for name in sorted(self.lost):
            self._end(self.recreating(name, at_once))
        for name in GROUP_NAMES:
            self._end(repair.readopt(self.cluster, name))
        self.lost.clear()
        super().settle()
        for _ in range(3):  # a group's claim after those within it, and once more after a mark was taken away
            for ledger in self.cluster.all(NODE_DEVICES):
                for uid in ledger.claims:
                    self._end(release(self.cluster, ledger.node, uid, BindStop(_over)))
                    self.check()
        live = {
            (pod.node, uid) for pod in self.cluster.all(PODS) if pod.lives for uid in (pod.holder_uid, pod.share_uid)
        }
        bound = {(group.node, group.uid) for group in self.cluster.all(GROUPS)}
        for ledger in self.cluster.all(NODE_DEVICES):
            for uid, claim in ledger.claims.items():
                assert (ledger.node, uid) in live | bound, "nothing leaks"
                assert not claim.releasing or claim.group, "no pod waits for ever behind a mark"

    def _end(self, work: Any) -> None:
        actor = Actor("the end", work)
        outcome = actor.finish()
        assert not isinstance(outcome, Exception), outcome


class RoomySharingWorld(SharingWorld):
    """The same with two devices on each node, and mirrors that know where groups live when their status was wiped."""

    devices = 2
    everywhere_at_once = True


async def _over(mark: str) -> None:
    await Pause()


async def at_once(until: float) -> None:
    await Pause()


def told_whole(pod: Pod) -> set[int]:
    """The numbers of its group's devices, as the pod was told."""
    told = json.loads(pod.metadata.annotations.get(contract.SELECTED_DEVICES, "{}"))
    return {int(number) for numbers in told.values() for number in numbers.split(",")}


def told_parts(pod: Pod) -> dict[int, Fraction]:
    """Which part of which device the pod may use, as it was told."""
    return parts_of(json.loads(pod.metadata.annotations.get(contract.SHARES, "[]")))


def parts_of(shares: Iterable[dict[str, Any]]) -> dict[int, Fraction]:
    parts: dict[int, Fraction] = {}
    for each in shares:
        part = Fraction(each.get("percent", 0), 100) + Fraction(each.get("memoryMib", 0), GIB * 1024)
        parts[each["index"]] = parts.get(each["index"], Fraction(0)) + part
    return parts


def share_json(share: Any) -> dict[str, Any]:
    parts = {"container": share.container, "resource": share.resource, "index": share.index}
    return parts | {k: v for k, v in (("memoryMib", share.memory_mib), ("percent", share.percent)) if v}


SHARING: list[Any] = [
    *USUAL,
    *[SharingWorld.something_goes_on] * 10,
    *[SharingWorld.bind_begins] * 4,
    *[SharingWorld.bind_gives_up_half_way] * 3,
    *[SharingWorld.share_is_collected] * 4,
]


@many
@schedules
def test_a_device_is_never_over_its_size_in_any_order_of_events(schedule: bytes) -> None:
    """Binds, collections, crashes, pauses, deletions and stale mirrors, of groups and shares side by side."""
    SharingWorld(schedule, SHARING).run()


@many
@schedules
def test_a_device_is_never_over_its_size_while_people_delete_what_they_should_not(schedule: bytes) -> None:
    """The same, with statuses wiped and ledgers deleted, and the repairs of both."""
    RoomySharingWorld(schedule, [*SHARING, *CARELESS, *CARELESS, RoomySharingWorld.memory_is_known]).run()
