"""Pods that the scheduler refused are touched when they fit: soon, seldom, and the right ones first."""

import asyncio

from deviceshare.domain import contract
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.leader import controller
from deviceshare.loops.ports import Conflict, Unavailable
from tests.unit.domain.objects import GPU, a_ledger, gpus
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time, now


def woken(world: World) -> list[str]:
    """The pods touched, in order; those refused by the API server count."""
    return world.cluster.writes("pods")


async def a_full_node(world: World) -> None:
    """A node of two devices, which the group `holder` holds through the pod `held`."""
    await soon(lambda: world.open("n1"))
    world.group("holder")
    world.pod("held", "holder")
    await world.bind("held", "n1")
    await asyncio.sleep(3)


def free_it(world: World) -> None:
    world.cluster.remove(PODS, "held", "ns")
    world.cluster.remove(GROUPS, "holder")


@in_virtual_time
async def test_a_pod_is_woken_when_devices_come_free() -> None:
    """Well within two seconds, and only then."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        world.pod("a", "team", refused=True)
        await asyncio.sleep(60)
        assert woken(world) == []
        free_it(world)
        await soon(lambda: contract.WOKEN_AT in world.read_pod("a").metadata.annotations, 0.5)


@in_virtual_time
async def test_a_pod_that_the_scheduler_has_not_tried_is_left_alone() -> None:
    """It will be, by itself."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        await asyncio.sleep(10)
        assert woken(world) == []
        world.refuse("a")
        await soon(lambda: woken(world) == ["a"], 0.5)


@in_virtual_time
async def test_of_a_group_the_first_pod_goes_ahead_and_the_others_follow() -> None:
    """Not all stand in the scheduler's line for one place; once the group is bound, all of them fit."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        for name in ("a", "b", "c"):
            world.pod(name, "team", refused=True)
        free_it(world)
        await soon(lambda: woken(world) == ["a"], 0.5)
        await asyncio.sleep(0.5)
        assert woken(world) == ["a"]
        await world.bind("a", "n1")
        await soon(lambda: woken(world) == ["a", "b", "c"], 0.5)


@in_virtual_time
async def test_of_an_unbound_group_those_follow_at_once_that_were_refused_since_the_extender_was_away() -> None:
    """The first is tried as before; what the others wait for nobody knows."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        for name in ("a", "b", "c"):
            world.pod(name, "team", refused=True)
        world.refuse("c", "SchedulerError")
        free_it(world)
        await soon(lambda: woken(world) == ["a", "c"], 0.5)
        await asyncio.sleep(3)
        assert woken(world) == ["a", "c"]


@in_virtual_time
async def test_a_pod_that_still_waits_is_woken_less_and_less_often() -> None:
    """It lacks something else, or the scheduler missed it; then the others of its group may be luckier."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team", refused=True)
        world.pod("b", "team", refused=True)
        start, times = now(), []
        while now() < start + 250:
            seen = len(woken(world))
            await asyncio.sleep(0.05)
            if len(woken(world)) > seen and round(now() - start) not in times:
                times.append(round(now() - start))
        assert times == [0, 5, 15, 35, 75, 135, 195]
        assert woken(world) == ["a"] + ["a", "b"] * 6


@in_virtual_time
async def test_a_pod_refused_later_does_not_wait_for_the_others_turn() -> None:
    """Of a bound group every pod fits."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.pod("a", "holder", refused=True)
        await soon(lambda: woken(world) == ["a"], 0.5)
        await asyncio.sleep(17)
        assert woken(world) == ["a"] * 3
        world.pod("b", "holder", refused=True)
        await soon(lambda: woken(world) == ["a"] * 3 + ["b"], 0.5)


@in_virtual_time
async def test_when_the_pod_that_went_ahead_is_gone_the_next_one_goes() -> None:
    """Its workload made it again, under another name."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team", refused=True)
        await asyncio.sleep(17)
        world.pod("b", "team", refused=True)
        await asyncio.sleep(1)
        assert woken(world) == ["a"] * 3
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: woken(world) == ["a"] * 3 + ["b"], 0.5)


@in_virtual_time
async def test_a_pod_is_woken_when_its_group_is_created() -> None:
    """It came first and was refused."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.pod("a", "team", refused=True)
        await asyncio.sleep(10)
        world.group("team")
        await soon(lambda: woken(world) == ["a"], 0.5)


@in_virtual_time
async def test_a_pod_is_woken_when_a_node_comes_or_changes() -> None:
    """A second node has what the first has not."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team", nodeSelector={"zone": "west"})
        world.pod("a", "team", refused=True)
        world.node("n2", 2)
        await asyncio.sleep(20)
        assert woken(world) == []
        world.cluster.edit(NODES, "n2", {"metadata": {"labels": {"zone": "west"}}})
        await soon(lambda: woken(world) == ["a"], 0.5)


@in_virtual_time
async def test_a_pod_is_woken_when_its_bound_group_can_be_joined_again() -> None:
    """Its ledger is opened, or its claim's mark taken away: nothing comes free, but the pod fits."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.cluster.fail = lambda verb, plural, _: Unavailable("down") if plural == "nodedevices" else None
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"devices": []}})
        world.pod("late", "holder", refused=True)
        await asyncio.sleep(5)
        assert woken(world) == []
        world.cluster.fail = lambda verb, plural, _: None
        await soon(lambda: world.open("n1"), 20)
        await soon(lambda: woken(world) == ["late"], 0.5)


