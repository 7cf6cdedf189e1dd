"""Waiting pods have Events of what admission warned of, and of a rolling update that waits for itself."""

import asyncio

from deviceshare.domain import contract
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.pod_events import WAITS_FOR_ITSELF, WARNED, PodEvents
from deviceshare.loops.ports import ObjectChange
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time


def events(world: World, name: str, reason: str) -> list[str]:
    return [text for _, about, why, text in world.recorder.events if (about, why) == (name, reason)]


def of_replica_set(world: World, name: str, owner: str) -> None:
    reference = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": owner,
        "uid": f"uid-{owner}",
        "controller": True,
    }
    world.cluster.edit(PODS, name, {"metadata": {"ownerReferences": [reference]}}, "ns")


@in_virtual_time
async def test_a_new_version_that_waits_for_the_share_of_the_old_one_is_told_so() -> None:
    """Once, with the cure; not where another Deployment has it, nor where it fits."""
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        world.share("old", 60)
        of_replica_set(world, "old", "web-1")
        await world.bind("old", "n1")
        for name, owner in (("new", "web-2"), ("other", "batch-1")):
            world.share(name, 60)
            of_replica_set(world, name, owner)
            world.refuse(name)
        await soon(lambda: events(world, "new", WAITS_FOR_ITSELF), 5)
        await asyncio.sleep(30)
        [said] = events(world, "new", WAITS_FOR_ITSELF)
        assert "pod ns/old of the same Deployment has what it waits for" in said
        assert "maxSurge: 0" in said
        assert not events(world, "other", WAITS_FOR_ITSELF)


@in_virtual_time
async def test_an_update_that_ends_the_old_pod_first_is_left_alone() -> None:
    """What the pod waits for comes free within the time in which one looks again."""
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        world.share("old", 60)
        of_replica_set(world, "old", "web-1")
        await world.bind("old", "n1")
        world.share("new", 60)
        of_replica_set(world, "new", "web-2")
        world.refuse("new")
        world.cluster.remove(PODS, "old", "ns")
        await asyncio.sleep(30)
        assert not events(world, "new", WAITS_FOR_ITSELF)


@in_virtual_time
async def test_what_admission_warned_of_is_an_event_of_the_pod() -> None:
    """Once, in one line."""
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        world.cluster.put(
            PODS,
            {
                "metadata": {
                    "name": "warned",
                    "labels": {contract.GROUP: "team"},
                    "annotations": {contract.GROUP: "team", contract.WARNINGS: "one\ntwo"},
                },
                "spec": {"containers": [{"name": "main"}]},
            },
            "ns",
        )
        await soon(lambda: events(world, "warned", WARNED) == ["one; two"])
        world.refuse("warned")
        await asyncio.sleep(30)
        assert events(world, "warned", WARNED) == ["one; two"]


@in_virtual_time
async def test_a_new_leader_knows_the_pods_that_were_bound_before() -> None:
    """Its mirror shows them bound from the first."""
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        world.share("old", 60)
        of_replica_set(world, "old", "web-1")
        await world.bind("old", "n1")
        world.share("new", 60)
        of_replica_set(world, "new", "web-2")
        world.refuse("new")
        await soon(lambda: events(world, "new", WAITS_FOR_ITSELF), 5)
        world.recorder.events.clear()
        later = PodEvents(world.context)
        for name in ("old", "new"):
            later.change(ObjectChange(f"ns/{name}", None, world.read_pod(name)))
        working = asyncio.create_task(later.queue.run())
        await soon(lambda: events(world, "new", WAITS_FOR_ITSELF), 5)
        working.cancel()


@in_virtual_time
async def test_a_pod_that_waits_for_something_else_is_not_told_so() -> None:
    """A device has room for it: kube-scheduler refused it for CPU."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        world.share("old", 60)
        of_replica_set(world, "old", "web-1")
        await world.bind("old", "n1")
        world.share("new", 60)
        of_replica_set(world, "new", "web-2")
        world.refuse("new")
        await asyncio.sleep(30)
        assert not events(world, "new", WAITS_FOR_ITSELF)
