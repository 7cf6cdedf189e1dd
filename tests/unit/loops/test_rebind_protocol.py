"""The protocol's rebind over random histories, in the same world: devices break and recover, people ask for others.

Besides the invariants of test_protocol.py: whatever a live pod ever received goes to nobody else, and once nobody
disturbs any more, every pod is told what its group's claim holds and nothing stays reserved without a pod that had it.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Devices
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import replacement
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Conflict
from deviceshare.loops.protocol import rebind as protocol
from deviceshare.loops.protocol.holders import BindStop
from tests.unit.domain.objects import GPU
from tests.unit.loops.histories import (
    BINDS_OVER,
    CARELESS,
    GROUP_NAMES,
    NODE_NAMES,
    USUAL,
    HistoryWorld,
    many,
    schedules,
)
from tests.unit.loops.model import Actor, Pause

KIND = vendors.NVIDIA.kinds[0]


class RebindWorld(HistoryWorld):
    """Two nodes of three devices, which break; two groups that want one each."""

    everywhere_at_once = True

    devices = 3
    wanted = 1

    def __init__(self, schedule: bytes, moves: Any) -> None:
        self.sick: dict[str, set[int]] = {"n1": set(), "n2": set()}
        self.requests = 0
        self.standing: dict[tuple[str, str], tuple[Claim, float]] = {}
        """Each claim as it is, and when it became so."""
        super().__init__(schedule, moves)

    # The world's moves.

    def device_breaks(self) -> None:
        node = self.pick(NODE_NAMES)
        self.sick[node].add(self.pick(range(self.devices)))
        self.report(node)

    def held_device_breaks(self) -> None:
        """The one that matters: otherwise most rebinds find nothing to do."""
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        if ledger and ledger.claims:
            claim = ledger.claims[self.pick(sorted(ledger.claims))]
            self.sick[ledger.node] |= {device.index for device in claim.devices}
            self.report(ledger.node)
            self.request(claim.group)

    def devices_recover(self) -> None:
        node = self.pick(NODE_NAMES)
        self.sick[node].clear()
        self.report(node)

    def report(self, node: str) -> None:
        """As the node's agent does, from the first day: numbers and UUIDs don't mix."""
        if self.cluster.read(NODE_DEVICES, node):
            parts = [
                Part(GPU, number, f"GPU-{node}-{number}", unhealthy="broken" if number in self.sick[node] else "")
                for number in range(self.devices)
            ]
            hardware = msgspec.to_builtins(Hardware(devices=parts))
            self.cluster.edit(NODE_DEVICES, node, {"status": {"hardware": hardware}})

    def rebind_is_asked_for(self) -> None:
        self.request(self.pick(GROUP_NAMES))

    def request(self, group: str) -> None:
        if self.cluster.read(GROUPS, group):
            self.requests += 1
            annotations = {contract.REBIND: f"request-{self.requests}"}
            self.cluster.edit(GROUPS, group, {"metadata": {"annotations": annotations}})

    # deviceshare's moves.

    def rebind_begins(self) -> None:
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and group.node:
            self._begin(f"rebind {group.name}", lambda wait: self.rebinding_of(group))

    def telling_begins(self) -> None:
        ledger, uid = self._any_claim()
        if ledger:
            pods = self._pods(ledger.node, uid)
            self._begin(f"update {uid}", lambda wait: protocol.update_pods(self.cluster, ledger.node, uid, pods))

    def group_is_rebound(self) -> None:
        """All at once, so that most histories have something to get wrong."""
        self.held_device_breaks()
        for group in self.cluster.all(GROUPS):
            self._finish(self.rebinding_of(group))
            self.check()

    def rebind_now(self) -> None:
        """Of the group a."""
        group = self.cluster.read(GROUPS, "a")
        assert group is not None
        self._finish(self.rebinding_of(group))

    def rebinding_of(self, group: Group) -> Coroutine[Any, Any, Any]:
        return protocol.rebind(self.cluster, group.node, group.holder, opaque=lambda node: ())

    def release_begins(self) -> None:
        ledger, uid = self._any_claim()
        if ledger is None or not ledger.claims[uid].former:
            return
        node = ledger.node
        waits: list[float] = []

        async def wait(claim: Claim) -> None:
            seen, since = self.standing[node, uid]
            waits.append((since if seen == claim else self.clock.now) + self.binds_over())
            await Pause(BINDS_OVER)

        if len(self.others) < 3:
            work = protocol.release_former(self.cluster, node, uid, BindStop(wait))
            self.others.append((Actor(f"release {uid}", work), waits))

    # The invariants.

    def check(self) -> None:
        super().check()
        self.note_standing()

    def note_standing(self) -> None:
        for ledger in self.cluster.all(NODE_DEVICES):
            for uid, claim in ledger.claims.items():
                if self.standing.get((ledger.node, uid), (None,))[0] != claim:
                    self.standing[ledger.node, uid] = claim, self.clock.now

    def check_told(self, pod: Pod, claim: Claim) -> None:
        """Only at last."""

    def settle(self) -> None:
        for pod in self.cluster.all(PODS):
            if pod.impostor:  # Every replica deletes those; until then what one was given stays reserved.
                self.cluster.remove(PODS, pod.metadata.name, "ns")
        for ledger in self.cluster.all(NODE_DEVICES):
            if ledger.node in self.lost:
                continue
            for uid in ledger.claims:
                self._finish(protocol.update_pods(self.cluster, ledger.node, uid, self._pods(ledger.node, uid)))
                self.check()
                self._finish(protocol.release_former(self.cluster, ledger.node, uid, BindStop(_over)))
                self.check()
                self._check_settled(ledger.node, uid)

    def _check_settled(self, node: str, uid: str) -> None:
        ledger = self.cluster.read(NODE_DEVICES, node)
        assert ledger is not None
        claim, pods = ledger.claims[uid], self._pods(node, uid)
        for pod in pods:
            assert replacement.is_settled(pod, ledger, claim), "every pod is told at last what its group's claim holds"
        held = {number for pod in pods for number in self.received[pod.metadata.uid]}
        assert {device.index for device in claim.former} <= held, "nothing stays reserved that nobody has"

    # How the world is made.

    def _finish(self, work: Coroutine[Any, Any, Any]) -> None:
        Actor("at last", work).finish()

    def _any_claim(self) -> tuple[NodeDevices | None, str]:
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        if ledger is None or not ledger.claims:
            return None, ""
        return ledger, self.pick(sorted(ledger.claims))

    def _pods(self, node: str, uid: str) -> list[Pod]:
        return [pod for pod in self.using() if pod.node == node and pod.holder_uid == uid]


class CdiWorld(RebindWorld):
    """The same where devices are injected by CDI, or no longer: a sealed pod keeps what it was bound with."""

    def __init__(self, schedule: bytes, moves: Any) -> None:
        self.sealed: dict[str, Devices] = {}
        """What pods had when a runtime's plugin was first told, by their UID."""
        super().__init__(schedule, moves)

    def begin_bind(self, pod: str, node: str) -> Any:
        """Claims name UUIDs, for numbers can't be told."""
        for ledger in self.cluster.all(NODE_DEVICES):
            if not ledger.hardware.devices:
                self.report(ledger.node)
                self.cluster.edit(NODE_DEVICES, ledger.node, {"status": {"handover": {"nvidia": KIND}}})
        return super().begin_bind(pod, node)

    def handover_changes(self) -> None:
        """Somebody updates the node's runtime, or labels the node."""
        node, words = self.pick(NODE_NAMES), self.pick((KIND, "uuid", KIND))
        if self.cluster.read(NODE_DEVICES, node):
            self.cluster.edit(NODE_DEVICES, node, {"status": {"handover": {"nvidia": words}}})

    def check(self) -> None:
        super().check()
        for pod in self.cluster.all(PODS):
            if pod.lives and pod.sealed:
                had = self.sealed.setdefault(pod.metadata.uid, pod.devices)
                assert pod.devices == had, "what a sealed pod was bound with is what its containers get"


