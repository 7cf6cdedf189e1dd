"""Pods that wait for shares are woken as there comes room, as many as fit, and equal ones are looked at once."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Allocation, Hardware, Part
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Request
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.leader.waker import PLACES, TRIED_SECONDS
from deviceshare.loops.ports import ApiError, Forbidden, Invalid, TooLarge, Unavailable
from deviceshare.loops.protocol.bind import Refused
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.test_waker import woken
from tests.unit.loops.virtual_time import in_virtual_time

CROWD = 100


async def a_full_device(world: World) -> None:
    """One device, which `big` and `small` share."""
    await soon(lambda: world.open("n1"))
    for name, percent in (("big", 70), ("small", 30)):
        world.share(name, percent)
        await world.bind(name, "n1")
    await asyncio.sleep(3)


@in_virtual_time
async def test_as_many_are_woken_as_fit() -> None:
    """The longest waiting; all others would stand in the scheduler's line in vain."""
    async with led_world(1) as world:
        await a_full_device(world)
        for number in range(CROWD):
            world.share(f"p{number:03}", 30, refused=True)
        await asyncio.sleep(5)
        assert woken(world) == []
        world.cluster.remove(PODS, "big", "ns")
        await soon(lambda: woken(world) == ["p000", "p001"], 0.5)
        await asyncio.sleep(2)
        assert woken(world) == ["p000", "p001"]
        for name in ("p000", "p001"):
            await world.bind(name, "n1")
        await asyncio.sleep(2)
        assert woken(world) == ["p000", "p001"]
        world.cluster.remove(PODS, "small", "ns")
        await soon(lambda: woken(world)[2:] == ["p002"], 0.5)


@in_virtual_time
async def test_what_keeps_the_first_from_a_node_need_not_keep_the_others() -> None:
    """In each further round twice as many are touched, less and less often."""
    async with led_world(1) as world:
        await a_full_device(world)
        for number in range(CROWD):
            world.share(f"p{number:03}", 30, refused=True)
        world.cluster.remove(PODS, "small", "ns")
        await soon(lambda: woken(world) == ["p000"], 0.5)
        await asyncio.sleep(5.5)
        assert Counter(woken(world)) == {"p000": 2, "p001": 1}
        await asyncio.sleep(10)
        assert Counter(woken(world)) == {"p000": 3, "p001": 2, "p002": 1, "p003": 1}


@in_virtual_time
async def test_a_new_leader_wakes_all_that_were_refused_since_the_extender_was_away() -> None:
    """Nobody has judged them, and kube-scheduler would leave them for minutes: seventy, of which ten fit."""
    world = World()
    world.node("n1", 10)
    names = {f"p{number:03}" for number in range(70)}
    async with world.leading():
        await soon(lambda: world.open("n1"))
        for name in sorted(names):
            world.share(name, 100)
            world.refuse(name, "SchedulerError")
        await asyncio.sleep(TRIED_SECONDS * len(names) / PLACES)
        assert set(woken(world)) == names
        assert max(Counter(woken(world)).values()) <= 2, "and then seldom, as others"


@in_virtual_time
async def test_a_pod_that_the_extender_never_saw_is_not_woken_where_it_would_not_fit() -> None:
    """It is refused once there is a reason to."""
    async with led_world(1) as world:
        await a_full_device(world)
        world.share("a", 60)
        world.refuse("a", "SchedulerError")
        await asyncio.sleep(20)
        assert woken(world) == []
        world.cluster.remove(PODS, "big", "ns")
        await soon(lambda: woken(world) == ["a"], 0.5)


@in_virtual_time
@pytest.mark.parametrize("refusal", [Invalid, TooLarge, Forbidden, Unavailable])
async def test_pods_that_cannot_be_written_keep_nobody_back(refusal: type[ApiError]) -> None:
    """Older pods with the same share, be it a stranger's. They are tried again, seldom, and when nobody else waits."""
    async with led_world(1) as world:
        await a_full_device(world)
        world.cluster.refusal = refusal
        for name in ("large", "larger"):
            world.share(name, 70, refused=True)
            world.cluster.refusing[name] = True
        await asyncio.sleep(1)
        world.share("mine", 70, refused=True)
        world.cluster.remove(PODS, "big", "ns")
        await soon(lambda: "mine" in woken(world), 2)
        told = refusal is not Unavailable
        assert ("CannotBeWritten" in world.recorder.reasons("large")) is told
        await world.bind("mine", "n1")
        world.cluster.remove(PODS, "mine", "ns")
        world.cluster.refusing.clear()
        await soon(lambda: {contract.WOKEN_AT} <= set(world.read_pod("large").metadata.annotations), 70)


@in_virtual_time
async def test_a_pod_that_no_node_admits_keeps_nobody_back() -> None:
    """Older pods with the same share, be it another team's, whose own nodeSelector no shared node has."""
    async with led_world(1) as world:
        await a_full_device(world)
        for number in range(CROWD):
            world.share(f"vain{number:03}", 30, refused=True, nodeSelector={"zone": "none"})
        await asyncio.sleep(1)
        world.share("able", 30, refused=True)
        world.cluster.remove(PODS, "small", "ns")
        await soon(lambda: woken(world) == ["able"], 0.5)
        await asyncio.sleep(20)
        assert set(woken(world)) == {"able"}


