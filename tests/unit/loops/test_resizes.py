"""Resizes of shares by a leading controller, over the model API server in virtual time."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import BY_AGENT, Hardware, LimitReport, Part
from deviceshare.domain.objects.shares import MEMORY_LIMIT, container_annotation, current
from deviceshare.domain.placement.device_states import device_states
from deviceshare.loops.kinds import NODE_DEVICES, PODS, RESOURCE_QUOTAS
from deviceshare.loops.leader.rebinder import UNREADABLE_SECONDS
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time

MIB = 16 * 1024


def report(world: World, *limits: LimitReport, by: str = BY_AGENT) -> None:
    """What the agent says of its node with one device of 16 GiB."""
    parts = [Part(GPU, 0, "GPU-0", memory_mib=MIB)]
    hardware = Hardware(devices=parts, memory_limits=by, limits=list(limits), counts_only="" if by else "old: upgrade")
    world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": msgspec.to_builtins(hardware)}})


def lowered(world: World, name: str, mib: int, **more: Any) -> LimitReport:
    return LimitReport(f"ns/{name}", world.read_pod(name).metadata.uid, "main", "GPU-0", mib, **more)


def ask(world: World, name: str, wish: str) -> None:
    world.cluster.edit(PODS, name, {"metadata": {"annotations": {contract.RESIZE: wish}}}, "ns")


async def a_node_with(world: World, *, by: str = BY_AGENT, **percents: int) -> None:
    await soon(lambda: world.open("n1"))
    report(world, by=by)
    await soon(lambda: (seen := world.context.ledgers.get("n1")) and seen.hardware.devices)
    for name, percent in percents.items():
        world.share(name, percent)
        await world.bind(name, "n1")
        uid = world.read_pod(name).metadata.uid
        await soon(partial(claimed, world, uid))


def claimed(world: World, uid: str) -> bool:
    seen = world.context.ledgers.get("n1")
    return seen is not None and uid in seen.claims


def size(world: World, name: str) -> str:
    """Of the pod's claim, which its annotation says too."""
    [share] = current(world.ledger("n1").claims[world.read_pod(name).metadata.uid].shares)
    return str(share)


def told(world: World, name: str) -> str:
    [share] = current(world.read_pod(name).shares)
    return str(share)


def free(world: World) -> int:
    [state] = device_states(world.ledger("n1"))
    return state.room.free * 100 // state.room.capacity


def messages(world: World, reason: str) -> list[str]:
    return [text for _, _, said, text in world.recorder.events if said == reason]


def said(world: World, text: str) -> bool:
    return any(text in each for each in messages(world, "ResizeWaits"))


@in_virtual_time
async def test_a_larger_share_is_claimed_and_told_at_once_where_there_is_room() -> None:
    async with led_world() as world:
        await a_node_with(world, p=20, q=30)
        ask(world, "p", "main=60%")
        await soon(lambda: size(world, "p") == told(world, "p") == "60%")
        limit = world.read_pod("p").metadata.annotations[container_annotation(MEMORY_LIMIT, "main")]
        assert (limit, free(world)) == (str(MIB * 60 // 100), 10)
        assert messages(world, "Resized") == [f"its share is now 60% of {GPU} 0"]


@in_virtual_time
async def test_a_larger_share_waits_for_room_and_says_so_once() -> None:
    async with led_world() as world:
        await a_node_with(world, p=20, q=30)
        ask(world, "p", "main=80%")
        await soon(lambda: messages(world, "ResizeWaits"))
        await asyncio.sleep(30)
        [text] = messages(world, "ResizeWaits")
        assert "needs 9.6 GiB more of nvidia.com/gpu 0" in text and "8 of 16 GiB of it is free" in text
        assert size(world, "p") == "20%"
        world.end("q")
        await soon(lambda: size(world, "p") == told(world, "p") == "80%", 60)


@pytest.mark.parametrize(("part", "field"), [("status", "hardware"), ("spec", "claims")])
@in_virtual_time
async def test_what_is_waited_for_is_not_said_again_once_a_ledger_can_be_read_again(part: str, field: str) -> None:
    """Nothing has changed for the pod; another request has another answer."""
    async with led_world() as world:
        await a_node_with(world, p=20, q=30)
        ask(world, "p", "main=80%")
        await soon(lambda: messages(world, "ResizeWaits"))
        as_it_was = world.cluster.objects[NODE_DEVICES.plural]["n1"][part][field]
        for value in (7, as_it_was):
            world.cluster.edit(NODE_DEVICES, "n1", {part: {field: value}})
            await asyncio.sleep(UNREADABLE_SECONDS * 2)
        assert len(messages(world, "ResizeWaits")) == 1
        ask(world, "p", "main=90%")
        await soon(lambda: len(messages(world, "ResizeWaits")) == 2)


@in_virtual_time
async def test_a_smaller_share_is_claimed_once_the_agent_has_lowered_the_limit() -> None:
    """By the very ledger that is written: a report that was withdrawn since makes the write fail."""
    async with led_world() as world:
        await a_node_with(world, p=50)
        ask(world, "p", "main=4096Mi")
        await asyncio.sleep(10)
        assert size(world, "p") == "50%"
        report(world, lowered(world, "p", 4097))
        await asyncio.sleep(10)
        assert size(world, "p") == "50%", "not as low as asked for"
        report(world, lowered(world, "p", 4096))
        await soon(lambda: size(world, "p") == told(world, "p") == "4 GiB")
        assert free(world) == 75


@in_virtual_time
async def test_where_shares_are_only_counted_a_smaller_one_needs_nobody() -> None:
    async with led_world() as world:
        await a_node_with(world, by="", p=50)
        ask(world, "p", "main=25%")
        await soon(lambda: size(world, "p") == told(world, "p") == "25%")


@in_virtual_time
async def test_what_can_not_be_is_said() -> None:
    async with led_world() as world:
        await a_node_with(world, p=20)
        for wish, text in {
            "other=5%": "has no share in container other: name main",
            "main=20000Mi": "more than",
        }.items():
            ask(world, "p", wish)
            await soon(partial(said, world, text))
        assert size(world, "p") == "20%"


@in_virtual_time
async def test_the_next_leader_goes_on_where_the_last_one_stopped() -> None:
    """Between the claim and the pod's annotation."""
    async with led_world() as world:
        await a_node_with(world, p=20)
        uid = world.read_pod("p").metadata.uid
        share = {**msgspec.to_builtins(world.ledger("n1").claims[uid].shares[0]), "percent": 70}
        ask(world, "p", "main=70%")
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: {"shares": [share]}}}})
        await soon(lambda: size(world, "p") == told(world, "p") == "70%")


@in_virtual_time
async def test_a_quota_of_shares_is_not_passed_by() -> None:
    """Kubernetes counts a pod's limits, which stay as they are; up to these it may grow again."""
    async with led_world() as world:
        await a_node_with(world, p=20)
        quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.deviceshare.io/gpu-mem": "1"}}}
        world.cluster.put(RESOURCE_QUOTAS, quota, "ns")
        ask(world, "p", "main=30%")
        await soon(lambda: said(world, "a ResourceQuota of its namespace counts shares"))
        assert size(world, "p") == "20%"
        ask(world, "p", "main=10%")
        await asyncio.sleep(5)
        report(world, lowered(world, "p", MIB // 10))
        await soon(lambda: size(world, "p") == told(world, "p") == "10%")
        ask(world, "p", "main=20%")
        report(world)
        await soon(lambda: size(world, "p") == told(world, "p") == "20%")
