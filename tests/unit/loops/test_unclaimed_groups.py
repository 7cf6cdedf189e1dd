"""A bound group whose claim is missing gets it again; where others have its devices, it leaves the node."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from deviceshare.domain.placement.device_states import device_states
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
async def test_a_group_whose_claim_was_deleted_gets_it_again() -> None:
    """And keeps its node; its next pod joins."""
    async with led_world() as world:
        await an_idle_group(world)
        delete_claim(world)
        await soon(lambda: world.holders("n1") == {"team": "0,1"}, 4)
        world.pod("b", "team")
        await world.bind("b", "n1")
        assert bound(world)


@in_virtual_time
async def test_a_group_whose_device_a_stranger_shares_by_now_does_not_get_it_again() -> None:
    """Its claim was deleted while nobody led, when a pod of it had a share within it."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("team", 1)
        world.share("inside", 40, group="team")
        await world.bind("inside", "n1")
        await soon(lambda: bound(world))
        await asyncio.sleep(1)
    delete_claim(world)
    world.share("stranger", 40)
    await world.bind("stranger", "n1")
    [one, other] = [set(claim.devices) for claim in world.ledger("n1").claims.values()]
    assert one == other
    successor = world.successor()
    async with successor.leading():
        await asyncio.sleep(NEVER)
        assert not [state for state in device_states(successor.ledger("n1")) if state.claimed_twice]
        assert successor.holders("n1").get("team", "") == ""


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
