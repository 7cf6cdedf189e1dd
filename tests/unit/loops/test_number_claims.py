"""Claims by number and claims by UUID on one node, over the model API server in virtual time.

The test knows which card has which number: a name opens the card that has it when the container starts.
"""

import asyncio
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from deviceshare.domain import contract, vendors
from deviceshare.domain.answers import census
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.shares import devices_of_container
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Unavailable
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


def is_claimed_twice(world: World, group: str) -> bool:
    return world.condition(group, "Healthy") == ("False", "DevicesClaimedTwice")


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
    """The Node is recreated, its ledger is lost and opened by the count in `allocatable` (issue 20, 1.2)."""
    async with led_world(3) as world:
        await soon(lambda: world.open("n1"))
        report(world, "ABC")
        assert await a_group_gets(world, "g1", 2)
        assert opened(world, "g1", "ABC") == {"A", "B"}
        await asyncio.sleep(5)  # The summary is written: what goes while that is answered stays mirrored.
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


@in_virtual_time
async def test_a_share_by_number_is_named_by_uuid_too() -> None:
    """60 % and 60 % would be one card's after the reboot."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        boots(world, "boot-1")
        world.share("s0", 60)
        await world.bind("s0", "n1")
        world.share("s1", 60)
        await world.bind("s1", "n1")
        report(world, "AB")
        await soon(lambda: [opened(world, name, "BA") for name in ("s0", "s1")] == [{"A"}, {"B"}])
        assert [opened(world, name, "AB") for name in ("s0", "s1")] == [{"A"}, {"B"}], "whatever their numbers are"
        assert all(claim.former for claim in world.ledger("n1").claims.values()), "numbers stay until binds are over"
        await soon(lambda: not any(c.former for c in world.ledger("n1").claims.values()), BINDS_OVER_SECONDS + 5)
        world.share("s2", 40)
        await world.bind("s2", "n1")
        assert {share.uuid for share in world.read_pod("s2").shares} <= {"GPU-A", "GPU-B"}


@in_virtual_time
async def test_nobody_gets_a_card_by_uuid_beside_a_number_of_an_unknown_boot() -> None:
    """The agent reports from another boot than the Node says it is in, or either doesn't say: nothing is guessed."""
    async with led_world(3) as world:
        await two_numbered_groups(world)
        for boot, node in (("boot-2", "boot-1"), ("", "boot-1"), ("boot-1", "")):
            report(world, "ABC", boot=boot)
            boots(world, node)
            await asyncio.sleep(2)
            assert opened(world, "g1", "ABC") == opened(world, "g1", "CBA") == {"B"}
            assert opened(world, "g1", "BCA") == {"C"}, "it is told a number"
        assert not await a_group_gets(world, "g2")
        await soon(lambda: "claims of this node (g0 and g1) name devices by number" in world.message("g2"), 10)
        boots(world, "boot-1")
        await soon(lambda: opened(world, "g1", "BCA") == {"B"})
        await asyncio.sleep(BINDS_OVER_SECONDS + 2)
        await world.bind("g2", "n1")


@in_virtual_time
async def test_a_reboot_before_a_pod_is_told_leaves_its_number_reserved() -> None:
    """The claim names the UUID, the pod still the number: what that means after the reboot goes to nobody."""
    async with led_world(3) as world:
        await two_numbered_groups(world)
        world.cluster.fail = lambda verb, plural, name: (
            Unavailable("down") if (verb, plural) == ("patch", "pods") else None
        )
        report(world, "ABC")
        await soon(lambda: all(claim.devices[0].uuid for claim in world.ledger("n1").claims.values()))
        boots(world, "boot-2")
        report(world, "ACB", boot="boot-2")
        await asyncio.sleep(BINDS_OVER_SECONDS + 2)
        assert opened(world, "g1", "ACB") == {"C"}
        assert not await a_group_gets(world, "g2"), "the only card that no claim names"
        world.cluster.fail = lambda verb, plural, name: None
        await soon(lambda: opened(world, "g1", "ACB") == {"B"}, 60)


