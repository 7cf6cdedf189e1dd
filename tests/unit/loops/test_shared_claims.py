"""Claims that are written together: nobody's giving up, failing or being refused is another's."""

import asyncio
import gc
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import NodeDevices, claim_of, claims_patch, share_claim_of
from deviceshare.domain.objects.shares import GROUP, Holder, Request, Share
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import Conflict, Unavailable
from deviceshare.loops.protocol.bind import Refused, wanted_devices, wanted_share
from deviceshare.loops.replica.binder import SharedClaims
from tests.unit.domain.objects import GPU, a_share_pod
from tests.unit.loops.live import LiveCluster
from tests.unit.loops.virtual_time import in_virtual_time


class Claiming:
    """A ledger of one device, and pods that want percents of it."""

    def __init__(self, devices: int = 1) -> None:
        self.cluster = LiveCluster()
        status = {"devices": [{"resource": GPU, "index": index} for index in range(devices)]}
        self.cluster.put(NODE_DEVICES, {"metadata": {"name": "n1"}, "spec": {"claims": {}}, "status": status})
        self.mirror = self.cluster.mirrors[NODE_DEVICES.plural]
        self.mirror.set("n1", self.cluster.read(NODE_DEVICES, "n1"))
        self.claims = SharedClaims(self.cluster, self.mirror, lambda: None)

    def begin(self, name: str, percent: int = 10) -> asyncio.Task[NodeDevices]:
        return asyncio.create_task(self.claims(wanted_share(a_request(name, percent)), "n1"), name=name)

    @property
    def pods(self) -> list[str]:
        ledger = self.cluster.read(NODE_DEVICES, "n1")
        assert ledger is not None
        return sorted(claim.pod.removeprefix("ns/") for claim in ledger.claims.values())

    @property
    def verbs(self) -> list[str]:
        return [verb for verb, *_ in self.cluster.requests]


def a_request(name: str, percent: int) -> Request:
    request = request_of(a_share_pod(name, percent=percent), None)
    assert request is not None
    return request


async def outcomes(tasks: Iterable[asyncio.Task[Any]]) -> list[str]:
    done = await asyncio.gather(*tasks, return_exceptions=True)
    return [type(each).__name__ for each in done]


@in_virtual_time
async def test_those_who_ask_while_a_claim_is_written_share_the_next_write() -> None:
    """One request for each write, however many pods there are; all of them fit. The watch has told nothing yet."""
    claiming = Claiming()
    claiming.mirror.deaf = True
    first = claiming.begin("p0")
    await asyncio.sleep(0.001)
    others = [claiming.begin(f"p{number}") for number in range(1, 10)]
    assert set(await outcomes([first, *others])) == {"NodeDevices"}
    assert claiming.verbs == ["patch", "patch"]
    assert len(claiming.pods) == 10
    seen = await others[-1]
    assert len(seen.claims) == 10


@pytest.mark.parametrize(
    ("then", "verbs"),
    [
        ("nothing", ["patch"]),
        ("written", ["patch", "get", "patch"]),
        ("missing", ["get", "patch"]),
        ("unreadable", ["get", "patch"]),
        ("full", ["get", "patch"]),
    ],
)
@in_virtual_time
async def test_the_ledger_is_read_only_where_the_mirrors_copy_does_not_do(then: str, verbs: list[str]) -> None:
    """Written since, not there, not readable, or without the room that there is by now."""
    claiming = Claiming()
    claiming.mirror.deaf = True
    known = claiming.cluster.read(NODE_DEVICES, "n1")
    assert known is not None
    if then in ("written", "full"):
        claiming.cluster.edit(NODE_DEVICES, "n1", {})
    if then == "missing":
        claiming.mirror.objects.clear()
    if then == "unreadable":
        hidden = replace(known.metadata, unreadable={"spec": "a claim without a holder"})
        claiming.mirror.objects["n1"] = replace(known, metadata=hidden)
    if then == "full":
        claiming.mirror.objects["n1"] = replace(known, status=replace(known.status, devices=[]))
    assert await outcomes([claiming.begin("p")]) == ["NodeDevices"]
    assert claiming.verbs == verbs
    assert claiming.pods == ["p"]


@in_virtual_time
async def test_a_claim_that_is_there_already_is_read() -> None:
    """Nothing is written then, so nothing would show that it is there still, and unmarked."""
    claiming = Claiming()
    seen = await claiming.begin("p")
    claiming.mirror.deaf = True
    [uid] = seen.claims
    claiming.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: {"releasing": "mark"}}}})
    claiming.cluster.requests.clear()
    assert await outcomes([claiming.begin("p")]) == ["Refused"]
    assert claiming.verbs == ["get"]


@in_virtual_time
async def test_who_does_not_fit_is_refused_alone() -> None:
    """In the order in which they asked."""
    claiming = Claiming()
    asked = [claiming.begin(name, percent) for name, percent in (("a", 60), ("b", 60), ("c", 40))]
    assert await outcomes(asked) == ["NodeDevices", "Refused", "NodeDevices"]
    assert claiming.pods == ["a", "c"]
    with pytest.raises(Refused, match="too full"):
        await asked[1]


