"""Claims by number and claims by UUID on one node, over the model API server in virtual time.

The test knows which card has which number: a name opens the card that has it when the container starts.
"""

import asyncio
from contextlib import suppress

import msgspec

from deviceshare.domain import vendors
from deviceshare.domain.objects.container_keys import devices_of_container
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS, Refused
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time


def report(world: World, cards: str, *, boot: str = "boot-1", lost: str = "") -> None:
    """The agent says which cards the node has, in the order of their numbers: `ABC` is GPU-A as 0, GPU-B as 1, …"""
    parts = [Part(GPU, n, f"GPU-{card}") for n, card in enumerate(cards)]
    parts += [Part(GPU, 1, f"GPU-{card}", lost=True) for card in lost]
    hardware = Hardware(boot_id=boot, devices=parts)
    world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": msgspec.to_builtins(hardware)}})


def boots(world: World, boot: str) -> None:
    """The kubelet says in which boot the node is."""
    world.cluster.edit(NODES, "n1", {"status": {"nodeInfo": {"bootID": boot}}})


def opened(world: World, pod: str, cards: str) -> set[str]:
    """The cards that the pod's containers open when they start while the node numbers its cards so."""
    annotations = world.read_pod(pod).metadata.annotations
    mine = (vendors.NVIDIA.annotation, devices_of_container(vendors.NVIDIA, "main"))
    names = ",".join(annotations.get(key, "") for key in mine).split(",")
    return {name.removeprefix("GPU-") if "GPU" in name else cards[int(name)] for name in names if name}


async def a_group_gets(world: World, name: str, count: int = 1) -> bool:
    """Whether the group is bound with its first pod, which is called as it is."""
    world.group(name, count)
    world.pod(name, name)
    with suppress(Refused):
        await world.bind(name, "n1")
    return bool(world.read_pod(name).node)


async def two_numbered_groups(world: World) -> None:
    """g0 is told `0`, g1 `1`; there is no agent yet."""
    await soon(lambda: world.open("n1"))
    boots(world, "boot-1")
    assert await a_group_gets(world, "g0")
    assert await a_group_gets(world, "g1")
    assert world.holders("n1") == {"g0": "0", "g1": "1"}


@in_virtual_time
async def test_a_number_from_before_the_agent_never_means_the_card_that_another_holds_by_uuid() -> None:
    """The agent comes later, a GPU falls off the bus, and the reboot renumbers the rest (issue 20, 1.1)."""
    async with led_world(3) as world:
        await two_numbered_groups(world)
        report(world, "ABC")
        await asyncio.sleep(BINDS_OVER_SECONDS + 2)
        assert await a_group_gets(world, "g2")
        boots(world, "boot-2")
        report(world, "AC", boot="boot-2", lost="B")
        await asyncio.sleep(5)
        assert opened(world, "g2", "AC") == {"C"}
        assert opened(world, "g1", "AC") == {"B"}, "it was told its card's UUID while its number was known to mean it"
        assert world.condition("g1", "Healthy") == ("False", "DevicesLost")


@in_virtual_time
async def test_a_ledger_opened_by_count_gives_no_number_to_anybody_while_claims_name_uuids() -> None:
    """The Node is made again, its ledger is lost and opened by the count in `allocatable` (issue 20, 1.2)."""
    async with led_world(3) as world:
        await soon(lambda: world.open("n1"))
        report(world, "ABC")
        assert await a_group_gets(world, "g1", 2)
        assert opened(world, "g1", "ABC") == {"A", "B"}
        world.cluster.remove(NODES, "n1")
        world.cluster.remove(NODE_DEVICES, "n1")
        world.node("n1", 3)
        await soon(lambda: world.open("n1") and world.holders("n1") == {"g1": "0,1"}, BINDS_OVER_SECONDS + 5)
        assert not await a_group_gets(world, "g2"), "number 2 is GPU-A's since the node was started again"
        await soon(lambda: "name devices by UUID, and no agent has reported" in world.message("g2"), 10)
        report(world, "CBA", boot="boot-2")
        await soon(lambda: world.condition("g1", "Healthy") == ("True", "AsClaimed"))
        await world.bind("g2", "n1")
        assert (opened(world, "g1", "CBA"), opened(world, "g2", "CBA")) == ({"A", "B"}, {"C"})
