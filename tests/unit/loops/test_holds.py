"""Devices of groups and shares on a node whose driver is DRA's: kube-scheduler gives them to nobody else."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.nodes import OUT_OF_SERVICE
from deviceshare.loops.kinds import GROUPS, HOLDS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import ApiError, Kind, Unavailable
from deviceshare.loops.protocol.bind import Refused
from tests.unit.domain.dra_objects import card
from tests.unit.domain.objects import GPU
from tests.unit.loops.dra_world import (
    NODE,
    SLICES,
    Schedulers,
    a_publishing_cluster,
    a_publishing_node,
    allocated,
    doubly_used,
    end_stranger,
    group_by_claim,
    pod_by_claim,
    stranger,
    used_devices,
)
from tests.unit.loops.live import LiveCluster, World, running, soon
from tests.unit.loops.virtual_time import in_virtual_time, run


@asynccontextmanager
async def schedulers(world: World, dice: random.Random | None = None, count: int = 4) -> AsyncIterator[None]:
    async with running(Schedulers(world.cluster, dice, count).run(), "schedulers"):
        yield


@asynccontextmanager
async def holding_world() -> AsyncIterator[World]:
    world = a_publishing_node(holds=True)
    async with world.leading(), schedulers(world):
        await soon(lambda: world.open(NODE))
        yield world


async def bind_team(world: World, count: int) -> None:
    """The group team with so many devices, and its pod a."""
    world.group("team", count)
    world.pod("a", "team")
    await world.bind("a", NODE)


def pods_of_holds(world: World) -> list[str]:
    return [each.metadata.name for each in world.cluster.all(PODS) if each.metadata.namespace == contract.NAMESPACE]


@in_virtual_time
async def test_a_pod_is_bound_once_its_devices_are_held() -> None:
    """By kube-scheduler, in the same bind; what held them goes, and strangers get the rest."""
    async with holding_world() as world:
        await bind_team(world, 2)
        mine = allocated(world.cluster)
        assert len(mine) == 2 and mine.keys() == used_devices(world.cluster).keys()
        await soon(lambda: pods_of_holds(world) == [])
        for name in ("s1", "s2", "s3"):
            stranger(world.cluster, name)
        await asyncio.sleep(1)
        assert sum("strangers/" in by for each in allocated(world.cluster).values() for by in each) == 2
        assert doubly_used(world.cluster) == []
        assert world.condition("team", "Healthy") == ("True", "AsClaimed")


@in_virtual_time
async def test_what_a_group_leaves_strangers_get() -> None:
    """The hold is cleared once the claim is gone, and nothing of it stays."""
    async with holding_world() as world:
        await bind_team(world, 4)
        stranger(world.cluster, "s1")
        await asyncio.sleep(1)
        assert len(allocated(world.cluster)) == 4
        world.end("a")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: list(allocated(world.cluster).values()) == [["strangers/s1"]], 60)
        await soon(lambda: [each.metadata.name for each in world.cluster.all(HOLDS)] == ["s1"])
        assert pods_of_holds(world) == []


@in_virtual_time
async def test_a_share_holds_its_device_and_the_next_one_needs_nothing_new() -> None:
    """One hold for each device, whoever has parts of it, until the last of them ends."""
    async with holding_world() as world:
        for name in ("p", "q"):
            world.share(name, 40)
            await world.bind(name, NODE)
        assert len(allocated(world.cluster)) == 1
        world.end("p")
        await soon(lambda: list(world.holders(NODE)) == ["ns/q"], 60)
        await asyncio.sleep(10)
        assert len(allocated(world.cluster)) == 1 and doubly_used(world.cluster) == []
        world.end("q")
        await soon(lambda: world.cluster.all(HOLDS) == [], 60)


@in_virtual_time
async def test_a_group_whose_devices_strangers_got_first_leaves_the_node() -> None:
    """kube-scheduler allocated them at the same moment: the pod isn't bound, and the group chooses others."""
    world = a_publishing_node(holds=True)
    async with world.leading():
        await soon(lambda: world.open(NODE))
        world.group("team", 2)
        world.pod("a", "team")
        with pytest.raises(Refused, match="has not allocated"):
            await world.bind("a", NODE)
        assert world.read_group("team").node == NODE
        first = set(world.holders(NODE)["team"].split(","))
        taken = min(first)
        status = {"allocation": {"devices": {"results": [result(f"gpu-{taken}")]}}}
        world.cluster.put(HOLDS, {"metadata": {"name": "s"}, "status": status}, "strangers")
        await soon(lambda: world.read_group("team").node == "", 10)
        assert "kube-scheduler gave nvidia.com/gpu" in world.message("team") and "strangers/s" in world.message("team")
        assert "DevicesGivenAway" not in world.recorder.reasons(NODE)
        async with schedulers(world):
            await soon(lambda: "team" not in world.holders(NODE), 30)
            await world.bind("a", NODE)
            assert taken not in world.holders(NODE)["team"].split(",")
            assert doubly_used(world.cluster) == []


