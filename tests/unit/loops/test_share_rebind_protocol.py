"""Rebinds of shares over random histories, in the same world, beside those of groups; and single races of them.

Besides the invariants of test_share_protocol.py: what a live pod was ever told of stays in its claim, with its amount,
and no device is over its size by that. Once nobody disturbs any more, every pod is told what its claim has.
"""

from fractions import Fraction
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement import replacement
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol import rebind as protocol
from deviceshare.loops.protocol import repair
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import release
from tests.unit.loops.histories import CARELESS, GROUP_NAMES, NODE_NAMES, many, schedules
from tests.unit.loops.model import Pause
from tests.unit.loops.test_rebind_protocol import REBINDS, RebindWorld
from tests.unit.loops.test_share_protocol import GIB, SHARING, SharingWorld, at_once, told_whole

Part = tuple[str, int, Fraction]
"""A container, the number of a device, and how much of it."""


class ShareRebindWorld(RebindWorld, SharingWorld):
    """Two nodes of three devices, which break; groups and pods that want one, or parts of one."""

    devices = 3
    wanted = 1

    def __init__(self, schedule: bytes, moves: Any) -> None:
        self.parts: dict[str, set[Part]] = {}
        """By the UID of a pod, all parts that its annotations ever named."""
        super().__init__(schedule, moves)

    # The world's moves.

    def shared_device_breaks(self) -> None:
        """And all its pods ask for another."""
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        mine = [claim for claim in ledger.claims.values() if claim.shares] if ledger else []
        if ledger and mine:
            claim = self.pick(sorted(mine, key=lambda each: each.pod))
            self.sick[ledger.node] = {device.index for device in claim.devices}
            self.report(ledger.node)
            self.pod_asks(claim.pod.partition("/")[2])

    def pod_asks(self, name: str = "") -> None:
        name = name or self.pick(self.pods)
        if self.cluster.read(PODS, name, "ns"):
            self.requests += 1
            annotations = {contract.REBIND: f"request-{self.requests}"}
            self.cluster.edit(PODS, name, {"metadata": {"annotations": annotations}}, "ns")

    # deviceshare's moves.

    def share_rebind_begins(self) -> None:
        ledger, uid = self._any_share()
        if ledger:
            holder = ledger.claims[uid].holder(uid)
            work = protocol.rebind(self.cluster, ledger.node, holder, opaque=lambda node: ())
            self._begin(f"rebind {uid}", lambda wait: work) if len(self.others) < 2 else work.close()

    def share_is_rebound(self) -> None:
        """All at once, so that most histories have something to get wrong."""
        self.shared_device_breaks()
        for ledger in self.cluster.all(NODE_DEVICES):
            for uid, claim in ledger.claims.items():
                if claim.pod:
                    holder = claim.holder(uid)
                    self._finish(protocol.rebind(self.cluster, ledger.node, holder, opaque=lambda node: ()))
                    self.check()

    def telling_of_shares_begins(self) -> None:
        ledger, uid = self._any_share()
        if ledger:
            pods = self._pods(ledger.node, uid)
            self._begin(f"tell {uid}", lambda wait: protocol.update_pods(self.cluster, ledger.node, uid, pods))

    def _any_share(self) -> tuple[NodeDevices | None, str]:
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        mine = sorted(uid for uid, claim in ledger.claims.items() if claim.pod) if ledger else []
        return (ledger, self.pick(mine)) if mine else (None, "")

    def _pods(self, node: str, uid: str) -> list[Pod]:
        return [pod for pod in self.using() if pod.node == node and uid in (pod.holder_uid, pod.share_uid)]

    # The invariants.

    def check(self) -> None:
        self.note_standing()
        pods = self.using()
        used: dict[tuple[str, int], Fraction] = {}
        owners: dict[tuple[str, int], str] = {}
        for pod in pods:
            uid = pod.metadata.uid
            for number in self.received.setdefault(uid, set()) | told_whole(pod):
                owner = pod.holder_uid if pod.group else ""
                assert owners.setdefault((pod.node, number), owner) == owner, "a device serves one group"
            self.received[uid] |= told_whole(pod)
            parts = self.parts.setdefault(uid, set())
            parts |= {_part(share) for share in pod.shares}
            most = {number: Fraction(0) for _, number, _ in parts}
            for number in most:
                by_container = {name: amount for name, device, amount in sorted(parts) if device == number}
                most[number] = sum(by_container.values(), Fraction(0))
            for number, amount in most.items():
                owner = pod.holder_uid if pod.group else "pods"
                assert owners.setdefault((pod.node, number), owner) == owner, "a group's, or for shares"
                used[pod.node, number] = used.get((pod.node, number), Fraction(0)) + amount
                assert used[pod.node, number] <= 1, "a device is never over its size, by all that pods ever received"
        for ledger in self.cluster.all(NODE_DEVICES):
            self.check_ledger(ledger, [pod for pod in pods if pod.node == ledger.node])

    def check_ledger(self, ledger: NodeDevices, pods: Any) -> None:
        amounts: dict[int, Fraction] = {}
        for claim in ledger.claims.values():
            places = [(share.container, share.index) for share in claim.shares]
            assert len(set(places)) == len(places), "a container has one part of a device"
            for _, number, amount in map(_part, claim.shares):
                amounts[number] = amounts.get(number, Fraction(0)) + amount
                assert amounts[number] <= 1, "claims never exceed a device, with what is former"
        if ledger.node in self.lost:
            return
        for pod in pods:
            if pod.group:
                claim = ledger.claims[pod.holder_uid]
                reserved = {device.index for device in (*claim.devices, *claim.replaced)}
                assert self.received[pod.metadata.uid] <= reserved, "all that it ever received stays claimed"
            if pod.shares:
                claim = ledger.claims[pod.metadata.uid]
                assert self.parts[pod.metadata.uid] <= {_part(share) for share in claim.shares}, "with its amount"
                assert claim.within == (pod.holder_uid if pod.group else ""), "and of whose devices"

    def settle(self) -> None:
        for pod in self.cluster.all(PODS):
            if pod.impostor:
                self.cluster.remove(PODS, pod.metadata.name, "ns")
        for name in sorted(self.lost):
            self._end(self.recreating(name, at_once))
        for name in GROUP_NAMES:
            self._end(repair.readopt(self.cluster, name))
        self.lost.clear()
        self.check()
        for ledger in self.cluster.all(NODE_DEVICES):
            for uid in ledger.claims:
                self._finish(protocol.update_pods(self.cluster, ledger.node, uid, self._pods(ledger.node, uid)))
                self.check()
        self._collect_all()
        for ledger in self.cluster.all(NODE_DEVICES):
            for uid, claim in ledger.claims.items():
                for pod in self._pods(ledger.node, uid):
                    self.check_at_last(pod, ledger, uid, claim)
        lives = [pod for pod in self.cluster.all(PODS) if pod.lives]
        live = {(pod.node, uid) for pod in lives for uid in (pod.holder_uid, pod.share_uid)}
        bound = {(group.node, group.uid) for group in self.cluster.all(GROUPS)}
        for ledger in self.cluster.all(NODE_DEVICES):
            assert {(ledger.node, uid) for uid in ledger.claims} <= live | bound, "nothing leaks"

    def _collect_all(self) -> None:
        for _ in range(3):
            for ledger in self.cluster.all(NODE_DEVICES):
                for uid in ledger.claims:
                    self._finish(release(self.cluster, ledger.node, uid, BindStop(_over)))
                    self.check()

    def check_at_last(self, pod: Pod, ledger: NodeDevices, uid: str, claim: Claim) -> None:
        if claim.pod:
            assert list(pod.shares) == sorted(claim.shares), "every pod is told at last what its claim has"
        else:
            assert replacement.is_settled(pod, ledger, claim), "and what its group's has"


def _part(share: Share) -> Part:
    return share.container, share.index, Fraction(share.percent, 100) + Fraction(share.memory_mib, GIB * 1024)


async def _over(mark: Any) -> None:
    await Pause()


SHARE_REBINDS: list[Any] = [
    *[ShareRebindWorld.share_is_rebound] * 4,
    *[ShareRebindWorld.shared_device_breaks] * 2,
    ShareRebindWorld.pod_asks,
    *[ShareRebindWorld.share_rebind_begins] * 3,
    *[ShareRebindWorld.telling_of_shares_begins] * 4,
]


@many
@schedules
def test_a_device_is_never_over_its_size_by_what_pods_ever_received(schedule: bytes) -> None:
    """Rebinds of shares and of groups among binds, collections, crashes and stale reads, by two leaders at once."""
    ShareRebindWorld(schedule, [*SHARING, *REBINDS, *SHARE_REBINDS]).run()


@many
@schedules
def test_nor_while_people_wipe_statuses_and_delete_ledgers(schedule: bytes) -> None:
    """The same, with the repairs of both."""
    moves = [*SHARING, *REBINDS, *SHARE_REBINDS, *CARELESS, ShareRebindWorld.memory_is_known]
    ShareRebindWorld(schedule, moves).run()