async def _over(claim: Claim) -> None:
    """Every bind is over."""


Moves = list[Callable[[Any], None]]
REBINDS: Moves = [
    *[RebindWorld.held_device_breaks] * 3,
    RebindWorld.device_breaks,
    *[RebindWorld.devices_recover] * 2,
    RebindWorld.rebind_is_asked_for,
    *[RebindWorld.rebind_begins] * 3,
    *[RebindWorld.group_is_rebound] * 3,
    *[RebindWorld.telling_begins] * 3,
    *[RebindWorld.release_begins] * 3,
]
CDI: Moves = [CdiWorld.handover_changes]


@many
@schedules
def test_what_a_live_pod_ever_received_goes_to_nobody_else(schedule: bytes) -> None:
    """Rebinds among binds, collections, crashes, deletions and stale reads, by two leaders at once."""
    RebindWorld(schedule, [*USUAL, *REBINDS]).run()


@many
@schedules
def test_nor_while_people_wipe_statuses_and_delete_ledgers(schedule: bytes) -> None:
    """The same, with the repairs of both."""
    RebindWorld(schedule, [*USUAL, *REBINDS, *CARELESS]).run()


@many
@schedules
def test_nor_where_a_restarted_container_gets_the_device_that_its_pod_was_bound_with(schedule: bytes) -> None:
    """By CDI: only recreated pods see what a rebind gave, and until then the former devices stay reserved."""
    CdiWorld(schedule, [*USUAL, *REBINDS, *CDI]).run()