@in_virtual_time
async def test_who_gave_up_before_the_write_began_claims_nothing() -> None:
    """Its time was over while another write was under way; those beside it get theirs."""
    claiming = Claiming()
    first = claiming.begin("first")
    await asyncio.sleep(0.001)
    gone, stays = claiming.begin("gone"), claiming.begin("stays")
    await asyncio.sleep(0.001)
    gone.cancel()
    assert await outcomes([first, gone, stays]) == ["NodeDevices", "CancelledError", "NodeDevices"]
    assert claiming.pods == ["first", "stays"]


@in_virtual_time
async def test_who_gives_up_while_the_write_is_under_way_fails_nobody() -> None:
    """Its claim is written, since nobody can tell; the leader collects it."""
    claiming = Claiming()
    gone, stays = claiming.begin("gone"), claiming.begin("stays")
    await asyncio.sleep(0.004)
    gone.cancel()
    assert await outcomes([gone, stays]) == ["CancelledError", "NodeDevices"]
    assert claiming.pods == ["gone", "stays"]


@pytest.mark.parametrize("error", [Conflict("409"), Unavailable("503", retry_after=3.0), RuntimeError("a bug")])
def test_a_write_that_fails_fails_those_who_shared_it_and_nobody_after_them(error: Exception) -> None:
    """Each with an exception of its own, of the same kind and with all that it says."""

    @in_virtual_time
    async def scenario() -> None:
        claiming = Claiming()
        claiming.cluster.fail = lambda verb, *_: error if verb == "patch" else None  # type: ignore[assignment]
        done = await asyncio.gather(*(claiming.begin(name) for name in "ab"), return_exceptions=True)
        assert [type(each) for each in done] == [type(error)] * 2
        assert done[0] is not done[1]
        assert all(vars(each) == vars(error) for each in done)
        claiming.cluster.fail = lambda *_: None
        assert set(await outcomes([claiming.begin("c")])) == {"NodeDevices"}

    scenario()


@in_virtual_time
async def test_nothing_is_left_of_those_who_asked() -> None:
    """Neither their requests nor exceptions that nobody fetched, also where all have given up."""
    claiming = Claiming()
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    claiming.cluster.fail = lambda verb, *_: Unavailable("503") if verb == "patch" else None
    for when in (0.0, 0.001, 0.006):
        tasks = [claiming.begin(name) for name in "xyz"]
        await asyncio.sleep(when)
        for task in tasks:
            task.cancel()
        await outcomes(tasks)
        await asyncio.sleep(0.1)
        del tasks, task
    gc.collect()
    assert complaints == []
    left = [each for each in gc.get_objects() if isinstance(each, Request) and each.holder.name in ("ns/x", "ns/y")]
    assert left == []


@in_virtual_time
async def test_closing_ends_everybody() -> None:
    """Those under way, and those who wait for the next write."""
    claiming = Claiming()
    tasks = [claiming.begin("a")]
    await asyncio.sleep(0.001)
    tasks.append(claiming.begin("b"))
    await asyncio.sleep(0.001)
    await claiming.claims.close()
    assert await outcomes(tasks) == ["CancelledError"] * 2


@pytest.mark.parametrize(("number", "outcome"), [(0, "Refused"), (1, "NodeDevices")])
@in_virtual_time
async def test_a_claim_of_a_device_that_the_group_no_longer_has_is_not_used(number: int, outcome: str) -> None:
    """The bind that wrote it died, the group was released, and then bound here anew with another device."""
    claiming = Claiming(devices=2)
    pod = a_share_pod("p", percent=10)
    mine = share_claim_of(pod.sharer, [Share("main", GPU, number, percent=10)], "group-uid")
    claims = {"group-uid": claim_of(Holder("group-uid", GROUP, "team"), [Device(GPU, 1)]), pod.metadata.uid: mine}
    claiming.cluster.edit(NODE_DEVICES, "n1", {"spec": claims_patch(NodeDevices(), claims)["spec"]})
    request = Request(Holder("group-uid", GROUP, "team"), {GPU: 1}, "binpack", {}, "n1", pod.share, pod.sharer)
    task = asyncio.create_task(claiming.claims(wanted_share(request), "n1"), name="p")
    assert await outcomes([task]) == [outcome]


@in_virtual_time
async def test_groups_and_pods_with_shares_are_claimed_for_together() -> None:
    """First pods of many groups that come at once to one node conflict with nobody; who comes too late is refused."""
    claiming = Claiming(devices=4)
    first = claiming.begin("p0")
    await asyncio.sleep(0.001)
    names = ("a", "b", "c", "d")
    requests = [Request(Holder(f"uid-{name}", GROUP, name), {GPU: 1}, "binpack", {}, "") for name in names]
    wishes = [wanted_devices(request, token=f"token-{request.holder.name}") for request in requests]
    others = [asyncio.create_task(claiming.claims(wish, "n1"), name=wish.uid) for wish in wishes]
    assert await outcomes([first, *others]) == [*4 * ["NodeDevices"], "Refused"]
    assert claiming.verbs == ["patch", "get", "patch"], "who is refused is refused by a fresh read"
    seen = await others[0]
    held = {
        claim.group: (claim.token, [d.index for d in claim.devices]) for claim in seen.claims.values() if claim.group
    }
    assert held == {name: (f"token-{name}", [index]) for index, name in enumerate("abc", 1)}
