"""Rebinds of shares by a leading controller, over the model API server in virtual time."""

import asyncio
from typing import Any

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import as_json
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.shares import (
    DEVICE_INDEX,
    GPU_PERCENT,
    MEMORY_LIMIT,
    Share,
    container_annotation,
    current,
    devices_of_container,
)
from deviceshare.domain.placement.device_states import device_states
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.leader.rebinder import AGAIN_SECONDS
from deviceshare.loops.ports import Unavailable
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.domain.objects import GPU, a_sharing_container, free_on
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

SIZES = (16, 16, 32, 16)


def report(world: World, *broken: int, devices: int = 4) -> None:
    """What the node's agent says of devices of different sizes."""
    parts = [
        Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79" if n in broken else "", memory_mib=SIZES[n] * 1024)
        for n in range(devices)
    ]
    hardware = msgspec.to_builtins(Hardware(devices=parts))
    world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": hardware}})


def ask(world: World, pod: str, token: str = "request-1") -> None:
    """As anybody with the right to change the pod does."""
    world.cluster.edit(PODS, pod, {"metadata": {"annotations": {contract.REBIND: token}}}, "ns")


async def bound(world: World, name: str, percent: int, group: str = "") -> None:
    """A pod with a share on the node n1."""
    world.share(name, percent, group=group)
    await world.bind(name, "n1")
    await soon(lambda: (seen := world.context.ledgers.get("n1")) and world.read_pod(name).metadata.uid in seen.claims)


async def a_node_with(world: World, **percents: int) -> None:
    await soon(lambda: world.open("n1"))
    report(world)
    await soon(lambda: (seen := world.context.ledgers.get("n1")) and seen.hardware.devices)
    for name, percent in percents.items():
        await bound(world, name, percent)


def claim(world: World, name: str) -> Claim:
    return world.ledger("n1").claims[world.read_pod(name).metadata.uid]


def places(shares: Any) -> list[tuple[int, bool]]:
    """The number of each part's device, and whether it is a former one."""
    return sorted((share.index, share.former) for share in shares)


def told(world: World, name: str) -> dict[str, str]:
    """What its container reads, and the part that it may use."""
    annotations = world.read_pod(name).metadata.annotations
    keys = {
        "devices": devices_of_container(vendors.NVIDIA, "main"),
        "limit": container_annotation(MEMORY_LIMIT, "main"),
        "index": container_annotation(DEVICE_INDEX, "main"),
    }
    return {name: annotations[key] for name, key in keys.items()}


def message(world: World, reason: str) -> str:
    return next(text for _, _, said, text in world.recorder.events if said == reason)