@in_virtual_time
async def test_a_pod_by_cdi_keeps_its_number_and_so_does_its_claim() -> None:
    """Its containers get the devices that it was bound with, whatever its annotations say later."""
    async with led_world(2) as world:
        await soon(lambda: world.open("n1"))
        boots(world, "boot-1")
        assert await a_group_gets(world, "g0")
        world.cluster.edit(PODS, "g0", {"metadata": {"annotations": {vendors.NVIDIA.cdi_annotation: "0"}}}, "ns")
        report(world, "AB")
        await asyncio.sleep(BINDS_OVER_SECONDS)
        assert [device.uuid for claim in world.ledger("n1").claims.values() for device in claim.devices] == [""]
        assert not await a_group_gets(world, "g1")


@in_virtual_time
async def test_two_owners_of_one_card_are_an_error_that_everybody_sees() -> None:
    """As in a ledger of an earlier release: g1 by its number, g2 by the UUID that the number means since a reboot."""
    async with led_world(3) as world:
        await two_numbered_groups(world)
        report(world, "ABC", boot="")
        other = world.group("g2", 1)
        claim = {"group": "g2", "devices": [{"resource": GPU, "index": 2, "uuid": "GPU-C"}], "token": "t"}
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {other.metadata.uid: claim}}})
        world.cluster.edit(GROUPS, "g2", {"status": {"nodeName": "n1", "claimToken": "t"}})
        await soon(lambda: world.condition("g2", "Healthy") == ("True", "AsClaimed"))
        report(world, "ACB", boot="")
        for one, another in (("g1", "g2"), ("g2", "g1")):
            await soon(partial(is_claimed_twice, world, one))
            said = f"nvidia.com/gpu 1 (GPU-C) of group {one} is claimed by group {another}, too, on node n1"
            assert said in world.message(one, "Healthy")
            assert world.read_group(one).status.phase == "Degraded"
            assert "Degraded" in world.recorder.reasons(one)
            world.pod(f"more-{one}", one)
            with pytest.raises(Refused, match="is claimed by"):
                await world.bind(f"more-{one}", "n1")
        assert world.condition("g0", "Healthy") == ("True", "AsClaimed")
        assert census.claimed_twice(world.fleet) == {"n1": 1}
        world.refuse("more-g1")
        await asyncio.sleep(5)
        woken = world.read_pod("more-g1").metadata.annotations.get(contract.WOKEN_AT)
        world.cluster.remove(PODS, "more-g2", "ns")
        world.cluster.remove(GROUPS, "g2")
        await soon(lambda: "g2" not in world.holders("n1"), 20)
        await soon(lambda: world.read_pod("more-g1").metadata.annotations.get(contract.WOKEN_AT) != woken, 3)
        await world.bind("more-g1", "n1")
        assert census.claimed_twice(world.fleet) == {}


@in_virtual_time
async def test_shares_that_exceed_a_card_are_told_to_their_pods() -> None:
    """Once; what fits beside others is fine."""
    async with led_world(1) as world:
        await soon(lambda: world.open("n1"))
        for name in ("s0", "s1"):
            world.share(name, 45)
            await world.bind(name, "n1")
        await asyncio.sleep(5)
        assert not world.recorder.reasons("s0")
        uid = world.read_pod("s0").metadata.uid
        shares = [{"container": "main", "resource": GPU, "index": 0, "percent": 60}]
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: {"shares": shares}}}})
        await soon(lambda: all(world.recorder.reasons(name) == ["DevicesClaimedTwice"] for name in ("s0", "s1")))
        world.cluster.edit(NODE_DEVICES, "n1", {"metadata": {"annotations": {"touched": "1"}}})
        await asyncio.sleep(5)
        assert world.recorder.reasons("s1") == ["DevicesClaimedTwice"]


@in_virtual_time
async def test_a_share_of_a_groups_device_is_named_as_the_group_names_it() -> None:
    """Else the group's card and its pod's would be two after a reboot, one of them another group's by number."""
    async with led_world(3) as world:
        await two_numbered_groups(world)
        report(world, "ABC", boot="")
        await asyncio.sleep(2)
        world.share("inside", 30, group="g1")
        await world.bind("inside", "n1")
        assert opened(world, "inside", "ACB") == opened(world, "g1", "ACB") == {"C"}
