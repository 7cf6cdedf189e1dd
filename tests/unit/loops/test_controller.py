"""The leader as a whole: with a scheduler that forgets who it refused, an API server that fails, and other hands."""

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.leader.controller import STUCK_SECONDS
from deviceshare.loops.ports import ApiError, Conflict, Unavailable
from deviceshare.loops.protocol.bind import Refused
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time


class OneTryScheduler:
    """Tries each pod once, and again only when the pod changes, as kube-scheduler does at its worst."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tried: dict[str, str] = {}

    async def run(self) -> None:
        while True:
            for pod in self.world.cluster.all(PODS):
                key, state = pod.metadata.uid, pod.metadata.annotations.get(contract.WOKEN_AT, "")
                if pod.pending and self.tried.get(key) != state:
                    self.tried[key] = state
                    await self._try(pod.metadata.name, pod.group)
            await asyncio.sleep(0.01)

    async def _try(self, name: str, group_name: str) -> None:
        world = self.world
        group = world.cluster.mirrors["shareddevicegroups"].get(group_name)
        fits = world.fleet.filter(group.request, world.fleet.names()).fits if group else []
        try:
            if group and fits:
                await world.bind(name, fits[0])
                return
        except (ApiError, Refused):
            pass
        if world.cluster.read(PODS, name, "ns"):
            world.refuse(name)


def check(world: World) -> None:
    """The invariants of the design that a finished history must show."""
    owners: Counter[tuple[str, str, int]] = Counter()
    for ledger in world.cluster.all(NODE_DEVICES):
        for claim in ledger.claims.values():
            owners.update((ledger.node, device.resource, device.index) for device in claim.devices)
    assert all(count == 1 for count in owners.values())
    for group in world.cluster.all(GROUPS):
        pods = [pod for pod in world.cluster.all(PODS) if pod.lives and pod.holder_uid == group.uid]
        assert {pod.node for pod in pods} <= {group.node}
        if group.node:
            claim = world.ledger(group.node).claims[group.uid]
            assert all(pod.devices == tuple(sorted(claim.devices)) for pod in pods)


async def everything_settled(world: World) -> None:
    """Every pod runs, every group says so, every node has its ledger."""

    def settled() -> bool:
        groups = world.cluster.all(GROUPS)
        return (
            all(pod.lives for pod in world.cluster.all(PODS))
            and all(world.open(node) for node in ("n1", "n2"))
            and all(group.status.pod_count == 3 for group in groups)
            and all(world.condition(group.name, "Healthy")[0] == "True" for group in groups)
        )

    await asyncio.sleep(1)
    await soon(settled, 300)


@in_virtual_time
async def test_groups_that_wait_get_their_turn_one_after_the_other() -> None:
    """Six groups for two places; whoever is served ends after a second."""
    world = World()
    world.node("n1")
    for number in range(6):
        world.group(f"g{number}")
        world.pod(f"p{number}", f"g{number}")
    scheduler = asyncio.create_task(OneTryScheduler(world).run())
    async with world.leading():
        for _ in range(6):
            await soon(lambda: any(pod.lives for pod in world.cluster.all(PODS)), 20)
            await asyncio.sleep(1)
            check(world)
            for pod in world.cluster.all(PODS):
                if pod.lives:
                    world.cluster.remove(PODS, pod.metadata.name, "ns")
                    world.cluster.remove(GROUPS, pod.group)
            if not world.cluster.all(PODS):
                break
        assert world.cluster.all(PODS) == []
    scheduler.cancel()


@pytest.mark.parametrize("seed", range(6))
@in_virtual_time
async def test_everything_settles_whatever_the_api_server_does(seed: int) -> None:
    """It fails a tenth of all requests and loses the answers to others; somebody wipes what can be wiped."""
    random.seed(seed)  # the jitter of retries, too
    world = World()
    world.cluster.fail = lambda verb, plural, name: random.choice(
        [None] * 18 + [Conflict("moved on"), Unavailable("away")]
    )
    world.cluster.lose = lambda: random.random() < 0.05
    for name in ("n1", "n2"):
        world.node(name)
    for number in range(4):
        world.group(f"g{number}")
        for pod in range(3):
            world.pod(f"g{number}-p{pod}", f"g{number}")
    scheduler = asyncio.create_task(OneTryScheduler(world).run())
    async with world.leading():
        for _ in range(12):
            await asyncio.sleep(random.uniform(0, 4))
            group = random.choice(world.cluster.all(GROUPS))
            if random.random() < 0.5 or not group.node:
                world.cluster.edit(GROUPS, group.name, {"status": None})
            else:
                world.cluster.remove(NODE_DEVICES, group.node)
        await everything_settled(world)
        check(world)
    scheduler.cancel()


@in_virtual_time
async def test_what_an_agent_reports_for_people_gives_the_leader_no_work() -> None:
    """Where programs take turns it changes every few seconds; health is another matter."""
    world = World()
    world.node("n1")
    world.group("g", 1)
    turns: dict[str, Any] = {"time": "1", "queues": [{"group": "g", "waiting": [{"pod": "ns/p"}]}]}
    device = {"resource": GPU, "index": 0}
    overuses = [{**device, "pod": "ns/p"}]
    async with world.leading():
        await soon(lambda: world.open("n1"), 5)
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": {"devices": [device]}}})
        await asyncio.sleep(30)
        enqueued: list[str] = []
        queue = world.controller._ledgers.queue
        add = queue.add

        def note(key: str, after: float = 0.0) -> None:
            enqueued.append(key)
            add(key, after)

        queue.add = note  # type: ignore[method-assign]
        for news in ({"turns": turns}, {"turns": {**turns, "time": "2"}, "overuses": overuses}, {"turns": None}):
            world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": news}})
            await asyncio.sleep(5)
        idle = list(enqueued)
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": {"devices": [{**device, "unhealthy": "Xid"}]}}})
        await asyncio.sleep(5)
    assert (idle, enqueued[:1]) == ([], ["n1"])


@in_virtual_time
async def test_a_new_leader_goes_on_where_the_old_one_was_killed() -> None:
    """At any moment: here at many, one after the other."""
    world = World()
    for name in ("n1", "n2"):
        world.node(name)
    for number in range(4):
        world.group(f"g{number}")
        for pod in range(3):
            world.pod(f"g{number}-p{pod}", f"g{number}")
    for moment in range(40):
        scheduler = asyncio.create_task(OneTryScheduler(world).run())
        async with world.leading():
            await asyncio.sleep(0.003 * moment)
        scheduler.cancel()
        world = world.successor()
    scheduler = asyncio.create_task(OneTryScheduler(world).run())
    async with world.leading():
        await everything_settled(world)
        check(world)
    scheduler.cancel()


@in_virtual_time
async def test_a_leader_that_looks_for_no_work_is_stuck() -> None:
    """Its queues look each second, whether there is work or not."""
    world = World()
    assert world.controller.stuck() == ""
    async with world.leading():
        await asyncio.sleep(100)
        assert world.controller.stuck() == ""
        world.clock_jumps(STUCK_SECONDS + 5)
        assert "groups" in world.controller.stuck()
