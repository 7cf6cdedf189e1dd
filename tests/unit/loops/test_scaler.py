"""Autoscalers are shown pods for those that wait, as long as they wait, each of them once."""

import asyncio
from typing import Any

from deviceshare.domain import contract
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.scaler import REPLACED_SECONDS
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time

HOME = "deviceshare-system"


def shown(world: World) -> dict[str, Any]:
    """By the pods that they stand for."""
    every = world.cluster.objects[PODS.plural].values()
    mine = [pod for pod in every if contract.SCALING in pod["metadata"].get("labels", {})]
    return {pod["metadata"]["annotations"][contract.SCALING]: pod for pod in mine}


@in_virtual_time
async def test_a_waiting_pod_has_one_until_it_is_bound() -> None:
    """With the condition by which autoscalers find pods; what fits has none."""
    async with led_world(1, scaling_namespace=HOME) as world:
        await soon(lambda: world.open("n1"))
        world.share("first", 60)
        await world.bind("first", "n1")
        world.share("waits", 60, refused=True)
        world.share("fits", 30, refused=True)
        await asyncio.sleep(5)
        assert not shown(world)
        await soon(lambda: list(shown(world)) == ["ns/waits"], 20)
        [pod] = shown(world).values()
        assert pod["metadata"]["namespace"] == HOME
        await asyncio.sleep(120)
        assert shown(world)["ns/waits"]["metadata"]["uid"] == pod["metadata"]["uid"]
        condition = shown(world)["ns/waits"]["status"]["conditions"][0]
        assert condition.items() >= {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}.items()
        world.end("first")
        await soon(lambda: not world.holders("n1"), 60)
        await world.bind("waits", "n1")
        await soon(lambda: not shown(world), 60)


@in_virtual_time
async def test_one_that_led_to_nothing_is_replaced() -> None:
    """So that nodes that have come since then are ruled out, too."""
    async with led_world(1, scaling_namespace=HOME) as world:
        await soon(lambda: world.open("n1"))
        world.share("waits", 400, refused=True)
        await soon(lambda: shown(world), 20)
        first = shown(world)["ns/waits"]["metadata"]["uid"]
        await asyncio.sleep(REPLACED_SECONDS + 120)
        assert shown(world)["ns/waits"]["metadata"]["uid"] != first


@in_virtual_time
async def test_none_where_the_setting_is_off() -> None:
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        world.share("waits", 400, refused=True)
        await asyncio.sleep(120)
        assert not shown(world)


@in_virtual_time
async def test_what_a_leader_left_half_way_is_ended_by_the_next() -> None:
    """A pod that it created and didn't show yet is shown; one that stands for nobody any more is deleted."""
    world = World(scaling_namespace=HOME)
    world.node("n1", 1)
    meta = {"name": "left", "labels": {contract.SCALING: ""}, "annotations": {contract.SCALING: "ns/gone"}}
    world.cluster.put(PODS, {"metadata": meta, "spec": {"containers": [{"name": "never-runs"}]}}, HOME)
    async with world.leading():
        await soon(lambda: world.open("n1"))
        await soon(lambda: not shown(world))
        world.share("waits", 400, refused=True)
        await soon(lambda: shown(world), 20)
        name = shown(world)["ns/waits"]["metadata"]["name"]
        world.cluster.edit(PODS, name, {"status": {"conditions": []}}, HOME)
        await soon(lambda: shown(world)["ns/waits"]["status"]["conditions"], 60)
