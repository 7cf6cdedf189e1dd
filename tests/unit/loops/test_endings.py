"""A failed pod keeps its devices until its containers have ended, and not for ever."""

import asyncio
from typing import Any

from deviceshare.domain import contract
from deviceshare.loops.kinds import GROUPS, PODS
from deviceshare.loops.leader.controller import MARGIN_SECONDS
from deviceshare.loops.ports import Unavailable
from tests.unit.loops.live import World, a_bound_group, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

RUNS = {"name": "main", "state": {"running": {}}}
ENDED = {"name": "main", "state": {"terminated": {}}}
EVICTED: dict[str, Any] = {"phase": "Failed", "reason": "Evicted", "containerStatuses": [RUNS]}


async def a_failed_pod(world: World) -> None:
    """As an old kubelet publishes it before it kills; its group was deleted, and another waits for the devices."""
    world.node("n1", 2)
    await a_bound_group(world)
    world.cluster.edit(PODS, "a", {"status": EVICTED, "spec": {"terminationGracePeriodSeconds": 20}}, "ns")
    world.cluster.remove(GROUPS, "team")
    await asyncio.sleep(5)
    assert world.holders("n1") == {"team": "0,1*"}


@in_virtual_time
async def test_devices_are_given_on_as_soon_as_the_containers_have_ended() -> None:
    """The kubelet says so later."""
    world = World()
    async with world.leading():
        await a_failed_pod(world)
        world.cluster.edit(PODS, "a", {"status": {"containerStatuses": [ENDED]}}, "ns")
        await soon(lambda: world.holders("n1") == {}, 0.5)
        await asyncio.sleep(60)
        assert contract.ENDED not in world.read_pod("a").metadata.annotations


@in_virtual_time
async def test_devices_are_given_on_after_the_grace_period_where_no_kubelet_says_so() -> None:
    """The statuses of pods that old kubelets evict stay as they were; a node that is lost says nothing more."""
    world = World()
    async with world.leading():
        began = now()
        await a_failed_pod(world)
        await soon(lambda: world.holders("n1") == {}, 60)
        assert 20 + MARGIN_SECONDS <= now() - began <= 20 + MARGIN_SECONDS + 8
        pod = world.read_pod("a")
        assert pod.metadata.annotations[contract.ENDED] == pod.metadata.uid


@in_virtual_time
async def test_a_pod_that_no_kubelet_ever_started_is_not_held_for_ever() -> None:
    """It was rejected on arrival (OutOfcpu, NodeAffinity, …): no container has a status."""
    async with led_world(2) as world:
        await a_bound_group(world)
        rejected = {"phase": "Failed", "reason": "OutOfcpu"}
        world.cluster.edit(PODS, "a", {"status": rejected}, "ns")
        await soon(lambda: not world.read_pod("a").lives, 30 + MARGIN_SECONDS + 1)
        await soon(lambda: world.read_group("team").status.pod_count == 0, 3)


@in_virtual_time
async def test_the_next_leader_waits_anew_and_a_failed_write_is_tried_again() -> None:
    """Nobody knows how long the last one had waited; what it wrote, all go by."""
    world = World()
    async with world.leading():
        await a_failed_pod(world)
    heir = world.successor()
    failures = [Unavailable("hiccup")]
    heir.cluster.fail = lambda verb, plural, name: (
        failures.pop() if failures and (verb, plural) == ("patch", "pods") else None
    )
    began = now()
    async with heir.leading():
        await soon(lambda: heir.holders("n1") == {}, 60)
        assert now() - began >= 20 + MARGIN_SECONDS
        assert not failures


@in_virtual_time
async def test_another_pod_of_the_name_is_waited_for_by_itself() -> None:
    """The first was deleted in time; the second fails later and has its own containers."""
    world = World()
    async with world.leading():
        await a_failed_pod(world)
        annotations = world.read_pod("a").metadata.annotations
        world.cluster.remove(PODS, "a", "ns")
        await asyncio.sleep(0.1)
        again = world.pod("a", "team")
        await asyncio.sleep(0.1)
        mine = {**annotations, contract.POD_UID: again.metadata.uid}
        body = {"spec": {"nodeName": "n1"}, "metadata": {"annotations": mine}, "status": {"phase": "Failed"}}
        world.cluster.edit(PODS, "a", body, "ns")
        await asyncio.sleep(30 + MARGIN_SECONDS - 1)
        assert world.read_pod("a").lives
        await soon(lambda: not world.read_pod("a").lives, 3)