@many
@schedules
def test_nor_there_while_people_wipe_statuses_and_delete_ledgers(schedule: bytes) -> None:
    """The same, with the repairs of both."""
    CdiWorld(schedule, [*USUAL, *REBINDS, *CDI, *CARELESS]).run()


def test_an_old_leader_that_wakes_late_writes_no_device_released_since() -> None:
    """It read the claim of one rebind; a second one has replaced that device, and it was given back."""
    world = RebindWorld(bytes([0, 0, 0, 0]), [])
    uid = world.cluster.all(NODE_DEVICES)[0].claims.copy().popitem()[0]

    def rebind(broken: int) -> None:
        world.sick["n1"].add(broken)
        world.report("n1")
        world.request("a")
        world.rebind_now()

    rebind(0)
    old = Actor("old leader", protocol.update_pods(world.cluster, "n1", uid, world._pods("n1", uid)))
    old.step()
    old.step()  # has read the ledger, and sleeps before its patch
    rebind(1)
    world._finish(protocol.update_pods(world.cluster, "n1", uid, world._pods("n1", uid)))
    world._finish(protocol.release_former(world.cluster, "n1", uid, BindStop(_over)))
    ledger = world.cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert [device.index for device in ledger.claims[uid].former] == [0], "device 1 is nobody's again"
    assert isinstance(old.finish(), Conflict)
    world.check()
    world.close()


def rebound(world: RebindWorld, broken: int) -> str:
    """The UID of group a, whose device on n1 broke and was replaced."""
    world.sick["n1"].add(broken)
    world.report("n1")
    world.request("a")
    world.rebind_now()
    return world.cluster.all(NODE_DEVICES)[0].claims.copy().popitem()[0]


def former(world: RebindWorld, uid: str) -> list[int]:
    return [device.index for device in world.cluster.all(NODE_DEVICES)[0].claims[uid].former]


def test_nothing_is_released_while_a_pod_is_yet_to_be_updated() -> None:
    """An old leader may be about to tell it of the device that came and went since."""
    world = RebindWorld(bytes([0, 0, 0, 0]), [])
    rebound(world, 0)
    uid = rebound(world, 1)
    world._finish(protocol.release_former(world.cluster, "n1", uid, BindStop(_over)))
    assert former(world, uid) == [0, 1]
    world.close()


def test_a_bind_that_slept_through_a_rebind_gets_the_new_device_where_versions_are_compared() -> None:
    """It read the claim before; the old device was given back meanwhile, without any waiting."""
    world = RebindWorld(bytes([0, 0, 0, 0]), [])
    replica = world.replicas[0]
    replica.hear()
    late = world.cluster.read(PODS, "p2", "ns")
    assert late is not None
    replica.binder.remember(late)
    task = replica.begin("p2", late.metadata.uid, "n1")
    replica.serve(replica.requests[0])  # it has read the claim; its Binding is on its way
    world.cluster.remove(PODS, "p1", "ns")
    uid = rebound(world, 0)
    world._finish(protocol.release_former(world.cluster, "n1", uid, BindStop(_over)))
    assert former(world, uid) == []
    assert replica.finish(task) == ""
    bound = world.cluster.read(PODS, "p2", "ns")
    assert bound is not None and [device.index for device in bound.devices] == [1]
    world.check()
    world.close()


def test_what_a_live_pod_received_before_is_not_released() -> None:
    """Its containers may hold that until it ends. Nothing is written for that, neither the claim nor the pod."""
    world = RebindWorld(bytes([0, 0, 0, 0]), [])
    uid = rebound(world, 0)
    world._finish(protocol.update_pods(world.cluster, "n1", uid, world._pods("n1", uid)))

    def versions() -> list[str]:
        metas = [ledger.metadata for ledger in world.cluster.all(NODE_DEVICES)]
        metas += [pod.metadata for pod in world.cluster.all(PODS) if not pod.pending]
        return [meta.resource_version for meta in metas]

    before = versions()
    world._finish(protocol.release_former(world.cluster, "n1", uid, BindStop(_over)))
    assert former(world, uid) == [0]
    assert versions() == before
    assert len(before) > len(world.cluster.all(NODE_DEVICES)), "a pod runs"
    world.close()


def test_a_claim_that_its_group_left_behind_is_not_rebound() -> None:
    """The group is bound elsewhere by now, and asks for other devices there."""
    world = RebindWorld(bytes([0, 0, 0, 0]), [])
    group = world.cluster.read(GROUPS, "a")
    assert group is not None
    world.sick["n1"].add(0)
    world.report("n1")
    world.request("a")
    world.cluster.edit(GROUPS, "a", {"status": {"nodeName": "n2"}})
    work = protocol.rebind(world.cluster, "n1", group.holder, opaque=lambda node: ())
    assert Actor("leader", work).finish() is None
    world.close()
