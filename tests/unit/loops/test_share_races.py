"""Single races of binds of shares with each other, with a collector and with repair, each as short as it can be."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.objects.shares import GPU_MEM, GPU_PERCENT, Request
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol import repair
from deviceshare.loops.protocol.bind import Claimed, claim_all, wanted_share
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Outcome, release
from tests.unit.domain.objects import GPU, a_sharing_container
from tests.unit.loops.model import Actor, Pause
from tests.unit.loops.test_share_protocol import SharingWorld


class ShareRaces(SharingWorld):
    """A device of 16 GiB on each of two nodes; no pod yet."""

    pods = ()

    def __init__(self, *, compares: bool = True) -> None:
        super().__init__(bytes([0 if compares else 1, 1]), [])
        self.replica, self.other = self.replicas
        self.waits = 0

    def pod(self, name: str, group: str = "", percent: int = 0) -> Pod:
        """A pod that asks for 10 GiB, unless it says what."""
        named = {contract.GROUP: group} if group else {}
        meta = {"name": name, "labels": {contract.GROUP: group}, "annotations": named}
        container = a_sharing_container("main", {GPU_PERCENT: percent} if percent else {GPU_MEM: 10})
        self.cluster.put(PODS, {"metadata": meta, "spec": {"containers": [container]}}, "ns")
        for replica in self.replicas:
            replica.hear()
        return self.read(name)

    def read(self, name: str) -> Pod:
        found = self.cluster.read(PODS, name, "ns")
        assert found is not None
        return found

    def begin(self, name: str, node: str = "n1") -> asyncio.Task[str]:
        """Its bind by the first replica, as filter showed it the pod."""
        self.replica.binder.remember(self.read(name))
        return self.replica.begin(name, self.read(name).metadata.uid, node)

    def bind(self, name: str, node: str = "n1") -> str:
        return self.replica.finish(self.begin(name, node))

    def ledger(self, node: str = "n1") -> NodeDevices:
        found = self.cluster.read(NODE_DEVICES, node)
        assert found is not None
        return found

    def collector(self, uid: str, node: str = "n1") -> Actor:
        """Notes its waits, and waits for nothing."""

        async def wait(mark: str) -> None:
            self.waits += 1
            await Pause("binds")

        return Actor("collector", release(self.cluster, node, uid, BindStop(wait)))

    async def filling(self, late: asyncio.Task[str], waited: list[str]) -> None:
        """A leader makes the ledger of n1 again; while it waits for binds, this one goes on."""

        async def wait(until: float) -> None:
            waited.append(self.replica.finish(late))

        await self.recreating("n1", wait)

    def request(self, name: str) -> Request:
        pod = self.read(name)
        group = self.cluster.read(GROUPS, pod.group) if pod.group else None
        request = request_of(pod, group)
        assert request is not None
        return request

    def claim(self, *names: str, opaque: tuple[str, ...] = ()) -> Any:
        wanted = [wanted_share(self.request(name), lambda: opaque) for name in names]
        return Actor("claim", claim_all(self.cluster, wanted, "n1")).finish()


Make = Callable[..., ShareRaces]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes races, and closes what is left of them."""
    begun = []

    def begin(*, compares: bool = True) -> ShareRaces:
        begun.append(ShareRaces(compares=compares))
        return begun[-1]

    yield begin
    for races in begun:
        races.close()


def test_a_collector_waits_out_binds_of_a_pod_that_is_pending(make: Make) -> None:
    """One may be under way; of a pod that is gone none can be."""
    races = make()
    uid = races.pod("p").metadata.uid
    assert isinstance(races.claim("p"), Claimed)
    collector = races.collector(uid)
    while not collector.waiting:
        collector.step()
    assert races.ledger().claims[uid].releasing
    assert collector.finish() is Outcome.FREED
    assert races.waits == 1
    races.claim("p")
    races.cluster.remove(PODS, "p", "ns")
    assert races.collector(uid).finish() is Outcome.FREED
    assert (races.waits, races.ledger().claims) == (1, {})


def test_a_pod_that_was_bound_while_its_claim_was_collected_keeps_it(make: Make) -> None:
    """The server is old and compares nothing; the mark goes when the pod is looked at again."""
    races = make(compares=False)
    uid = races.pod("p").metadata.uid
    bind = races.begin("p")
    races.replica.serve(races.replica.requests[0])  # the claim is written; the Binding is on its way
    collector = races.collector(uid)
    while not collector.waiting:
        collector.step()
    assert races.replica.finish(bind) == ""
    assert collector.finish() is Outcome.STAYS
    assert not races.ledger().claims[uid].releasing
    races.check()


def test_a_bind_that_slept_through_a_collection_binds_nothing_where_versions_are_compared(make: Make) -> None:
    """Its part is another pod's by then, and the fence is what stops it: nothing rests on clocks."""
    races = make()
    uid = races.pod("late").metadata.uid
    races.pod("next")
    late = races.begin("late")
    races.replica.serve(races.replica.requests[0])  # its Binding is on its way
    assert races.collector(uid).finish() is Outcome.FREED
    races.other.hear()
    races.other.binder.remember(races.read("next"))
    assert races.other.finish(races.other.begin("next", races.read("next").metadata.uid, "n1")) == ""
    assert "too full" in races.replica.finish(late)
    assert (races.read("late").node, races.read("next").node) == ("", "n1")
    races.check()


def test_a_marked_claim_is_not_used(make: Make) -> None:
    """Whoever marked it may have looked for the pod already."""
    races = make()
    uid = races.pod("p").metadata.uid
    races.claim("p")
    collector = races.collector(uid)
    while not collector.waiting:
        collector.step()
    assert "being released" in races.bind("p")
    assert races.read("p").node == ""


