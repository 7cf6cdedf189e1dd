"""A pod that got another pod's devices is reported and deleted; in every replica, leading or not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deviceshare.domain import contract
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import Unavailable
from deviceshare.loops.replica.impostor_watch import ImpostorWatch
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time, now


@asynccontextmanager
async def watching(world: World) -> AsyncIterator[None]:
    watch = ImpostorWatch(world.cluster, world.cluster.mirrors["pods"], world.recorder, clock=now)
    task = asyncio.create_task(watch.run())
    yield
    task.cancel()
    await asyncio.wait({task})


def take_devices_of(world: World, name: str, uid: str) -> None:
    """The Binding meant for the pod `uid` reached the pod that has its name now."""
    annotations = {contract.POD_UID: uid, contract.GROUP_UID: "g", contract.SELECTED_DEVICES: "{}"}
    world.cluster.edit(PODS, name, {"spec": {"nodeName": "n1"}, "metadata": {"annotations": annotations}}, "ns")


@in_virtual_time
async def test_an_impostor_is_reported_and_deleted() -> None:
    """At once, and once."""
    world = World()
    world.pod("a", "team")
    async with watching(world):
        take_devices_of(world, "a", "the-earlier-uid")
        await soon(lambda: world.cluster.read(PODS, "a", "ns") is None, 0.2)
        await asyncio.sleep(10)
    assert world.recorder.reasons("a") == ["WrongDevices"]
    assert world.cluster.writes("pods", "delete") == ["a"]


@in_virtual_time
async def test_one_that_was_there_before_we_started_is_found() -> None:
    """Whoever bound it crashed before looking."""
    world = World()
    world.pod("a", "team")
    take_devices_of(world, "a", "the-earlier-uid")
    await asyncio.sleep(1)
    async with watching(world):
        await soon(lambda: world.cluster.read(PODS, "a", "ns") is None, 0.2)


@in_virtual_time
async def test_a_pod_with_its_own_devices_is_left_alone() -> None:
    """And one that has none yet."""
    world = World()
    mine = world.pod("a", "team")
    world.pod("b", "team")
    async with watching(world):
        take_devices_of(world, "a", mine.metadata.uid)
        await asyncio.sleep(10)
    assert world.cluster.requests == []


@in_virtual_time
async def test_the_pod_that_has_the_name_by_then_is_spared() -> None:
    """The deletion names the UID."""
    world = World()
    world.pod("a", "team")
    async with watching(world):
        take_devices_of(world, "a", "the-earlier-uid")

        def recreated(verb: str, plural: str, name: str) -> None:
            world.cluster.fail = lambda *_: None
            world.cluster.remove(PODS, "a", "ns")
            world.pod("a", "team")

        world.cluster.fail = recreated
        await asyncio.sleep(10)
    assert world.read_pod("a").node == ""


@in_virtual_time
async def test_a_deletion_that_fails_is_tried_again() -> None:
    """It holds devices that others may be given."""
    world = World()
    world.pod("a", "team")
    async with watching(world):
        errors = [Unavailable("away")] * 3
        world.cluster.fail = lambda verb, plural, name: errors.pop() if errors else None
        take_devices_of(world, "a", "the-earlier-uid")
        await soon(lambda: world.cluster.read(PODS, "a", "ns") is None, 5)


@in_virtual_time
async def test_one_that_is_on_its_way_out_is_not_deleted_again() -> None:
    """Its node needs a moment to end it."""
    world = World()
    world.pod("a", "team")
    world.cluster.edit(PODS, "a", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "ns")
    async with watching(world):
        take_devices_of(world, "a", "the-earlier-uid")
        await asyncio.sleep(10)
    assert world.cluster.writes("pods", "delete") == []
