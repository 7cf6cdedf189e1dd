"""Names that came and went: what lives as long as the process, or a term, remembers a bounded number of them."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GPU_PERCENT
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, JOBS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.queue import SPARE_ENTRIES, Queue
from deviceshare.loops.replica.feed import Feed
from tests.unit.domain.objects import GPU
from tests.unit.loops.gated_world import a_host, exists, gated, gated_world
from tests.unit.loops.live import MemoryMirror, World, a_bound_group, led_world, soon
from tests.unit.loops.remembered import remembered
from tests.unit.loops.test_uninjected_pods import Owner
from tests.unit.loops.virtual_time import in_virtual_time, now

ROUNDS = 80
LONG = 3600.0


def of(world: World, names: Iterable[str], *others: object) -> Counter[str]:
    """What the leader, the fleet and others remember of these names and UIDs."""
    wanted = tuple(names)
    return remembered((world.controller, world.fleet, *others), lambda text: any(name in text for name in wanted))


@in_virtual_time
async def test_names_that_came_and_went_leave_nothing_behind() -> None:
    """Groups that wait for a month before they are released, and pods of all kinds; each name is used once."""
    async with led_world() as world:
        binder = world.binder()
        world.cluster.mirrors["pods"].subscribe(binder.change)
        hard = {"groupSelector": {}, "hard": {GPU: 4}}
        world.cluster.put(DEVICE_QUOTAS, {"metadata": {"name": "all"}, "spec": hard})
        await soon(lambda: world.open("n1"))
        uids = [uid for number in range(ROUNDS) for uid in await _live(world, binder, f"once-{number}")]
        await asyncio.sleep(60)
        await binder.close()
        left, queues = of(world, ["once-", *uids], binder), world.context.queues
    assert {path: number for path, number in left.items() if not path.endswith("._heap")} == {}
    assert {
        queue.name: len(queue._heap) for queue in queues if len(queue._heap) > 2 * len(queue._due) + SPARE_ENTRIES
    } == {}


async def _live(world: World, binder: Any, name: str) -> list[str]:
    group = world.group(name, releaseAfter="720h")
    pods = [world.pod(f"{name}-a", name), world.pod(f"{name}-b", name, refused=True)]
    waits = world.pod(f"{name}-w", "nobody", refused=True)
    await asyncio.sleep(0.1)
    for pod in pods:
        binder.remember(pod)
        await binder.bind("ns", pod.metadata.name, pod.metadata.uid, "n1")
    for pod in pods:
        world.end(pod.metadata.name)
    await soon(lambda: world.read_group(name).status.idle_since)
    share = world.share(f"{name}-s", 30, refused=True)
    binder.remember(share)
    await binder.bind("ns", share.metadata.name, share.metadata.uid, "n1")
    await asyncio.sleep(0.1)  # what happens at one moment the mirror may hear in any order
    for pod in (*pods, waits, share):
        world.cluster.remove(PODS, pod.metadata.name, "ns")
    world.cluster.remove(GROUPS, name)
    await soon(lambda: not world.holders("n1"), 60)
    return [group.uid, *(pod.metadata.uid for pod in (*pods, waits, share))]


@in_virtual_time
async def test_a_queue_forgets_when_keys_were_due_that_are_looked_at_earlier() -> None:
    """Each change of a group that waits to be released would else leave an entry for as long as that takes."""
    looked: list[int] = []

    async def look(key: int) -> None:
        looked.append(key)

    queue: Queue[int] = Queue("test", look, clock=now)
    running = asyncio.create_task(queue.run())
    for key in range(1000):
        queue.add(key, LONG + key)
        queue.add(key)
    queue.add(1000, LONG)
    await asyncio.sleep(1)
    assert sorted(looked) == list(range(1000))
    for key in (1, 2):
        queue.add(key)
    assert len(queue._heap) <= SPARE_ENTRIES + 2 * 3
    await asyncio.sleep(LONG)
    assert looked[-3:] == [1, 2, 1000]
    running.cancel()
    await asyncio.wait({running})


@in_virtual_time
async def test_a_placed_pod_is_forgotten_that_goes_before_the_answer_comes() -> None:
    """The answer to the patch that lifts its gate comes on another connection than the watch."""
    async with gated_world() as world:
        pods = world.cluster.mirrors["pods"]

        def goes() -> bool:
            if (found := world.cluster.read(PODS, "once-a", "ns")) and found.placed_on:
                pods.set("ns/once-a", found)
                world.cluster.remove(PODS, "once-a", "ns")
                pods.set("ns/once-a", None)
                pods.deaf = True  # it has told all
            return False

        world.cluster.lose = goes
        world.group("team")
        uid = gated(world, "once-a").metadata.uid
        await soon(lambda: not exists(world, "once-a"))
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.holders("n1") == world.holders("n2") == {}, 120)
        await asyncio.sleep(60)
        assert of(world, ["once-a", uid]) == {}


@in_virtual_time
async def test_a_node_is_forgotten_that_goes_before_the_answer_comes() -> None:
    """The answer to the patch of its share capacities."""
    async with gated_world() as world:
        nodes = world.cluster.mirrors["nodes"]

        def goes() -> bool:
            found = world.cluster.read(NODES, "once")
            if found and GPU_PERCENT in found.status.allocatable:
                world.cluster.remove(NODES, "once")
                nodes.set("once", None)
                nodes.deaf = True  # it has told all
            return False

        world.cluster.lose = goes
        a_host(world, "once")
        await asyncio.sleep(120)
        assert ("patch", "nodes", "once") in world.cluster.requests
        assert of(world, ["once"]) == {}


@in_virtual_time
async def test_an_uninjected_pod_is_forgotten_that_goes_while_its_job_is_read() -> None:
    """Only what is seen to wait is remembered for its Events."""
    world = World(uninjected=True)
    async with world.leading():

        def goes() -> bool:
            if world.cluster.requests[-1][:2] == ("get", "jobs"):
                world.cluster.remove(PODS, "once-1", "ns")
                for mirror in (world.cluster.mirrors["pods"], world.unlabelled):
                    mirror.set("ns/once-1", None)
            return False

        world.cluster.lose = goes
        world.cluster.put(JOBS, {"metadata": {"name": "once"}, "spec": {"backoffLimit": 0}}, "ns")
        uid = world.read_pod(Owner(world, "once", kind="Job").make()).metadata.uid
        await soon(lambda: not exists(world, "once-1"), 60)
        await asyncio.sleep(60)
        assert of(world, ["once-1", uid]) == {}


@in_virtual_time
async def test_a_claim_that_went_before_its_rebind_was_answered_is_forgotten() -> None:
    """As where the node rebooted, and its agent has yet to report."""
    async with led_world() as world:
        await a_bound_group(world)
        uid = world.read_group("team").uid
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": {"bootId": "old"}}})
        world.cluster.edit(NODES, "n1", {"status": {"nodeInfo": {"bootID": "new"}}})
        await asyncio.sleep(1)
        world.cluster.edit(GROUPS, "team", {"metadata": {"annotations": {contract.REBIND: "once"}}})
        await asyncio.sleep(1)
        assert uid in world.ledger("n1").claims
        world.cluster.remove(PODS, "a", "ns")
        await asyncio.sleep(1)
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: not world.holders("n1"), 60)
        await asyncio.sleep(60)
        assert of(world, [uid]) == {}


@in_virtual_time
async def test_what_a_quota_reserved_is_forgotten_with_the_quota() -> None:
    """For a group that is about to be bound it is remembered since when."""
    async with led_world() as world:
        group = world.group("team")
        world.pod("a", "team")
        reserved = {group.uid: {"name": "team", "devices": {GPU: 2}, "groupVersion": "1"}}
        spec = {"groupSelector": {}, "hard": {GPU: 4}}
        world.cluster.put(
            DEVICE_QUOTAS, {"metadata": {"name": "once"}, "spec": spec, "status": {"reservations": reserved}}
        )
        await asyncio.sleep(1)
        world.cluster.remove(DEVICE_QUOTAS, "once")
        await asyncio.sleep(60)
        assert of(world, ["once"]) == {}


@in_virtual_time
async def test_a_node_that_goes_takes_its_uncovered_pods_with_it() -> None:
    """Nobody checks it any more, and the number would stay for the whole term."""
    async with led_world() as world:
        await a_bound_group(world)
        uid, thief = world.read_group("team").uid, world.group("thief", 1)
        world.cluster.edit(GROUPS, "thief", {"status": {"nodeName": "n1"}})
        theirs = {"group": "thief", "devices": [{"resource": GPU, "index": 0}]}
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: None, thief.uid: theirs}}})
        await soon(lambda: world.uncovered == [1])
        pod = world.read_pod("a")
        world.cluster.remove(NODES, "n1")
        world.cluster.remove(NODE_DEVICES, "n1")
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: world.uncovered == [1, 0], 60)
        assert of(world, [pod.metadata.uid]) == {}


def test_nodes_that_had_pods_with_plugin_devices_are_forgotten() -> None:
    """An autoscaler gives each node a name of its own."""
    fleet, others = Fleet(), MemoryMirror()
    feed = Feed(fleet, nodes=MemoryMirror(), ledgers=MemoryMirror(), pods=MemoryMirror(), others=others)
    for number in range(ROUNDS):
        meta = {"namespace": "ns", "name": f"once-{number}", "uid": f"once-{number}", "resourceVersion": "1"}
        container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
        pod = {"metadata": meta, "spec": {"nodeName": f"once-{number}", "containers": [container]}}
        others.set(f"ns/once-{number}", msgspec.convert(pod, Pod))
        assert fleet.opaque(f"once-{number}") == {GPU}
        others.set(f"ns/once-{number}", None)
    assert remembered((feed, fleet), lambda text: "once-" in text) == {}