def test_a_claim_without_its_mark_can_be_joined_again() -> None:
    """One that was just made offers nothing to those who wait: the most frequent change."""
    marked, unmarked = (a_ledger(team=gpus(0, 1, 2, 3), releasing=names) for names in (("team",), ()))
    assert not controller._offers_no_more(unmarked, marked)
    assert controller._offers_no_more(marked, unmarked)
    assert controller._offers_no_more(unmarked, a_ledger())


@in_virtual_time
async def test_another_node_that_fits_is_another_reason() -> None:
    """The one before may have lacked memory; a node that goes is no reason."""
    world = World()
    world.node("n1", 2)
    world.node("n3", 2)
    async with world.leading():
        await soon(lambda: world.open("n1") and world.open("n3"))
        world.group("team")
        world.pod("a", "team", refused=True)
        await soon(lambda: woken(world) == ["a"])
        world.cluster.remove(NODES, "n3")
        await asyncio.sleep(1)
        assert woken(world) == ["a"]
        world.node("n2", 2)
        await soon(lambda: woken(world) == ["a", "a"], 20)


@in_virtual_time
async def test_devices_that_a_failed_bind_gives_back_in_memory_are_noticed() -> None:
    """No object changes by that, so nobody tells."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        ledger = world.ledger("n1")
        world.fleet.assume("another-uid", Assumption("n1", tuple(ledger.devices)))
        world.group("team")
        world.pod("a", "team", refused=True)
        await asyncio.sleep(2)
        assert woken(world) == []
        world.fleet.forget("another-uid")
        await soon(lambda: woken(world) == ["a"], 5)


@in_virtual_time
async def test_a_touch_that_fails_is_made_up_for() -> None:
    """Somebody wrote the pod meanwhile; nobody wrote it at all."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        world.pod("a", "team", refused=True)
        await asyncio.sleep(1)
        errors = [Conflict("moved on")] * 2
        world.cluster.fail = lambda verb, plural, name: errors.pop() if plural == "pods" and errors else None
        free_it(world)
        await soon(lambda: contract.WOKEN_AT in world.read_pod("a").metadata.annotations, 1)


@in_virtual_time
async def test_a_pod_on_its_way_out_is_left_alone() -> None:
    """Somebody deleted it."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        world.cluster.edit(PODS, "a", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "ns")
        world.refuse("a")
        await asyncio.sleep(20)
        assert woken(world) == []


@in_virtual_time
async def test_who_waits_for_other_devices_is_not_woken() -> None:
    """What came free would not do."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("large", 3)
        world.cluster.put(GROUPS, {"metadata": {"name": "amd"}, "spec": {"resources": {"amd.com/gpu": 1}}})
        world.group("fits", 2)
        for name in ("large", "amd", "fits"):
            world.pod(f"of-{name}", name, refused=True)
        free_it(world)
        await asyncio.sleep(3)
        assert woken(world) == ["of-fits"]
        assert world.fleet.free("n1")[0].resource == GPU


@in_virtual_time
async def test_a_pod_that_waits_in_vain_stands_in_nobodys_way() -> None:
    """Of an unbound group the oldest pod goes ahead; were it one that can go nowhere, the others would wait on."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        world.pod("a", "team", refused=True, nodeSelector={"zone": "nowhere"})
        world.pod("b", "team", refused=True)
        free_it(world)
        await soon(lambda: woken(world) == ["b"], 0.5)
        await asyncio.sleep(600)
        assert "a" not in woken(world)


@in_virtual_time
async def test_a_pod_that_refuses_the_touch_keeps_nobody_waiting() -> None:
    """The next pod of its group goes ahead at once, as it would without it; its owner is told why."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        world.pod("a", "team", refused=True)
        world.pod("b", "team", refused=True)
        world.cluster.refusing["a"] = True
        free_it(world)
        await soon(lambda: woken(world) == ["a", "b"], 0.5)
        await asyncio.sleep(1)
        assert "CannotBeWritten" in world.recorder.reasons("a")


@in_virtual_time
async def test_a_pod_that_refuses_the_touch_is_tried_again_less_and_less_often() -> None:
    """Until it takes it."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        world.pod("a", "team", refused=True)
        world.cluster.refusing["a"] = True
        free_it(world)
        await asyncio.sleep(80)
        assert 4 <= len(woken(world)) <= 6
        del world.cluster.refusing["a"]
        await soon(lambda: contract.WOKEN_AT in world.read_pod("a").metadata.annotations, 65)