@in_virtual_time
async def test_a_part_of_a_broken_device_moves_and_its_pod_is_told() -> None:
    """As many hundredths of another device; what it had is reserved until the pod has ended, though it is repaired."""
    async with led_world() as world:
        await a_node_with(world, p=60, q=40, r=90)
        assert told(world, "p") == {"devices": "GPU-0", "limit": str(16 * 1024 * 60 // 100), "index": "0"}
        await bound(world, "s", 70)
        assert [places(claim(world, name).shares) for name in "pqrs"] == [
            [(0, False)],
            [(0, False)],
            [(1, False)],
            [(3, False)],
        ]
        report(world, 0)
        ask(world, "p")
        await soon(lambda: claim(world, "p").rebound == "request-1")
        await soon(lambda: places(world.read_pod("p").shares) == [(0, True), (2, False)])
        assert told(world, "p") == {"devices": "GPU-2", "limit": str(32 * 1024 * 60 // 100), "index": "2"}
        assert list(world.read_pod("p").shares) == claim(world, "p").shares
        assert [device.index for device in world.read_pod("p").devices] == [2]
        assert {"Rebound", "DevicesReplaced"} <= set(world.recorder.reasons("p"))
        assert message(world, "Rebound").startswith(f"now has 60% of {GPU} 2 on node n1; containers see that when they")
        assert "they restart, and may hold nvidia.com/gpu 0 until then" in message(world, "DevicesReplaced")
        report(world)
        world.end("q")
        await soon(lambda: len(world.ledger("n1").claims) == 3, BINDS_OVER_SECONDS + 2)
        await asyncio.sleep(BINDS_OVER_SECONDS + 2)
        rooms = {state.device.index: state.room.free * 100 // state.room.capacity for state in states(world)}
        assert rooms == {0: 40, 1: 10, 2: 40, 3: 30}, "the former part stays counted, and nothing more"
        world.end("p")
        await soon(lambda: [device.index for device in free_on(world.ledger("n1"))] == [0, 2])


@in_virtual_time
async def test_a_part_that_moves_to_a_device_of_which_its_pod_has_another_is_no_resize() -> None:
    """Nor does the pod name any device that it didn't name before."""
    async with led_world() as world:
        await a_node_with(world, q=60, r=90, s=80)
        containers = [a_sharing_container("a", {GPU_PERCENT: 40}), a_sharing_container("b", {GPU_PERCENT: 35})]
        meta = {"name": "p", "labels": {contract.GROUP: ""}}
        world.cluster.put(PODS, {"metadata": meta, "spec": {"containers": containers}}, "ns")
        await world.bind("p", "n1")
        assert places(claim(world, "p").shares) == [(0, False), (2, False)]
        report(world, 0)
        ask(world, "p")
        await soon(lambda: places(world.read_pod("p").shares) == [(0, True), (2, False), (2, False)])
        assert {"Rebound", "DevicesReplaced"} <= set(world.recorder.reasons("p"))
        assert "Resized" not in world.recorder.reasons("p")
        assert "nvidia.com/gpu 0 until then" in message(world, "DevicesReplaced")


@in_virtual_time
async def test_a_former_part_that_somebody_took_from_a_pods_annotation_is_told_again() -> None:
    """As one that was replaced: its size is what it was."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        report(world, 0)
        ask(world, "p")
        await soon(lambda: places(world.read_pod("p").shares) == [(0, True), (1, False)])
        shares = msgspec.json.encode(as_json(current(world.read_pod("p").shares))).decode()
        world.cluster.edit(PODS, "p", {"metadata": {"annotations": {contract.SHARES: shares}}}, "ns")
        await soon(lambda: world.recorder.reasons("p").count("DevicesReplaced") == 2)
        assert places(world.read_pod("p").shares) == [(0, True), (1, False)]
        assert "Resized" not in world.recorder.reasons("p")


def states(world: World) -> Any:
    return device_states(world.ledger("n1"))


@in_virtual_time
async def test_a_part_that_fits_nowhere_stays_and_the_pod_is_told_why() -> None:
    """Answered once; room that comes later changes nothing by itself."""
    async with led_world() as world:
        await a_node_with(world, p=60, q=70, r=70, s=70)
        report(world, 0)
        ask(world, "p")
        await soon(lambda: claim(world, "p").rebound == "request-1")
        assert places(claim(world, "p").shares) == [(0, False)]
        said = message(world, "RebindImpossible")
        assert f"it needs 60% of {GPU} in place of {GPU} 0, but node n1 has at most" in said
        assert said.endswith("free: delete and recreate the pod")
        world.end("q")
        await asyncio.sleep(BINDS_OVER_SECONDS + 2)
        assert places(claim(world, "p").shares) == [(0, False)]


@in_virtual_time
async def test_a_healthy_part_stays_and_answers_follow_each_other_slowly() -> None:
    """Whoever may change a pod could otherwise have the node's ledger written without an end."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        ask(world, "p")
        await soon(lambda: claim(world, "p").rebound == "request-1")
        assert "RebindNotNeeded" in world.recorder.reasons("p")
        answered = now()
        ask(world, "p", "request-2")
        await soon(lambda: claim(world, "p").rebound == "request-2", AGAIN_SECONDS + 1)
        assert now() >= answered + AGAIN_SECONDS - 0.1


@in_virtual_time
async def test_what_is_no_token_is_no_request() -> None:
    """It would be written into the ledger, which all pods of the node share."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        report(world, 0)
        ask(world, "p", "x" * 64)
        await asyncio.sleep(2)
        assert not claim(world, "p").rebound


@in_virtual_time
async def test_the_next_leader_tells_the_pod_whose_part_was_moved() -> None:
    """The last one died after the claim was written, before the pod was."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        report(world, 0)
        world.cluster.fail = lambda verb, plural, name: (
            Unavailable("dying") if (verb, plural) == ("patch", "pods") else None
        )
        ask(world, "p")
        await soon(lambda: places(claim(world, "p").shares) == [(0, True), (1, False)])
        assert places(world.read_pod("p").shares) == [(0, False)]
        ask(world, "p", "request-2")
        await asyncio.sleep(AGAIN_SECONDS + 1)
        assert claim(world, "p").rebound == "request-1", "not before the pod was told"
    successor = world.successor()
    async with successor.leading():
        await soon(lambda: list(successor.read_pod("p").shares) == claim(successor, "p").shares)
        assert told(successor, "p")["devices"] == "GPU-1"
        await soon(lambda: claim(successor, "p").rebound == "request-2", AGAIN_SECONDS + 1)


@in_virtual_time
async def test_a_ledger_lost_in_a_rebind_of_a_share_comes_back_with_both_parts() -> None:
    """From what the pod was told, once no leader can be telling it anything else."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        report(world, 0)
        ask(world, "p")
        await soon(lambda: places(world.read_pod("p").shares) == [(0, True), (1, False)])
        world.cluster.remove(NODE_DEVICES, "n1")
        lost = now()
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 3)
        assert now() >= lost + BINDS_OVER_SECONDS
        assert places(claim(world, "p").shares) == [(0, True), (1, False)]
        assert not world.uncovered or not world.uncovered[-1]


@in_virtual_time
async def test_a_pod_whose_device_is_injected_by_cdi_keeps_it() -> None:
    """A container that restarts gets what the pod's sandbox was created with, so only another pod helps."""
    async with led_world() as world:
        await a_node_with(world)
        handover = {"nvidia": vendors.NVIDIA.kinds[0]}
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"handover": handover}})
        await bound(world, "p", 60)
        assert world.read_pod("p").sealed
        report(world, 0)
        ask(world, "p")
        await soon(lambda: claim(world, "p").rebound == "request-1")
        assert places(claim(world, "p").shares) == [(0, False)]
        assert "keeps its devices until it is recreated" in message(world, "RebindImpossible")


async def a_group_with(world: World, **percents: int) -> None:
    await a_node_with(world)
    world.group("team")
    for name, percent in percents.items():
        await bound(world, name, percent, "team")


def group_claim(world: World) -> Claim:
    return next(each for each in world.ledger("n1").claims.values() if each.group)


def ask_for_group(world: World) -> None:
    world.cluster.edit(GROUPS, "team", {"metadata": {"annotations": {contract.REBIND: "request-1"}}})


@in_virtual_time
async def test_a_group_takes_the_parts_of_its_broken_device_along() -> None:
    """In one write; each pod is told of the group's devices and of its own part."""
    async with led_world() as world:
        await a_group_with(world, p=60, q=40, r=50)
        assert [places(claim(world, name).shares) for name in "pqr"] == [[(0, False)], [(0, False)], [(1, False)]]
        report(world, 0)
        versions: list[list[int]] = []
        world.context.ledgers.subscribe(lambda change: versions.append(_devices(change.new)))
        ask_for_group(world)
        await soon(lambda: group_claim(world).rebound == "request-1")
        assert [device.index for device in group_claim(world).devices] == [1, 2]
        moved, stays = [(0, True), (2, False)], [(1, False)]
        await soon(lambda: [places(world.read_pod(name).shares) for name in "pqr"] == [moved, moved, stays])
        for name in "pqr":
            assert list(world.read_pod(name).shares) == claim(world, name).shares
        assert told(world, "p")["devices"] == "GPU-2"
        assert [0, 1, 2] not in versions, "no reader ever saw the group moved without the parts, or the parts alone"
        await soon(lambda: world.read_pod("p").former)
        assert world.read_pod("p").metadata.annotations[vendors.NVIDIA.annotation] == "GPU-1,GPU-2"
        assert "with the shares of 2 pods" in message(world, "Rebound")
        report(world)
        await asyncio.sleep(BINDS_OVER_SECONDS + 30)
        assert [device.index for device in free_on(world.ledger("n1"))] == [3], "reserved while its pods live"
        assert not world.uncovered or not world.uncovered[-1]
        for name in "pqr":
            world.end(name)
        await soon(lambda: [device.index for device in free_on(world.ledger("n1"))] == [0, 3], 60)


def _devices(ledger: Any) -> list[int]:
    """The devices that claims hold, whole or in part, former ones not among them."""
    return sorted({d.index for each in ledger.claims.values() for d in each.devices}) if ledger else []


@in_virtual_time
async def test_a_pod_of_a_group_moves_to_another_device_of_the_group() -> None:
    """By its own request; what is free outside of the group isn't the group's."""
    async with led_world() as world:
        await a_group_with(world, p=60, q=40)
        report(world, 0)
        ask(world, "p")
        await soon(lambda: places(world.read_pod("p").shares) == [(0, True), (1, False)])
        ask(world, "q")
        await soon(lambda: places(world.read_pod("q").shares) == [(0, True), (1, False)])
        assert [device.index for device in group_claim(world).devices] == [0, 1]
        assert sum(share.percent for name in "pq" for share in current(claim(world, name).shares)) == 100
        assert isinstance(claim(world, "p").shares[0], Share)