@in_virtual_time
async def test_shares_of_another_size_wait_in_another_line() -> None:
    """A pod that is too large keeps nobody back."""
    async with led_world(1) as world:
        await a_full_device(world)
        world.share("a", 60, refused=True)
        world.share("b", 30, refused=True)
        world.cluster.remove(PODS, "small", "ns")
        await soon(lambda: woken(world) == ["b"], 0.5)
        await asyncio.sleep(1)
        assert woken(world) == ["b"]


@in_virtual_time
async def test_equal_shares_of_another_namespace_wait_in_another_line() -> None:
    """A hundred older pods of one, which nothing helps, don't keep the other's asleep."""
    async with led_world(1) as world:
        await a_full_device(world)
        for number in range(CROWD):
            world.share(f"p{number:03}", 30, refused=True)
        ours = world.cluster._table(PODS)["ns/p000"]
        world.cluster.put(PODS, {**ours, "metadata": {"name": "ours", "labels": {"deviceshare.io/group": ""}}}, "team")
        world.cluster.remove(PODS, "small", "ns")
        await soon(lambda: "ours" in woken(world), 0.5)


@in_virtual_time
async def test_a_crowd_that_fits_takes_turns() -> None:
    """A namespace has so many places for touched pods; all come to their turn."""
    async with led_world(16) as world:
        await soon(lambda: world.open("n1"))
        world.group("holder", 16)
        world.pod("held", "holder")
        await world.bind("held", "n1")
        await asyncio.sleep(3)
        for number in range(3 * PLACES):
            world.share(f"p{number:03}", 30, refused=True)
        await asyncio.sleep(1)
        world.end("held")
        world.cluster.remove(PODS, "held", "ns")
        world.cluster.remove(GROUPS, "holder")
        await soon(lambda: len(woken(world)) == PLACES, 0.5)
        await asyncio.sleep(4.5)
        assert Counter(woken(world)).keys() == {f"p{number:03}" for number in range(3 * PLACES)}


@in_virtual_time
async def test_equal_shares_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of a ledger costs one look for each size, not for each pod that waits."""
    looks: list[Request] = []
    look = Fleet.filter

    def counted(fleet: Fleet, request: Request, names: Any) -> Any:
        looks.append(request)
        return look(fleet, request, names)

    async with led_world(1) as world:
        await a_full_device(world)
        for number in range(CROWD):
            world.share(f"p{number:03}", 30 + number % 2, refused=True)
        await asyncio.sleep(3)
        monkeypatch.setattr(Fleet, "filter", counted)
        world.cluster.remove(PODS, "small", "ns")
        await soon(lambda: woken(world) == ["p000"], 0.5)
        assert len(looks) <= 6


@in_virtual_time
async def test_of_a_groups_pods_as_many_are_woken_as_have_room_within_it() -> None:
    """They spend inside the group's devices."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team", 1)
        world.share("first", 60, group="team")
        await world.bind("first", "n1")
        await asyncio.sleep(3)
        for name in ("a", "b", "c"):
            world.share(name, 40, group="team", refused=True)
        await soon(lambda: woken(world) == ["a"], 0.5)
        await asyncio.sleep(1)
        assert woken(world) == ["a"]
        await world.bind("a", "n1")
        await asyncio.sleep(10)
        assert set(woken(world)) == {"a"}
        world.end("first")
        await soon(lambda: "b" in woken(world), 0.5)


@in_virtual_time
async def test_a_claim_that_a_bind_left_behind_is_collected_when_binds_are_over() -> None:
    """Of a pod that is gone at once, of one that waits after a while, and of one that was bound never."""
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        for name in ("gone", "waits", "bound"):
            world.share(name, 20)
        await asyncio.sleep(1)
        world.cluster.fail = lambda verb, *_: Unavailable("no Binding") if verb == "bind" else None
        for name in ("gone", "waits", "bound"):
            with pytest.raises(Unavailable):
                await world.bind(name, "n1")
        world.cluster.fail = lambda *_: None
        await world.bind("bound", "n1")
        assert world.holders("n1").keys() == {"ns/gone", "ns/waits", "ns/bound"}
        world.cluster.remove(PODS, "gone", "ns")
        await soon(lambda: world.holders("n1").keys() == {"ns/waits", "ns/bound"}, 0.5)
        await asyncio.sleep(7)
        assert world.holders("n1") == {"ns/waits": "0", "ns/bound": "0"}
        await soon(lambda: world.holders("n1") == {"ns/waits": "0*", "ns/bound": "0"}, 3)
        await soon(lambda: world.holders("n1") == {"ns/bound": "0"}, 14)
        quiet = len(world.cluster.requests)
        await asyncio.sleep(60)
        assert len(world.cluster.requests) - quiet <= 2


