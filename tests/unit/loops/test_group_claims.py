"""Groups that hand their devices over by a ResourceClaim: kube-scheduler alone binds their pods."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.placement.holds import is_kept
from deviceshare.loops.kinds import GROUPS, HOLDS, PODS
from deviceshare.loops.ports import Kind
from tests.unit.domain.dra_objects import card
from tests.unit.loops.dra_world import (
    NODE,
    Schedulers,
    a_publishing_node,
    allocated,
    doubly_used,
    group_by_claim,
    pod_by_claim,
    stranger,
)
from tests.unit.loops.live import World, running, soon
from tests.unit.loops.virtual_time import in_virtual_time


@asynccontextmanager
async def a_world() -> AsyncIterator[tuple[World, Schedulers]]:
    world = a_publishing_node(holds=True)
    schedulers = Schedulers(world.cluster)
    async with running(schedulers.run(), "schedulers"), world.leading():
        await soon(lambda: world.open(NODE))
        yield world, schedulers


def placed(world: World, *names: str) -> bool:
    return all(world.read_pod(name).spec.node_name for name in names)


def kept(world: World) -> bool:
    """Whether the group's claim stays allocated without pods."""
    return any(is_kept(each) for each in world.cluster.all(HOLDS) if each.metadata.namespace == "ns")


def claims_of_groups(world: World) -> list[str]:
    return [each.metadata.name for each in world.cluster.all(HOLDS) if each.metadata.namespace == "ns"]


@in_virtual_time
async def test_a_pod_gets_the_groups_devices_and_others_join_without_us() -> None:
    """The first has a claim made, of the ledger's choice; the others kube-scheduler binds while nothing of us runs."""
    world = a_publishing_node(holds=True)
    async with running(Schedulers(world.cluster).run(), "schedulers"):
        async with world.leading():
            await soon(lambda: world.open(NODE))
            group_by_claim(world, "team", 2)
            pod_by_claim(world, "a", "team")
            await soon(lambda: placed(world, "a"))
            group = world.read_group("team")
            await soon(lambda: world.read_group("team").status.pod_count == 1)
        assert allocated(world.cluster) == {"gpu-0": [group.claim], "gpu-1": [group.claim]}
        assert world.holders(NODE) == {"team": "0,1"} and group.node == NODE
        assert f"by ResourceClaim {group.claim}" in world.message("team")
        for number in range(20):
            pod_by_claim(world, f"b{number}", "team")
        await soon(lambda: placed(world, *(f"b{number}" for number in range(20))))
    assert doubly_used(world.cluster) == []


@in_virtual_time
async def test_the_devices_stay_with_the_group_after_its_last_pod() -> None:
    """As other groups' do: strangers get them when it is deleted."""
    async with a_world() as (world, schedulers):
        group_by_claim(world, "team", 4)
        pod_by_claim(world, "a", "team")
        await soon(lambda: placed(world, "a") and kept(world))
        stranger(world.cluster, "s")
        world.end("a")
        await asyncio.sleep(60)
        assert len(allocated(world.cluster)) == 4 and ["strangers/s"] not in allocated(world.cluster).values()
        pod_by_claim(world, "b", "team")
        await soon(lambda: placed(world, "b") and kept(world))
        schedulers.behind = True
        world.end("b")
        world.cluster.remove(GROUPS, "team")
        await asyncio.sleep(2)
        schedulers.behind = False
        await soon(lambda: list(allocated(world.cluster).values()) == [["strangers/s"]], 2)
        await soon(lambda: world.holders(NODE) == {} and claims_of_groups(world) == [], 2)


