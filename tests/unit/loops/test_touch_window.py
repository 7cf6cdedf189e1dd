"""A thousand waiting pods of one namespace don't hold up others: of each a few are touched at a time, in turns."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Request
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.waker import PLACES, TRIED_SECONDS
from deviceshare.loops.ports import ApiError, Invalid, ObjectChange
from tests.unit.domain.objects import INJECTED
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.test_waker import woken
from tests.unit.loops.virtual_time import in_virtual_time

CROWD = 200
REFUSED = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


def refused(world: World, name: str, group: str, namespace: str) -> None:
    """A pod that the scheduler has tried in vain."""
    named = {contract.GROUP: group}
    spec = {"containers": [{"name": "main", "env": INJECTED}]}
    meta = {"name": name, "labels": named, "annotations": named}
    world.cluster.put(PODS, {"metadata": meta, "spec": spec, "status": REFUSED}, namespace)


def crowd(world: World, group: str, namespace: str, number: int = CROWD) -> None:
    for each in range(number):
        refused(world, f"{group}-{each:03}", group, namespace)


async def bound(world: World, *groups: str) -> None:
    """Groups that are bound, so that every pod of theirs fits."""
    await soon(lambda: world.open("n1"))
    for name in groups:
        world.group(name, 1)
        world.pod(f"first-of-{name}", name)
        await world.bind(f"first-of-{name}", "n1")
    await asyncio.sleep(1)


@asynccontextmanager
async def world_of(*groups: str) -> AsyncIterator[World]:
    """A world in which these groups are bound."""
    async with led_world(16) as world:
        await bound(world, *groups)
        yield world


@in_virtual_time
async def test_of_a_namespace_only_a_few_are_touched_at_a_time() -> None:
    """A second refusal in the same words is written nowhere: the next follow once these must have been tried."""
    async with world_of("a") as world:
        crowd(world, "a", "crowd")
        await asyncio.sleep(TRIED_SECONDS * 0.9)
        assert len(woken(world)) == PLACES
        await asyncio.sleep(TRIED_SECONDS)
        assert PLACES < len(woken(world)) <= 2 * PLACES
        await soon(lambda: len(set(woken(world))) == CROWD, CROWD)


@in_virtual_time
async def test_who_is_bound_makes_room_at_once() -> None:
    """So a group's pods come as fast as they can be bound."""
    async with world_of("a") as world:
        bind = world.cluster.mirrors["pods"]

        def bound_when_touched(change: ObjectChange[Pod]) -> None:
            new = change.new
            if new and new.pending and contract.WOKEN_AT in new.metadata.annotations:
                world.cluster.edit(PODS, new.metadata.name, {"spec": {"nodeName": "n1"}}, new.metadata.namespace)

        bind.subscribe(bound_when_touched)
        crowd(world, "a", "crowd")
        await soon(lambda: len(woken(world)) == CROWD, TRIED_SECONDS * 2)


@in_virtual_time
async def test_a_crowd_does_not_hold_up_another_namespaces_pod() -> None:
    """It is touched at once, whatever others have under way and whatever group it is of."""
    async with world_of("a", "b") as world:
        crowd(world, "a", "crowd")
        await asyncio.sleep(0.3)
        before = len(woken(world))
        refused(world, "late", "b", "other")
        refused(world, "later", "a", "other")
        await soon(lambda: {"late", "later"} <= set(woken(world)), 0.5)
        assert before >= PLACES
        assert len(woken(world)) == before + 2


@in_virtual_time
async def test_the_groups_of_a_namespace_take_turns() -> None:
    """A group that comes late gets the next place but as many as there are groups."""
    async with world_of("a", "b", "c", "d") as world:
        for group in ("a", "b", "c"):
            crowd(world, group, "crowd")
        await asyncio.sleep(TRIED_SECONDS * 3)
        before = len(woken(world))
        refused(world, "late", "d", "crowd")
        await soon(lambda: "late" in woken(world), TRIED_SECONDS * 2)
        assert woken(world).index("late") <= before + PLACES + 4
        shares = [sum(name.startswith(group) for name in woken(world)) for group in ("a-", "b-", "c-")]
        assert max(shares) - min(shares) <= PLACES


@in_virtual_time
async def test_a_group_without_pods_left_in_a_namespace_keeps_nobody_waiting_there() -> None:
    """Its last pod there is gone before its turn came, while those in another namespace still take theirs."""
    async with world_of("a", "b", "c") as world:
        crowd(world, "a", "small")
        await asyncio.sleep(0.3)
        refused(world, "early", "b", "small")
        crowd(world, "b", "crowd")
        await asyncio.sleep(0.3)
        world.cluster.remove(PODS, "early", "small")
        await asyncio.sleep(0.3)
        for each in range(CROWD):
            world.cluster.remove(PODS, f"a-{each:03}", "small")
        refused(world, "late", "c", "small")
        await soon(lambda: "late" in woken(world), 0.5)
        assert "early" not in woken(world)


@in_virtual_time
async def test_a_group_that_can_not_be_touched_keeps_nobody_waiting() -> None:
    """Another webhook refuses all changes of its pods, for ever."""
    async with world_of("a", "b") as world:

        def fail(verb: str, plural: str, name: str) -> ApiError | None:
            return Invalid("policy") if verb == "patch" and plural == "pods" and name.startswith("a-") else None

        world.cluster.fail = fail
        crowd(world, "a", "crowd")
        await asyncio.sleep(1)
        crowd(world, "b", "crowd", PLACES * 2)
        await soon(
            lambda: len({name for name in woken(world) if name.startswith("b-")}) == PLACES * 2, TRIED_SECONDS * 3
        )


@in_virtual_time
async def test_a_thousand_refusals_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes over all pods of the group, on the loop that also answers the scheduler."""
    async with world_of("a") as world:
        world.group("large", 16)
        looks: list[str] = []
        fitting = world.fleet.fitting

        def noting(request: Request) -> Iterable[str]:
            looks.append(request.holder.name)
            return fitting(request)

        monkeypatch.setattr(world.fleet, "fitting", noting)
        for each in range(1000):
            refused(world, f"large-{each}", "large", "crowd")
            await asyncio.sleep(0.001)
        assert looks.count("large") <= 60
