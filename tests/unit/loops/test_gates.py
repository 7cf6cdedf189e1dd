"""Gated pods are nobody that devices could help: they aren't touched, and stand in nobody's way."""

import asyncio

from deviceshare.loops.kinds import PODS
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.test_waker import a_full_node, free_it, woken
from tests.unit.loops.virtual_time import in_virtual_time


def gate(world: World, name: str) -> None:
    """As the API server makes it at once, where the pod was created with a gate."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    spec = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    world.cluster.edit(PODS, name, {"spec": spec, "status": {"conditions": [condition]}}, "ns")


@in_virtual_time
async def test_a_gated_pod_is_never_touched() -> None:
    """Nobody would try it; when its gates go, the scheduler does without us."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        gate(world, "a")
        await asyncio.sleep(200)
        assert woken(world) == []


@in_virtual_time
async def test_a_gated_pod_does_not_stand_in_front_of_those_that_wait() -> None:
    """It is the oldest of its group; the one that goes ahead is the oldest that can."""
    async with led_world(2) as world:
        await a_full_node(world)
        world.group("team")
        world.pod("a", "team")
        gate(world, "a")
        world.pod("b", "team", refused=True)
        free_it(world)
        await soon(lambda: woken(world) == ["b"], 0.5)


@in_virtual_time
async def test_a_group_of_gated_pods_says_so_without_an_event() -> None:
    """Kueue may hold a job back for days, and that is as it should be."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        gate(world, "a")
        await soon(lambda: world.condition("team", "Bound") == ("False", "SchedulingGated"), 3)
        assert "kueue.x-k8s.io/admission" in world.message("team")
        assert world.recorder.reasons("team") == []
