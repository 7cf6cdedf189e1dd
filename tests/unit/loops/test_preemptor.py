"""The leader makes room for pods of higher priority: victims are evicted by their budgets, and the room is kept."""

import asyncio
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.placement.join_obstacles import NOMINATED, request_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.leader.context import ClaimKey
from deviceshare.loops.leader.preemptor import NOMINATED_SECONDS
from deviceshare.loops.ports import Invalid, Unavailable
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time

URGENT: dict[str, Any] = {"priority": 1000}


def leaving(world: World, *names: str) -> set[str]:
    """Those of the pods that were evicted."""
    return {name for name in names if world.read_pod(name).metadata.deletion_timestamp}


async def full(world: World, *priorities: int) -> list[str]:
    """The node's GPUs, each of one pod."""
    await soon(lambda: world.open("n1"))
    names = [f"p{number}" for number in range(len(priorities))]
    for name, priority in zip(names, priorities, strict=True):
        world.share(name, 100, priority=priority)
        await world.bind(name, "n1")
    return names


def events(world: World, name: str, reason: str) -> list[str]:
    return [text for _, about, why, text in world.recorder.events if (about, why) == (name, reason)]


@in_virtual_time
async def test_the_least_important_pod_makes_room() -> None:
    """An Event on both sides; the node is kept for the pod until it is bound, and nobody else goes."""
    async with led_world(2) as world:
        names = await full(world, 5, 3)
        world.share("urgent", 50, refused=True, **URGENT)
        await soon(lambda: leaving(world, *names) == {"p1"}, 5)
        assert world.read_pod("urgent").nominated_node == "n1"
        assert "priority 1000" in events(world, "p1", "Preempted")[0]
        assert "pod ns/p1 (priority 3)" in events(world, "urgent", "Preempting")[0]
        await asyncio.sleep(60)
        assert leaving(world, *names) == {"p1"}
        world.cluster.remove(PODS, "p1", "ns")
        await soon(lambda: "ns/p1" not in world.holders("n1"), 60)
        other = request_of(world.share("other", 50, priority=10), None)
        assert other and world.fleet.filter(other, ["n1"]).refused == {NOMINATED: ["n1"]}
        await world.bind("urgent", "n1")
        await soon(lambda: world.fleet.filter(other, ["n1"]).fits == ["n1"])
        assert world.read_pod("urgent").node == "n1" and not world.read_pod("urgent").nominated_node


@in_virtual_time
async def test_a_claim_that_outlives_its_evicted_pod_costs_nobody_else() -> None:
    """The pod is gone at once, as of a grace period of 0, and the API server is slow to take the release."""
    async with led_world(2) as world:
        names = await full(world, 5, 3)
        world.cluster.fail = lambda verb, what, name: (
            Unavailable("slow") if verb == "patch" and what == NODE_DEVICES.plural else None
        )
        world.share("urgent", 50, refused=True, **URGENT)
        await soon(lambda: leaving(world, *names) == {"p1"}, 5)
        world.cluster.remove(PODS, "p1", "ns")
        await asyncio.sleep(60)
        assert "ns/p1" in world.holders("n1") and leaving(world, "p0") == set()
        world.cluster.fail = lambda verb, what, name: None
        await soon(lambda: "ns/p1" not in world.holders("n1"), 120)


@in_virtual_time
async def test_nobody_goes_for_a_pod_of_no_higher_priority_or_that_forbids_it() -> None:
    """preemptionPolicy: Never; equal priority; room elsewhere."""
    async with led_world(2) as world:
        names = await full(world, 5, 1000)
        world.share("never", 50, refused=True, preemptionPolicy="Never", **URGENT)
        world.share("equal", 50, refused=True, priority=5)
        await asyncio.sleep(60)
        assert leaving(world, *names) == set()


@in_virtual_time
async def test_a_budget_is_asked_before_anybody_goes() -> None:
    """Two have to go and one may not: nobody goes, and the pod that waits has an Event."""
    async with led_world(2) as world:
        names = await full(world, 5, 5)
        world.cluster.protected = {"p0"}
        world.share("urgent", 200, refused=True, **URGENT)
        await soon(lambda: bool(events(world, "urgent", "PreemptionBlocked")), 5)
        await asyncio.sleep(5)
        assert leaving(world, *names) == set()
        world.cluster.protected = set()
        await soon(lambda: leaving(world, *names) == set(names), 120)


@in_virtual_time
async def test_a_group_that_no_pod_uses_gives_up_its_devices() -> None:
    """And one with a pod never does."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        await world.bind("a", "n1")
        world.share("urgent", 50, refused=True, **URGENT)
        await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1"}
        world.end("a")
        await soon(lambda: world.holders("n1") == {}, 60)
        assert "Preempted" in world.recorder.reasons("team")
        assert world.read_group("team").node == ""


@in_virtual_time
async def test_a_node_is_not_kept_for_ever() -> None:
    """The pod doesn't get there, such as for want of CPU."""
    async with led_world(1) as world:
        [name] = await full(world, 0)
        world.share("urgent", 50, refused=True, **URGENT)
        await soon(lambda: leaving(world, name) == {name}, 5)
        await asyncio.sleep(NOMINATED_SECONDS + 10)
        assert contract.NOMINATED_NODE not in world.read_pod("urgent").metadata.annotations


@in_virtual_time
async def test_a_group_that_is_wanted_meanwhile_stays() -> None:
    """A pod of it was created between the decision and the release: the API server is asked again."""
    world = World(compares=True)
    world.node("n1", 2)
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        await world.bind("a", "n1")
        world.end("a")
        await soon(lambda: world.read_group("team").status.idle_since != "")
        team = world.read_group("team")
        world.cluster.requests.clear()
        world.controller._releaser.preempt(ClaimKey("n1", team.uid, "team"), "for somebody")
        await soon(lambda: ("get", "nodedevices", "n1") in world.cluster.requests, 5)
        world.pod("b", "team")  # which no mirror shows for a moment
        await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1"} and world.read_group("team").node == "n1"


@in_virtual_time
async def test_a_node_is_not_kept_for_a_pod_that_waits_for_no_room_any_more() -> None:
    """Its group is being deleted, so that it will never get there."""
    async with led_world(1) as world:
        [name] = await full(world, 0)
        world.group("urgent", 1, mutated=True)
        world.pod("first", "urgent", refused=True, **URGENT)
        await soon(lambda: leaving(world, name) == {name}, 5)
        assert world.read_pod("first").nominated_node == "n1"
        world.cluster.edit(GROUPS, "urgent", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        await soon(lambda: not world.read_pod("first").nominated_node, 30)


@in_virtual_time
async def test_a_pod_that_refuses_every_write_holds_up_no_other() -> None:
    """A stranger's, whose turn comes first; its owner is told."""
    async with led_world(2) as world:
        names = await full(world, 0, 0)
        world.cluster.fail = lambda verb, _, name: Invalid("full") if (verb, name) == ("patch", "stranger") else None
        world.share("stranger", 50, refused=True, priority=2000)
        world.share("urgent", 50, refused=True, **URGENT)
        await soon(lambda: leaving(world, *names), 10)
        assert world.read_pod("urgent").nominated_node == "n1"
        assert events(world, "stranger", "CannotBeWritten")
