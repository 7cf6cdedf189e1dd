"""Single races of rebinds of shares, each as short as it can be."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GPU_MEM, Share
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Conflict
from deviceshare.loops.protocol import rebind as protocol
from tests.unit.domain.objects import GPU, a_sharing_container
from tests.unit.loops.model import Actor
from tests.unit.loops.test_share_rebind_protocol import ShareRebindWorld


class ShareRebindRaces(ShareRebindWorld):
    """A pod `p` with 10 of 16 GiB of device 0 on n1."""

    pods = ()

    def __init__(self, *, compares: bool = True) -> None:
        super().__init__(bytes([0 if compares else 1, 1]), [])
        self.make("p")
        self.bind("p")

    def make(self, name: str, gib: int = 10, group: str = "") -> None:
        named = {contract.GROUP: group} if group else {}
        container = a_sharing_container("main", {GPU_MEM: gib})
        meta = {"name": name, "labels": {contract.GROUP: group}, "annotations": named}
        self.cluster.put(PODS, {"metadata": meta, "spec": {"containers": [container]}}, "ns")

    def bind(self, name: str) -> None:
        [replica, _] = self.replicas
        replica.hear()
        replica.binder.remember(self.pod(name))
        assert replica.finish(replica.begin(name, self.pod(name).metadata.uid, "n1")) == ""
        self.check()

    def pod(self, name: str = "p") -> Pod:
        found = self.cluster.read(PODS, name, "ns")
        assert found is not None
        return found

    def ledger(self) -> NodeDevices:
        found = self.cluster.read(NODE_DEVICES, "n1")
        assert found is not None
        return found

    def claim(self, name: str = "p") -> Claim:
        return self.ledger().claims[self.pod(name).metadata.uid]

    def breaks(self, *numbers: int) -> None:
        self.sick["n1"] = set(numbers)
        self.report("n1")

    def rebinding(self, name: str = "p") -> Actor:
        holder = self.pod(name).sharer
        return Actor(name, protocol.rebind(self.cluster, "n1", holder, opaque=lambda node: ()))

    def rebinding_group(self) -> Actor:
        group = self.cluster.read(GROUPS, "a")
        assert group is not None
        return Actor("group", protocol.rebind(self.cluster, "n1", group.holder, opaque=lambda node: ()))

    def updating(self, name: str = "p") -> Actor:
        uid = self.pod(name).metadata.uid
        return Actor("tell", protocol.update_pods(self.cluster, "n1", uid, [self.pod(name)]))

    def rebind(self, *broken: int) -> Any:
        self.breaks(*broken)
        self.pod_asks("p")
        return self.rebinding().finish()


@pytest.fixture
def races() -> Iterator[ShareRebindRaces]:
    """Closed at the end."""
    made = ShareRebindRaces()
    yield made
    made.close()


def places(shares: Iterable[Share]) -> list[tuple[int, bool]]:
    return sorted((share.index, share.former) for share in shares)


def test_a_pod_is_told_of_one_device_before_it_is_given_the_next(races: ShareRebindRaces) -> None:
    """Otherwise its claim would keep a part, until it ends, that it never had."""
    races.rebind(0)
    assert races.rebind(0, 1) is None
    assert places(races.claim().shares) == [(0, True), (1, False)]
    races.updating().finish()
    assert races.rebinding().finish() is not None
    assert places(races.claim().shares) == [(0, True), (1, True), (2, False)]
    races.check()


def test_a_device_that_the_pod_had_before_is_not_taken_again(races: ShareRebindRaces) -> None:
    """Not even where there is room beside its former part."""
    races.make("small", 2)
    races.rebind(0)
    races.updating().finish()
    races.breaks(1, 2)
    races.pod_asks("p")
    answer = races.rebinding().finish()
    assert "no other healthy one for shares" in answer.verdict.obstacle
    assert places(races.claim().shares) == [(0, True), (1, False)]


def test_an_old_leader_that_wakes_late_tells_no_pod_of_a_part_replaced_since(races: ShareRebindRaces) -> None:
    """It read the claim of one rebind; a second one has replaced that part."""
    races.rebind(0)
    old = races.updating()
    old.step()
    old.step()  # has read the ledger, and sleeps before its patch
    races.updating().finish()
    races.rebind(0, 1)
    races.updating().finish()
    assert isinstance(old.finish(), Conflict)
    assert places(races.pod().shares) == [(0, True), (1, True), (2, False)]
    races.check()


def test_of_two_that_want_the_room_one_gets_it(races: ShareRebindRaces) -> None:
    """A leader chose by the ledger that it read; a pod was bound there meanwhile."""
    races.breaks(0, 2)
    races.pod_asks("p")
    rebinding = races.rebinding()
    for _ in range(3):
        rebinding.step()  # has read the pod and the ledger
    races.make("other")
    races.bind("other")
    assert isinstance(rebinding.finish(), Conflict)
    assert "at most 6 of 16 GiB of a healthy one free" in races.rebinding().finish().verdict.obstacle
    races.check()


def test_a_pod_that_is_not_bound_yet_keeps_its_claim_as_it_is() -> None:
    """Its Binding may be on its way, with what the claim says; an old server compares no versions."""
    races = ShareRebindRaces(compares=False)
    races.make("q", 6)
    replica = races.replicas[0]
    replica.hear()
    replica.binder.remember(races.pod("q"))
    late = replica.begin("q", races.pod("q").metadata.uid, "n1")
    while not any("bind" in request.what for request in replica.requests):
        replica.serve(replica.requests[0])
    races.breaks(0)
    races.pod_asks("q")
    assert races.rebinding("q").finish() is None
    assert places(races.claim("q").shares) == [(0, False)]
    assert replica.finish(late) == ""
    races.check()
    races.close()


def test_a_marked_claim_is_not_rebound(races: ShareRebindRaces) -> None:
    """A collector may have looked for the pod already."""
    races.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {races.pod().metadata.uid: {"releasing": "mark"}}}})
    assert races.rebind(0) is None
    assert places(races.claim().shares) == [(0, False)]


def test_a_group_whose_pods_parts_fit_nowhere_keeps_its_device(races: ShareRebindRaces) -> None:
    """All or nothing, and the pod is named; the same where everything fits moves in one write."""
    races.make("inside", 10, group="a")
    races.bind("inside")
    mine = races.pod("inside").shares[0].index
    parts = [
        {"resource": GPU, "index": n, "uuid": f"GPU-n1-{n}", "memoryMib": 1024 * (16 if n in (0, mine) else 8)}
        | ({"unhealthy": "broken"} if n == mine else {})
        for n in range(3)
    ]
    races.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": {"devices": parts}}})
    races.request("a")
    answer = races.rebinding_group().finish()
    assert "has pod ns/inside with 10 GiB" in answer.verdict.obstacle
    assert places(races.claim("inside").shares) == [(mine, False)]
    races.breaks(mine)
    races.request("a")
    before = {claim.holder_name for claim in races.ledger().claims.values()}
    answer = races.rebinding_group().finish()
    assert answer.verdict.obstacle == ""
    [(_, _), (now, former)] = sorted(places(races.claim("inside").shares), key=lambda each: not each[1])
    group = next(claim for claim in races.ledger().claims.values() if claim.group)
    assert ([device.index for device in group.devices], former) == ([now], False)
    assert {claim.holder_name for claim in races.ledger().claims.values()} == before
    races.check()