@in_virtual_time
async def test_a_group_whose_devices_came_back_while_its_node_was_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mirror said that the node was lost; by the ledger as it is then nobody else has them."""
    world = a_publishing_node(holds=True)
    async with world.leading():
        await soon(lambda: world.open(NODE))
        world.group("team", 2, nodeLossPolicy="Move")
        world.pod("a", "team")
        with pytest.raises(Refused, match="has not allocated"):
            await world.bind("a", NODE)
        [taken, _] = world.holders(NODE)["team"].split(",")
        nodes = world.cluster.mirrors[NODES.plural]
        nodes.deaf = True
        world.cluster.edit(NODES, NODE, {"spec": {"taints": [{"key": OUT_OF_SERVICE}]}})
        nodes.set(NODE, world.cluster.read(NODES, NODE))
        world.cluster.edit(NODES, NODE, {"spec": {"taints": None}})
        await asyncio.sleep(5)
        read, back, holders = world.cluster.get, list[str](), set[str]()
        world.context.ledgers.subscribe(lambda _: holders.add(world.holders(NODE)["team"]))

        async def reading(kind: Kind[Any], name: str, namespace: str = "") -> Any:
            seen = world.context.ledgers.get(NODE)
            found = await read(kind, name, namespace)
            if kind is NODES and seen and seen.status.published.claims:
                world.cluster.remove(HOLDS, "s", "strangers")
                world.cluster.mirrors[HOLDS.plural].set("strangers/s", None)
                world.cluster.edit(NODE_DEVICES, NODE, {"status": {"published": {"claims": None}}})
                world.context.ledgers.put(world.ledger(NODE))
                back.append(name)
            return found

        monkeypatch.setattr(world.cluster, "get", reading)
        status = {"allocation": {"devices": {"results": [result(f"gpu-{taken}")]}}}
        world.cluster.put(HOLDS, {"metadata": {"name": "s"}, "status": status}, "strangers")
        await soon(lambda: (seen := world.context.ledgers.get(NODE)) and seen.status.published.claims)
        world.cluster.edit(GROUPS, "team", {"metadata": {"labels": {"looked": "at"}}})
        await soon(lambda: back)
        await asyncio.sleep(30)
        assert holders == {world.holders(NODE)["team"]}, "nor is its claim marked"


def result(device: str) -> dict[str, str]:
    return {"request": "r", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}


@in_virtual_time
async def test_a_waiting_pod_says_that_kube_scheduler_has_not_allocated_its_devices() -> None:
    """In filter, in the group's status and where people look; it is woken when they are held."""
    world = a_publishing_node(holds=True)
    async with world.leading():
        await soon(lambda: world.open(NODE))
        world.group("team", 1)
        world.pod("a", "team")
        with pytest.raises(Refused):
            await world.bind("a", NODE)
        world.refuse("a")
        request = world.read_group("team").request
        await soon(lambda: world.fleet.filter(request, [NODE]).fits == [])
        (reason,) = world.fleet.filter(request, [NODE]).refused
        assert "has not allocated nvidia.com/gpu" in str(reason) and contract.HOLD in str(reason)
        touched = len(world.cluster.writes("pods"))
        async with schedulers(world):
            await soon(lambda: len(world.cluster.writes("pods")) > touched, 10)
            await world.bind("a", NODE)
            assert doubly_used(world.cluster) == []


@in_virtual_time
async def test_without_a_dra_driver_nothing_is_asked() -> None:
    """No claim, no list, though holds are on."""
    cluster = a_publishing_cluster()
    world = World(cluster, holds=True)
    world.node(NODE)
    async with world.leading():
        await soon(lambda: world.open(NODE))
        await bind_team(world, 2)
        await asyncio.sleep(5)
    assert not [each for each in cluster.requests if each[1] == HOLDS.plural]


@in_virtual_time
async def test_groups_from_before_holds_get_them() -> None:
    """Their pods run on; the next one joins once their devices are held."""
    world = a_publishing_node()
    async with world.leading():
        await soon(lambda: world.open(NODE))
        await bind_team(world, 2)
        assert allocated(world.cluster) == {}
    heir = world.successor(a_publishing_cluster())
    object.__setattr__(heir.context, "holds", True)
    heir = rebuilt(heir)
    async with heir.leading(), schedulers(heir):
        await soon(lambda: len(allocated(heir.cluster)) == 2, 10)
        heir.pod("b", "team")
        await heir.bind("b", NODE)
        assert doubly_used(heir.cluster) == []