@in_virtual_time
async def test_a_group_whose_devices_a_stranger_has_gets_others() -> None:
    """DRA gave them away at the moment at which the ledger was written."""
    async with a_world() as (world, schedulers):
        schedulers.full = True
        group_by_claim(world, "team", 2)
        pod_by_claim(world, "a", "team")
        await soon(lambda: claims_of_groups(world) != [])
        result = {"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
        status = {"allocation": {"devices": {"results": [result]}}}
        world.cluster.put(HOLDS, {"metadata": {"name": "s"}, "status": status}, "strangers")
        schedulers.full = False
        await soon(lambda: placed(world, "a"), 200)
        await soon(lambda: world.holders(NODE) == {"team": "1,2"}, 10)
        assert doubly_used(world.cluster) == []


@in_virtual_time
async def test_a_node_without_a_driver_is_no_place_for_a_group_by_claim() -> None:
    """Nobody would bring its devices into containers: the group waits, and says so."""
    async with a_world() as (world, schedulers):
        world.node("n2", 8)
        await soon(lambda: world.open("n2"))
        schedulers.full = True
        group_by_claim(world, "large", 6)
        pod_by_claim(world, "b", "large")
        await asyncio.sleep(10)
        assert world.read_group("large").node == ""
        assert "no DRA driver publishes for spec.handover: claim" in world.message("large")


@in_virtual_time
async def test_a_group_leaves_a_node_where_none_of_its_pods_fits() -> None:
    """Its devices come free for others, and it tries again."""
    async with a_world() as (world, schedulers):
        schedulers.full = True
        group_by_claim(world, "team", 4)
        pod_by_claim(world, "a", "team")
        await soon(lambda: world.read_group("team").node == NODE)
        await soon(lambda: world.read_group("team").node == "" and world.holders(NODE) == {}, 60)
        await soon(lambda: claims_of_groups(world) == [])
        assert "LeftNode" in world.recorder.reasons("team")
        await soon(lambda: world.read_group("team").node == NODE, 120)
        await asyncio.sleep(15)  # It is not yet time to leave again.
        assert world.read_group("team").node == NODE
        schedulers.full = False
        await soon(lambda: placed(world, "a"), 120)


@in_virtual_time
async def test_a_group_that_was_idle_comes_back_at_once() -> None:
    """The node that it left for lack of pods is as good as any."""
    async with a_world() as (world, _):
        group_by_claim(world, "team", 4, releaseAfter="10s")
        pod_by_claim(world, "a", "team")
        await soon(lambda: placed(world, "a") and kept(world))
        world.end("a")
        await soon(lambda: world.read_group("team").status.idle_since)
        world.cluster.edit(GROUPS, "team", {"status": {"idleSince": "2026-01-01T00:00:00Z"}})
        await soon(lambda: world.read_group("team").node == "" and claims_of_groups(world) == [], 60)
        pod_by_claim(world, "b", "team")
        await soon(lambda: placed(world, "b"), 5)


@in_virtual_time
async def test_a_pod_that_joins_while_its_group_is_released_keeps_it() -> None:
    """kube-scheduler enters it at each of the requests of a release, and binds it after that."""
    for at in range(1, 10):
        async with a_world() as (world, schedulers):
            await joined_at(at, world, schedulers)


async def joined_at(at: int, world: World, schedulers: Schedulers) -> None:
    """The release makes so many requests, and then kube-scheduler allocates for a pod."""
    group_by_claim(world, "team", 2, releaseAfter="10s")
    pod_by_claim(world, "a", "team")
    await soon(lambda: placed(world, "a") and kept(world))
    world.end("a")
    await soon(lambda: world.read_group("team").status.idle_since)
    seen, entered = list[str](), list[bool]()
    cluster, patch, get = world.cluster, world.cluster.patch, world.cluster.get

    def joins(name: str) -> None:
        seen.append(name)
        if len(seen) == at:
            pod_by_claim(world, "b", "team")
            schedulers.step()
            entered.append("b" in [each.name for claim in cluster.all(HOLDS) for each in claim.status.reserved_for])

    async def patching(kind: Kind[Any], name: str, body: Mapping[str, Any], **more: Any) -> Any:
        joins(f"patch {name}")
        return await patch(kind, name, body, **more)

    async def getting(kind: Kind[Any], name: str, namespace: str = "") -> Any:
        joins(f"get {name}")
        return await get(kind, name, namespace)

    cluster.patch, cluster.get = patching, getting  # type: ignore[method-assign]
    world.cluster.edit(GROUPS, "team", {"status": {"idleSince": "2026-01-01T00:00:00Z"}})
    await soon(lambda: len(seen) >= at, 120)
    await soon(lambda: placed(world, "b") and "team" in world.holders(NODE), 120)
    await asyncio.sleep(30)
    assert doubly_used(world.cluster) == [] and world.read_group("team").node == NODE, (at, seen)
    assert len(allocated(world.cluster)) == 2, (at, seen)
    # Where it was entered, the group never left.
    assert entered == ["Released" not in world.recorder.reasons("team")], (at, seen)


@in_virtual_time
async def test_the_claims_of_others_hold_nothing_for_groups() -> None:
    """Whoever may write ResourceClaims puts one in the place of ours: it goes, and ours is created."""
    async with a_world() as (world, schedulers):
        schedulers.full = True
        group_by_claim(world, "team", 1)
        pod_by_claim(world, "a", "team")
        await soon(lambda: claims_of_groups(world) != [])
        [name] = claims_of_groups(world)
        world.cluster.remove(HOLDS, name, "ns")
        for namespace, named in (("strangers", "deviceshare-0"), ("ns", name)):
            marks = {"labels": {contract.HOLD: "x"}, "annotations": {contract.HOLD: f"{NODE} {card(3)}"}}
            spec = {"any": f'"{card(3)}"'}
            world.cluster.put(HOLDS, {"metadata": {"name": named, **marks}, "spec": spec, "status": {}}, namespace)
        await asyncio.sleep(10)
        schedulers.full = False
        await soon(lambda: placed(world, "a"), 5)
        assert world.holders(NODE) == {"team": "0"} and doubly_used(world.cluster) == []
        assert allocated(world.cluster) == {"gpu-0": [f"ns/{name}"]}


@in_virtual_time
async def test_a_stranger_with_the_marks_of_a_groups_claim_is_a_stranger() -> None:
    """In a namespace of its own it holds up no bind, no hold and no release, and what it has nobody else gets."""
    async with a_world() as (world, _):
        world.group("team", 1)
        uid = world.read_group("team").uid
        every = " ".join([NODE, *map(card, range(4))])
        marks = {"labels": {contract.HOLD: "x"}, "annotations": {contract.HOLD: every}}
        pod = world.cluster.put(PODS, {"metadata": {"name": "thief"}, "spec": {"nodeName": NODE}}, "strangers")
        thief = {"resource": "pods", "name": "thief", "uid": pod["metadata"]["uid"]}
        result = {"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": "gpu-0"}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [thief]}
        meta = {"name": f"deviceshare-{uid}", **marks}
        world.cluster.put(HOLDS, {"metadata": meta, "spec": {"any": 1}, "status": status}, "strangers")
        await asyncio.sleep(1)
        world.pod("a", "team")
        await world.bind("a", NODE)
        assert world.holders(NODE) == {"team": "1"} and doubly_used(world.cluster) == []
        world.end("a")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.holders(NODE) == {} and allocated(world.cluster).keys() == {"gpu-0"}, 60)


@in_virtual_time
async def test_what_a_group_by_claim_costs() -> None:
    """Requests for its first pod, and for one that joins: docs/dra.md says so."""
    async with a_world() as (world, _):
        requests = world.cluster.requests
        for name, most in (("a", 6), ("b", 1)):
            if name == "a":
                group_by_claim(world, "team", 4)
            requests.clear()
            pod_by_claim(world, name, "team")
            await asyncio.sleep(20)
            assert placed(world, name) and len(requests) == most, requests
