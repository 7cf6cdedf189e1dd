"""The leader with a cluster in which DRA offers and allocates the same devices."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from deviceshare.domain.answers.picture import view_of
from deviceshare.domain.placement.device_states import Use
from deviceshare.loops.kinds import GROUPS, RESOURCE_CLAIMS, RESOURCE_SLICES
from deviceshare.loops.leader.ledgers import CLAIMS_SECONDS
from tests.unit.domain.dra_objects import card, claim_json, gpu_json, slice_json
from tests.unit.loops.live import LiveCluster, MemoryMirror, World, soon
from tests.unit.loops.virtual_time import in_virtual_time

SLICES, CLAIMS = RESOURCE_SLICES[0], RESOURCE_CLAIMS[0]
FOUR = tuple(gpu_json(number) for number in range(4))


def a_publishing_node(claims_known: Callable[[], bool] = lambda: True) -> World:
    """The node n1, whose GPUs a DRA driver publishes."""
    cluster = LiveCluster()
    cluster.mirrors |= {kind.plural: MemoryMirror() for kind in (SLICES, CLAIMS)}
    world = World(cluster, claims_known=claims_known)
    world.node("n1", 0)
    cluster.put(SLICES, slice_json("n1", *FOUR))
    return world


@asynccontextmanager
async def dra_world() -> AsyncIterator[World]:
    """The same, once the leader has read it."""
    world = a_publishing_node()
    async with world.leading():
        await soon(lambda: world.open("n1"))
        yield world


def allocate(world: World, name: str, *devices: str) -> None:
    """As kube-scheduler writes a claim."""
    world.cluster.put(CLAIMS, claim_json(f"ns/{name}", *devices), "ns")


@in_virtual_time
async def test_a_group_gets_what_no_claim_holds_and_waits_for_the_rest() -> None:
    """By UUID; when the claim is deallocated the waiting pod is woken."""
    async with dra_world() as world:
        allocate(world, "train", "gpu-0", "gpu-1")
        await soon(lambda: world.ledger("n1").spec.summary.free == "nvidia.com/gpu=2", 5)
        world.group("team", 2)
        world.pod("a", "team")
        await world.bind("a", "n1")
        (claim,) = world.ledger("n1").claims.values()
        assert [device.uuid for device in claim.devices] == [card(2), card(3)]
        world.group("next", 2)
        world.pod("b", "next", refused=True)
        await soon(lambda: world.condition("next", "Bound")[0], 10)
        assert "ns/train" in world.message("next")
        touched = len(world.cluster.writes("pods"))
        world.cluster.edit(CLAIMS, "train", {"status": {"allocation": None}}, "ns")
        await soon(lambda: len(world.cluster.writes("pods")) > touched, 10)
        await world.bind("b", "n1")
    assert world.holders("n1") == {"team": "2,3", "next": "0,1"}


@in_virtual_time
async def test_devices_that_dra_allocates_after_us_are_reported() -> None:
    """The group is degraded, with an event on it and one on the node, once."""
    async with dra_world() as world:
        world.group("team", 2)
        world.pod("a", "team")
        await world.bind("a", "n1")
        await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"))
        allocate(world, "train", "gpu-1")
        await soon(lambda: world.condition("team", "Healthy") == ("False", "DevicesGivenAway"), 5)
        assert "nvidia.com/gpu 1 to ResourceClaim ns/train" in world.message("team", "Healthy")
        assert world.recorder.reasons("n1") == ["DevicesGivenAway"]
        (mine,) = (each for each in view_of(world.fleet, "n1", ()).devices if each.index == 1)
        assert (mine.use, mine.resource_claim) == (Use.HELD, "ns/train")
        world.cluster.remove(CLAIMS, "train", "ns")
        await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"), 5)
        assert world.recorder.reasons("n1") == ["DevicesGivenAway"]


@in_virtual_time
async def test_while_claims_can_not_be_read_nobody_gets_what_slices_name() -> None:
    """Each kind has a mirror of its own, and an empty one of claims doesn't say that nothing is held."""
    read: list[bool] = []
    world = a_publishing_node(lambda: bool(read))
    async with world.leading():
        await soon(lambda: world.recorder.reasons("n1"))
        await asyncio.sleep(100)
        assert not world.open("n1")
        await soon(lambda: "ResourceClaims can't be read" in world.ledger("n1").spec.summary.reasons)
        assert world.recorder.reasons("n1") == ["DevicesUnknown"]
        read.append(True)
        await soon(lambda: world.open("n1"), CLAIMS_SECONDS + 5)


@in_virtual_time
async def test_an_incomplete_pool_closes_the_node_to_newcomers() -> None:
    """With an event; those who have devices keep them."""
    async with dra_world() as world:
        world.group("team", 2)
        world.pod("a", "team")
        await world.bind("a", "n1")
        world.cluster.edit(SLICES, "n1-gpu.nvidia.com", {"spec": {"pool": {"resourceSliceCount": 2}}})
        await soon(lambda: "incomplete" in world.ledger("n1").spec.summary.reasons, 5)
        assert world.ledger("n1").devices == ()
        assert world.recorder.reasons("n1") == ["DevicesUnknown"]
        await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"))
        world.cluster.edit(SLICES, "n1-gpu.nvidia.com", {"spec": {"pool": {"resourceSliceCount": 1}}})
        await soon(lambda: world.open("n1"), 5)


@in_virtual_time
async def test_a_driver_that_comes_to_a_node_in_use_waits_for_its_numbers_to_go() -> None:
    """The device plugin's numbers of claims may be other devices of the driver's."""
    cluster = LiveCluster()
    cluster.mirrors |= {kind.plural: MemoryMirror() for kind in (SLICES, CLAIMS)}
    world = World(cluster)
    world.node("n1", 4)
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.group("team", 2)
        world.pod("a", "team")
        await world.bind("a", "n1")
        cluster.put(SLICES, slice_json("n1", *FOUR))
        await soon(lambda: "hold devices by number" in world.ledger("n1").spec.summary.reasons, 5)
        assert world.holders("n1") == {"team": "0,1"}
        world.end("a")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: len(world.ledger("n1").devices) == 4, 60)
    assert all(device.uuid for device in world.ledger("n1").devices)