@in_virtual_time
async def test_a_mark_on_the_claim_of_a_bound_pod_is_taken_away_and_costs_little() -> None:
    """A former leader died behind it."""
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        world.share("p", 20)
        await world.bind("p", "n1")
        await asyncio.sleep(3)
        uid = world.read_pod("p").metadata.uid
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: {"releasing": "2026-01-01T00:00:00Z"}}}})
        await soon(lambda: world.holders("n1") == {"ns/p": "0"}, 0.5)
        await asyncio.sleep(3)
        before = len(world.cluster.requests)
        await asyncio.sleep(30)
        assert len(world.cluster.requests) == before


@in_virtual_time
async def test_a_share_of_a_deleted_groups_device_is_none_of_its_successors() -> None:
    """A bind died half-way, and the group was recreated: the pod waits until that claim is gone, and then gets its
    part of what the new group has."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team", 1)
        world.share("p", 30, group="team")
        world.cluster.fail = lambda verb, *_: Unavailable("no Binding") if verb == "bind" else None
        with pytest.raises(Unavailable):
            await world.bind("p", "n1")
        world.cluster.fail = lambda *_: None
        world.cluster.remove(GROUPS, "team")
        team = world.group("team", 1)
        for _ in range(60):
            with suppress(Refused):
                await world.bind("p", "n1")
                break
            await asyncio.sleep(1)
        claims = world.ledger("n1").claims
        mine = claims[world.read_pod("p").metadata.uid]
        assert mine.within == team.uid
        assert set(mine.devices) == set(claims[team.uid].devices)


def report(world: World, boot: str, allocated: list[Allocation] | None = None) -> None:
    """What the node's agent says, of one device with plenty of room and one that a device plugin may have allocated."""
    parts = [Part(GPU, number, f"GPU-{number}", memory_mib=1024) for number in range(2)]
    hardware = msgspec.to_builtins(Hardware(boot_id=boot, devices=parts, allocations=allocated))
    world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": hardware}})


@in_virtual_time
@pytest.mark.parametrize("first", ["node", "agent"])
async def test_pods_are_woken_once_the_agent_has_reported_after_a_reboot(first: str) -> None:
    """No device came free, but until the report nobody gets any. Two watches show the two, in any order."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        booted: dict[str, Callable[[str], None]] = {
            "node": lambda boot: world.cluster.edit(NODES, "n1", {"status": {"nodeInfo": {"bootID": boot}}}),
            "agent": lambda boot: report(world, boot),
        }
        for tell in booted.values():
            tell("before")
        booted.pop(first)("after")
        await asyncio.sleep(3)
        world.share("a", 30, refused=True)
        await asyncio.sleep(20)
        assert woken(world) == []
        for tell in booted.values():
            tell("after")
        await soon(lambda: woken(world) == ["a"], 2)


@in_virtual_time
async def test_pods_are_woken_once_the_agent_says_what_a_device_plugin_allocated() -> None:
    """Fewer devices count as free than before, but now it is known which."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        report(world, "")
        world.fleet.set_plugin_pods("n1", {"plain-uid": frozenset({GPU})})
        await asyncio.sleep(3)
        world.share("a", 30, refused=True)
        await asyncio.sleep(20)
        assert woken(world) == []
        report(world, "", [Allocation("ns/plain", "plain-uid", GPU, [0])])
        await soon(lambda: woken(world) == ["a"], 2)


@in_virtual_time
async def test_pods_are_woken_once_a_ledger_can_be_read_again() -> None:
    """Somebody corrects what could not be read; by what is counted nothing comes free."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        group = world.group("team", 1)
        world.pod("b", "team")
        await world.bind("b", "n1")
        await asyncio.sleep(3)
        assert group.uid in world.ledger("n1").claims
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"recovered": 3}})
        await asyncio.sleep(3)
        world.share("a", 30, refused=True)
        await asyncio.sleep(20)
        assert woken(world) == []
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"recovered": None}})
        await soon(lambda: woken(world) == ["a"], 2)


@in_virtual_time
async def test_who_waits_learns_that_a_pod_of_the_device_plugin_has_ended() -> None:
    """Nobody knew which devices it had, so that none could be had; its group is told what else is in the way."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        named = {"name": "plain", "namespace": "ns", "uid": "plain-uid"}
        spec = {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": {GPU: "1"}}}]}
        for version, phase in enumerate(("Pending", "Running"), 1):
            body = {"metadata": named | {"resourceVersion": str(version)}, "spec": spec, "status": {"phase": phase}}
            world.others.set("ns/plain", msgspec.convert(body, Pod))
        world.group("large", 3)
        world.pod("l", "large", refused=True)
        world.share("a", 30, refused=True)
        await asyncio.sleep(20)
        assert woken(world) == []
        assert "through the device plugin" in world.message("large")
        world.others.set("ns/plain", None)
        await soon(lambda: woken(world) == ["a"], 2)
        await soon(lambda: "through the device plugin" not in world.message("large"), 10)
