"""A leader alone, without the extender's role, may do all that it does when a pod with a share ends."""

import asyncio

from deviceshare.doctor import installation
from deviceshare.loops.kinds import PODS
from tests.unit.doctor.installations import deployed
from tests.unit.loops.live import led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time


@in_virtual_time
async def test_the_leader_may_look_whether_a_pod_with_a_share_is_gone() -> None:
    """That the rights are those of the chart's role is tested in test_findings.py."""
    granted = {(each.verb, each.resource) for each in installation.needed(deployed("--roles=controller"))}
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.share("a", 30)
        await world.bind("a", "n1")
        await asyncio.sleep(5)
        before = len(world.cluster.requests)
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: world.holders("n1") == {}, 30)
        asked = {(verb, plural) for verb, plural, _ in world.cluster.requests[before:]}
    assert ("get", "pods") in asked
    assert asked <= granted
