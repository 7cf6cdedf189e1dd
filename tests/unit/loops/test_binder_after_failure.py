"""Binds of one group that wait together for another bind, which fails."""

import asyncio

from deviceshare.domain.objects.devices import devices_of
from deviceshare.loops.ports import Unavailable
from tests.unit.domain.objects import GPU
from tests.unit.loops.test_binder import scheduling
from tests.unit.loops.virtual_time import in_virtual_time


@in_virtual_time
async def test_those_who_waited_for_a_bind_that_failed_follow_one_another() -> None:
    """The first of them claims for all, and the rest join it; seen under load, where both claimed and one broke."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        pods = [f"p{number}" for number in range(4)]
        for pod in pods:
            world.pod(pod, "a")
        await asyncio.sleep(1)
        failures = iter([Unavailable("away")])
        scheduler.cluster.fail = lambda verb, what, name: next(failures, None) if verb == "patch" else None
        outcomes = await asyncio.gather(*(scheduler.bind(pod, "n1") for pod in pods))
        assert outcomes == ["away", "", "", ""]
        assert {world.read_pod(pod).devices for pod in pods[1:]} == {devices_of({GPU: 2})}
        assert scheduler.conflicts == 0