def test_a_claim_that_a_bind_left_behind_is_used_as_the_ledger_has_it(make: Make) -> None:
    """Read fresh: in the mirror the mark isn't there yet, nor that the claim is gone."""
    races = make()
    uid = races.pod("p").metadata.uid
    races.claim("p")
    races.replica.hear()
    collector = races.collector(uid)
    while not collector.waiting:
        collector.step()
    assert "being released" in races.bind("p")
    assert collector.finish() is not None
    assert races.bind("p") == ""
    assert list(races.ledger().claims) == [uid]
    races.check()


def test_what_was_chosen_by_an_older_ledger_is_not_written(make: Make) -> None:
    """Two replicas choose the same part at once: one of them is refused."""
    races = make()
    races.pod("p")
    races.pod("q")
    first, second = (
        Actor(name, claim_all(races.cluster, [wanted_share(races.request(name))], "n1")) for name in ("p", "q")
    )
    for _ in range(2):
        first.step()
        second.step()  # both have read the ledger
    assert isinstance(first.finish(), Claimed)
    assert type(second.finish()).__name__ == "Conflict"
    races.check()


def test_pods_that_claim_together_see_what_the_others_take(make: Make) -> None:
    """One write for all that fit; the rest is told why, and fails nobody else."""
    races = make()
    for name, percent in (("a", 60), ("b", 50), ("c", 40)):
        races.pod(name, percent=percent)
    before = int(races.ledger().metadata.resource_version)
    claimed = races.claim("a", "b", "c", "a")
    assert int(races.ledger().metadata.resource_version) > before
    assert {claim.pod for claim in claimed.ledger.claims.values()} == {"ns/a", "ns/c"}
    assert [reason.kind for reason in claimed.refused.values()] == [ReasonKind.TOO_FULL]
    assert races.claim("a").ledger.metadata.resource_version == races.ledger().metadata.resource_version
    races.check()


def test_a_share_of_a_groups_devices_needs_the_groups_claim(make: Make) -> None:
    """Unmarked: what is being released takes no further pod in."""
    races = make()
    races.pod("p", group="a")
    [reason] = races.claim("p").refused.values()
    assert reason.kind is ReasonKind.CLAIM_MISSING
    assert races.bind("p") == ""
    races.pod("q", group="a", percent=20)
    group = races.cluster.read(GROUPS, "a")
    assert group is not None
    races.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {group.uid: {"releasing": "mark"}}}})
    [reason] = races.claim("q").refused.values()
    assert reason.kind is ReasonKind.CLAIM_RELEASING
    assert "being released" in races.bind("q")


def test_what_a_device_plugin_may_have_allocated_is_not_shared(make: Make) -> None:
    """It isn't known which devices its pods have; a group's devices are known to be the group's."""
    races = make()
    races.pod("p")
    [reason] = races.claim("p", opaque=(GPU,)).refused.values()
    assert reason.kind is ReasonKind.TOO_FULL
    assert races.ledger().claims == {}
    races.pod("q", group="a")
    races.bind("q")
    races.pod("r", group="a", percent=20)
    assert not races.claim("r", opaque=(GPU,)).refused


def test_binds_of_shares_are_waited_out_before_a_lost_ledger_is_recreated(make: Make) -> None:
    """One that claimed in the lost ledger may still post its Binding; no group's fence stops it."""
    for group in ("", "a"):
        races = make()
        races.pod("first", group=group, percent=10)
        assert races.bind("first") == ""
        races.pod("p", group=group)
        late = races.begin("p")
        while not any("bind" in request.what for request in races.replica.requests):
            races.replica.serve(races.replica.requests[0])
        races.cluster.remove(NODE_DEVICES, "n1")
        waited: list[str] = []
        Actor("leader", races.filling(late, waited)).finish()
        assert waited == [""]
        assert {claim.holder_name for claim in races.ledger().claims.values()} >= {"ns/first", "ns/p"}
        races.check()


def test_a_share_without_a_claim_is_claimed_again_only_where_there_is_room(make: Make) -> None:
    """Somebody deleted its claim by hand, and another pod got its part: that is for people to decide."""
    races = make()
    first = races.pod("p")
    assert races.bind("p") == ""
    cleared = {"spec": {"claims": {first.metadata.uid: None}}}
    races.cluster.edit(NODE_DEVICES, "n1", cleared)

    def cover() -> Any:
        covering = repair.cover(races.cluster, races.ledger(), [races.read("p")], first.metadata.uid)
        return Actor("leader", covering).finish()

    assert cover()
    assert first.metadata.uid in races.ledger().claims
    races.check()
    races.cluster.edit(NODE_DEVICES, "n1", cleared)
    races.pod("q")
    assert races.bind("q") == ""
    assert cover() is None
    assert {claim.pod for claim in races.ledger().claims.values()} == {"ns/q"}


def test_a_pod_may_leave_the_claim_of_a_bind_that_gave_up(make: Make) -> None:
    """Its node may be cordoned by now, or full of others; the claim left behind is collected at once."""
    races = make()
    uid = races.pod("p").metadata.uid
    races.claim("p")
    races.replica.hear()
    request = races.request("p")
    assert races.replica.fleet.filter(request, ["n1", "n2"]).fits == ["n1"]
    assert races.replica.fleet.filter(request, ["n2"]).fits == ["n2"]
    assert races.bind("p", "n2") == ""
    assert races.collector(uid).finish() is Outcome.FREED
    assert (races.waits, list(races.ledger("n2").claims)) == (0, [uid])
    races.check()
