"""A group that is bound where an open ledger has no claim of it leaves that node, unless a pod of it lives there."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.loops.live import World, a_bound_group, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time

NEVER = BINDS_OVER_SECONDS * 3


async def an_idle_group(world: World) -> None:
    """The group team on the node n1, which has room for one group; no pod of it lives."""
    await a_bound_group(world)
    world.cluster.remove(PODS, "a", "ns")
    await asyncio.sleep(2)


def delete_claim(world: World) -> None:
    """As by `kubectl edit ndev n1`."""
    world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {world.read_group("team").uid: None}}})


@contextmanager
def a_deaf_mirror(world: World) -> Iterator[None]:
    """Of ledgers; nor does it keep what others read."""
    ledgers = world.cluster.mirrors[NODE_DEVICES.plural]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers, "deaf", True)
        patch.setattr(ledgers, "put", lambda _: None)
        yield


def bound(world: World) -> bool:
    return bool(world.read_group("team").node)


@in_virtual_time
async def test_a_group_whose_claim_was_deleted_leaves_its_node_and_says_so() -> None:
    """At once, where no pod waits. Its next pod binds it again, on any node."""
    async with led_world() as world:
        await an_idle_group(world)
        delete_claim(world)
        await soon(lambda: not bound(world), 4)
        text = "left node n1, where its claim was missing and no pod of it ran; its next pod binds it again"
        await soon(lambda: world.condition("team", "Bound") == ("False", "Released"))
        assert world.message("team") == text
        assert ("SharedDeviceGroup", "team", "LeftNode", text) in world.recorder.events
        world.node("n2")
        await soon(lambda: world.open("n2"))
        world.pod("b", "team")
        await world.bind("b", "n2")
        assert world.holders("n2") == {"team": "0,1"}


@in_virtual_time
async def test_a_waiting_pod_gets_devices_again() -> None:
    """Binds that may have read the claim before are waited out first."""
    async with led_world() as world:
        await an_idle_group(world)
        world.pod("b", "team", refused=True)
        await asyncio.sleep(1)
        delete_claim(world)
        await asyncio.sleep(BINDS_OVER_SECONDS - 1)
        assert bound(world)
        await soon(lambda: not bound(world), 6)
        await world.bind("b", "n1")
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_group_whose_pod_lives_keeps_its_node() -> None:
    """Its devices are claimed again."""
    async with led_world() as world:
        await a_bound_group(world)
        delete_claim(world)
        await asyncio.sleep(NEVER)
        assert bound(world)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_group_whose_devices_others_got_leaves_once_its_last_pod_has_ended() -> None:
    """Until then a person has to decide."""
    async with led_world(devices=2) as world:
        await a_bound_group(world)
        mine, other = world.read_group("team"), world.group("other")
        claim = {"group": "other", "devices": [{"resource": "nvidia.com/gpu", "index": number} for number in (0, 1)]}
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {mine.uid: None, other.uid: claim}}})
        world.cluster.edit(GROUPS, "other", {"status": {"phase": "Bound", "nodeName": "n1"}})
        await soon(lambda: "DevicesNotHeld" in world.recorder.reasons("a"))
        await asyncio.sleep(NEVER)
        assert bound(world)
        world.end("a")
        await soon(lambda: not bound(world), 4)


@in_virtual_time
async def test_the_wait_begins_anew_where_the_claim_was_there_again() -> None:
    """A pod may have been let in by it meanwhile."""
    async with led_world() as world:
        await an_idle_group(world)
        world.pod("b", "team", refused=True)
        await asyncio.sleep(1)
        claim = world.cluster.objects[NODE_DEVICES.plural]["n1"]["spec"]["claims"][world.read_group("team").uid]
        delete_claim(world)
        await asyncio.sleep(BINDS_OVER_SECONDS - 2)
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {world.read_group("team").uid: dict(claim)}}})
        await asyncio.sleep(1)
        delete_claim(world)
        await asyncio.sleep(BINDS_OVER_SECONDS - 1)
        assert bound(world)
        await soon(lambda: not bound(world), 6)


@in_virtual_time
async def test_a_mirror_that_is_behind_has_nobody_leave() -> None:
    """It doesn't show the claim of a group that was just bound."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        await asyncio.sleep(5)
        with a_deaf_mirror(world):
            await world.bind("a", "n1")
            world.cluster.remove(PODS, "a", "ns")
            await asyncio.sleep(NEVER)
        assert bound(world)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_an_ordinary_bind_costs_no_request() -> None:
    """Groups and ledgers are watched apart: one may be seen bound a moment before its claim is seen."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        await asyncio.sleep(5)
        before = len(world.cluster.requests)
        with a_deaf_mirror(world):
            await world.bind("a", "n1")
            world.cluster.remove(PODS, "a", "ns")
            await asyncio.sleep(1)
        world.cluster.edit(NODE_DEVICES, "n1", {})
        await asyncio.sleep(NEVER)
        assert ("get", GROUPS.plural, "team") not in world.cluster.requests[before:]