def rebuilt(world: World) -> World:
    """With a controller that reads its context again."""
    world.controller = type(world.controller)(world.context)
    return world


@in_virtual_time
async def test_a_hold_that_somebody_deletes_stays() -> None:
    """`edit` may delete claims; the finalizer keeps an allocated one."""
    async with holding_world() as world:
        await bind_team(world, 1)
        (claim,) = world.cluster.all(HOLDS)
        await world.cluster.delete(HOLDS, claim.metadata.name, contract.NAMESPACE)
        stranger(world.cluster, "s")
        await asyncio.sleep(10)
        assert doubly_used(world.cluster) == []
        world.pod("b", "team")
        await world.bind("b", NODE)
        assert used_devices(world.cluster)[f"gpu-{world.holders(NODE)['team']}"] == ["a", "b"]
        world.end("a")
        world.end("b")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: [each.metadata.name for each in world.cluster.all(HOLDS)] == ["s"], 60)


@in_virtual_time
async def test_a_name_that_is_another_device_by_now_holds_that_one() -> None:
    """The driver counts anew after a card was replaced: the old hold is of nobody's device."""
    async with holding_world() as world:
        await bind_team(world, 1)
        await soon(lambda: world.ledger(NODE).status.published.held == [card(0)])
        devices = world.cluster.objects["resourceslices"]["n1-gpu.nvidia.com"]["spec"]["devices"]
        swapped = [dict(each) for each in devices]
        swapped[0]["name"], swapped[1]["name"] = "gpu-1", "gpu-0"
        world.cluster.edit(SLICES, "n1-gpu.nvidia.com", {"spec": {"devices": swapped}})
        await soon(lambda: world.ledger(NODE).status.published.held == [])


@in_virtual_time
async def test_a_leader_with_an_old_mirror_clears_no_hold() -> None:
    """Its mirror shows no claim of the device: it reads the ledger itself, after the mark, and takes that away."""
    async with holding_world() as world:
        await bind_team(world, 1)
        await soon(lambda: pods_of_holds(world) == [])
    mirror = world.cluster.mirrors[NODE_DEVICES.plural]
    await asyncio.sleep(1)
    seen = mirror.get(NODE)
    mirror.objects[NODE] = replace(seen, spec=replace(seen.spec, claims={}))
    mirror.deaf = True
    heir = follower(world)
    async with heir.leading():
        await soon(lambda: len(world.cluster.writes(HOLDS.plural)) > 2)
        await asyncio.sleep(5)
    [claim] = world.cluster.all(HOLDS)
    assert claim.status.allocation
    assert contract.GIVEN_UP not in claim.metadata.annotations


@in_virtual_time
async def test_a_rebound_group_gets_its_device_when_that_is_held() -> None:
    """Its pods keep the names of what they have until then, and both are held."""
    world = a_publishing_node(2, holds=True)
    async with world.leading():
        await soon(lambda: world.open(NODE))
        report(world)
        async with schedulers(world, None, 2):
            await bind_team(world, 1)
        report(world, 0)
        world.cluster.edit(GROUPS, "team", {"metadata": {"annotations": {contract.REBIND: "r"}}})
        await soon(lambda: world.holders(NODE) == {"team": "1"}, 10)
        await asyncio.sleep(5)
        assert list(used_devices(world.cluster)) == ["gpu-0"]
        async with schedulers(world, None, 2):
            await soon(lambda: "gpu-1" in used_devices(world.cluster), 10)
            assert doubly_used(world.cluster) == []


def report(world: World, *broken: int) -> None:
    """What an agent says of the node."""
    parts = [Part(GPU, n, card(n), unhealthy="Xid 79" if n in broken else "") for n in range(2)]
    found = msgspec.to_builtins(Hardware(devices=parts))
    world.cluster.edit(NODE_DEVICES, NODE, {"status": {"hardware": found}})


@in_virtual_time
async def test_holds_outlive_a_ledger_that_was_lost() -> None:
    """Somebody removed its finalizer by force: strangers get nothing before the next one is filled, nor then."""
    async with holding_world() as world:
        await bind_team(world, 4)
        stranger(world.cluster, "s")
        world.cluster.fail = lambda verb, what, _: (
            Unavailable("slow") if (verb, what) == ("create", NODE_DEVICES.plural) else None
        )
        world.cluster.remove(NODE_DEVICES, NODE)
        await asyncio.sleep(10)
        world.cluster.fail = lambda *_: None
        await soon(
            lambda: world.cluster.read(NODE_DEVICES, NODE) and world.open(NODE) and "team" in world.holders(NODE), 60
        )
        await asyncio.sleep(10)
        assert doubly_used(world.cluster) == []
        assert all(by[0].startswith(contract.NAMESPACE) for by in allocated(world.cluster).values())
        assert not [each for each in world.cluster.all(HOLDS) if contract.GIVEN_UP in each.metadata.annotations]


