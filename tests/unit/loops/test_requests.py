"""What a pod costs the API server: every request of binders and of the leader, by its verb and resource."""

import asyncio
from collections.abc import Callable

import pytest

from deviceshare.loops.kinds import DEVICE_QUOTAS
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time

CLAIM, SETTLE, RESERVE = "patch nodedevices", "patch shareddevicegroups", "patch devicequotas"
BINDING, READ, PODS = "bind pods", "get nodedevices", "patch shareddevicegroups"


def first_pod(world: World) -> None:
    world.pod("a", "team")


def share(world: World) -> None:
    world.share("a", 30)


@pytest.mark.parametrize("waited", [0.1, 10.0])
@pytest.mark.parametrize(
    ("create", "quotas", "requests"),
    [
        (first_pod, 0, [CLAIM, SETTLE, BINDING]),
        (first_pod, 1, [RESERVE, CLAIM, SETTLE, BINDING]),
        (first_pod, 2, [RESERVE, RESERVE, CLAIM, SETTLE, BINDING]),
        (share, 0, [CLAIM, BINDING]),
    ],
)
@in_virtual_time
async def test_a_pod_costs_so_many_requests(
    create: Callable[[World], None], quotas: int, requests: list[str], waited: float
) -> None:
    """In this order, all of them the bind's: the group's status says its first pod, too, and no Event once more."""
    world = World()
    world.node("n1")
    world.group("team", mutated=True)
    for number in range(quotas):
        world.cluster.put(DEVICE_QUOTAS, {"metadata": {"name": f"q{number}"}, "spec": {"hard": {GPU: 4}}})
    async with world.leading():
        await soon(lambda: world.open("n1"))
        await asyncio.sleep(10)
        create(world)
        await asyncio.sleep(waited)
        world.cluster.requests.clear()
        await world.bind("a", "n1")
        await asyncio.sleep(60)
    found = [f"{verb} {what}" for verb, what, _ in world.cluster.requests]
    assert found == requests
    assert world.read_pod("a").node == "n1"
    if create is first_pod:
        assert world.read_group("team").status.allocated_pods == ["ns/a"]
        assert world.condition("team", "Ready") == ("True", "Claimed")
    assert [event for event in world.recorder.events if event[2] != "Waiting"] == []


@in_virtual_time
async def test_a_further_pod_of_a_group_costs_three_requests() -> None:
    """It joins by a fresh read."""
    world = World()
    world.node("n1")
    world.group("team")
    first_pod(world)
    async with world.leading():
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 5)
        await world.bind("a", "n1")
        world.pod("b", "team")
        await asyncio.sleep(10)
        world.cluster.requests.clear()
        await world.bind("b", "n1")
        await asyncio.sleep(60)
    assert [f"{verb} {what}" for verb, what, _ in world.cluster.requests] == [READ, BINDING, PODS]