@in_virtual_time
async def test_a_hold_that_cannot_be_read_is_left_alone() -> None:
    """It may hold its device."""
    async with holding_world() as world:
        await bind_team(world, 1)
        [claim] = world.cluster.all(HOLDS)
        broken = {"status": {"reservedFor": "nonsense"}}
        world.cluster.edit(HOLDS, claim.metadata.name, broken, contract.NAMESPACE)
        world.end("a")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.holders(NODE) == {}, 60)
        await asyncio.sleep(10)
        assert world.cluster.objects[HOLDS.plural][claim.metadata.key]["status"]["allocation"]


async def interleaved(seed: int) -> int:
    """Leaders that stop anywhere, binds, strangers and ends, in any order: no device has two owners at any time.

    Returns how many pods were bound.
    """
    dice = random.Random(seed)
    world = a_publishing_node(2, holds=True)
    cluster = world.cluster
    slow = dice.choice([0.002, 0.05, 0.5])
    wrong: list[str] = []
    edit = cluster.edit

    def watched(kind: Kind[Any], name: str, patch: Mapping[str, Any], namespace: str = "") -> None:
        edit(kind, name, patch, namespace)
        if kind in (PODS, HOLDS):
            wrong.extend(doubly_used(cluster))

    cluster.edit = watched  # type: ignore[method-assign]
    made = 0
    async with schedulers(world, dice, 2):
        async with world.leading():
            await soon(lambda: world.open(NODE))
        cluster.lag = dice.choice([0.005, 0.1, 0.4])
        cluster.latency = lambda: dice.random() ** 4 * slow
        cluster.fail = lambda *_: Unavailable("lost") if dice.random() < 0.02 else None
        cluster.lose = lambda: dice.random() < 0.02
        world = follower(world)
        for _ in range(dice.randint(1, 3)):
            async with world.leading():
                users = [asyncio.create_task(uses(world, dice, f"u{made}{each}"), name="user") for each in range(3)]
                users.append(asyncio.create_task(strangers(cluster, dice, made), name="strangers"))
                made += 1
                await asyncio.sleep(dice.uniform(1, 15))
            world = follower(world)
            await asyncio.wait(users)
        cluster.fail, cluster.lose = lambda *_: None, lambda: False
        async with world.leading():
            await soon(lambda: all("strangers" in each.metadata.namespace for each in cluster.all(HOLDS)), 200)
            await soon(lambda: pods_of_holds(world) == [])
    assert wrong == []
    return sum(each[0] == "bind" for each in cluster.requests)


async def uses(world: World, dice: random.Random, user: str) -> None:
    """Somebody's pods, one after the other, each for a moment."""
    for number in range(3):
        name = f"{user}-{number}"
        way = dice.random()
        if way < 0.3:
            group_by_claim(world, name, dice.randint(1, 2))
            pod_by_claim(world, name, name)
            await asyncio.sleep(dice.choice([0.1, 1, 5]))
        elif way < 0.7:
            world.share(name, dice.choice([40, 100]))
        else:
            world.group(name, dice.randint(1, 2)), world.pod(name, name)
        if way >= 0.3:
            await bound(world, name)
        await asyncio.sleep(dice.choice([0, 0.1, 1]))
        world.end(name)
        world.cluster.remove(GROUPS, name)
        await asyncio.sleep(dice.choice([0, 0.02, 0.1, 0.5, 2]))


async def strangers(cluster: LiveCluster, dice: random.Random, number: int) -> None:
    """Who gets each device as soon as DRA thinks that it is free, for a moment."""
    for each in range(8):
        name = f"s{number}-{each}"
        stranger(cluster, name)
        await asyncio.sleep(dice.choice([0.1, 0.5, 2]))
        end_stranger(cluster, name)
        await asyncio.sleep(dice.choice([0, 0.1]))


async def bound(world: World, name: str) -> None:
    """kube-scheduler's attempts."""
    for _ in range(3):
        with suppress(Refused, ApiError):
            await world.bind(name, NODE)
            return
        await asyncio.sleep(1)


def follower(world: World) -> World:
    """Another process, over the same mirrors: what the one before had in flight may still take effect."""
    heir = World(world.cluster, holds=True, compares=True)
    heir.recorder = world.recorder
    return heir


@pytest.mark.parametrize("tens", range(6))
def test_no_device_has_two_owners(tens: int) -> None:
    """Whoever stops where, and whatever strangers ask for."""
    for seed in range(10 * tens, 10 * tens + 10):
        run(interleaved(seed))
