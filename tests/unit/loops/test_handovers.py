"""How devices are handed over, from the leader's decision to what pods are bound with, over the model API server."""

import asyncio

import msgspec
import pytest

from deviceshare.cli.rebind import ask as ask_for_others
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.domain.objects import GPU, free_on
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time

KIND = vendors.NVIDIA.kinds[0]
VARIABLE, ANNOTATION = vendors.NVIDIA.annotation, vendors.NVIDIA.cdi_annotation


def report(world: World, *broken: int, kinds: list[str] | None = None, runtime: str = "cdi") -> None:
    """What the agent of n1 says."""
    parts = [Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79" if n in broken else "") for n in range(4)]
    hardware = Hardware(devices=parts, runtime=runtime, cdi_kinds=[KIND] if kinds is None else kinds)
    world.cluster.edit(NODE_DEVICES, "n1", {"status": {"hardware": msgspec.to_builtins(hardware)}})


def ledger(world: World) -> NodeDevices:
    return world.ledger("n1")


async def a_node_with(world: World, words: str) -> None:
    await soon(lambda: world.cluster.read(NODE_DEVICES, "n1"))
    report(world)
    await soon(lambda: world.open("n1") and ledger(world).status.handover == {"nvidia": words})


async def bound(world: World, pod: str, group: str = "team") -> dict[str, str]:
    """The annotations that the pod was bound with."""
    world.pod(pod, group)
    await world.bind(pod, "n1")
    return world.read_pod(pod).metadata.annotations


@pytest.mark.parametrize(
    ("label", "words", "shown"),
    [
        ("auto", KIND, f"{KIND}=GPU-0,{KIND}=GPU-1"),
        ("cdi", KIND, f"{KIND}=GPU-0,{KIND}=GPU-1"),
        ("uuid", "uuid", "GPU-0,GPU-1"),
        ("index", "index", "0,1"),
    ],
)
@in_virtual_time
async def test_pods_are_bound_in_the_words_of_their_node(label: str, words: str, shown: str) -> None:
    """By CDI in the variable and the annotation, in the one write; by UUID and number in the variable alone."""
    async with led_world(labels={contract.MODE_LABEL: contract.MODE_SHARED, contract.HANDOVER_LABEL: label}) as world:
        await a_node_with(world, words)
        world.group("team")
        annotations = await bound(world, "a")
        assert annotations[VARIABLE] == shown
        assert annotations.get(ANNOTATION) == (shown if words == KIND else None)


@in_virtual_time
async def test_a_node_without_an_agent_is_told_numbers() -> None:
    """As ever."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        assert ledger(world).status.handover == {}
        world.group("team")
        annotations = await bound(world, "a")
        assert (annotations[VARIABLE], ANNOTATION in annotations) == ("0,1", False)


@in_virtual_time
async def test_a_node_that_cant_hand_over_its_devices_offers_none_until_it_can() -> None:
    """The reason and its cure are in the node's event and in what the group waits for."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        report(world, kinds=[])
        await soon(lambda: ledger(world).status.handover == {"nvidia": "none"})
        assert free_on(ledger(world)) == ()
        group = world.group("team")
        world.pod("a", "team", refused=True)
        [reason] = set(world.fleet.filter(group.request, ["n1"]).reasons.values())
        assert reason.kind is ReasonKind.DEVICES_WITHHELD
        assert "no CDI specification on the node" in reason.text
        await soon(lambda: any(str(reason) in each.message for each in world.read_group("team").status.conditions), 10)
        assert world.recorder.reasons("n1") == ["DevicesUnknown"]
        assert "nvidia-ctk cdi generate" in world.recorder.events[0][3]
        report(world)
        await soon(lambda: len(free_on(ledger(world))) == 4)
        assert ledger(world).status.withheld == []
        await world.bind("a", "n1")


@in_virtual_time
async def test_who_holds_devices_keeps_them_while_the_node_cant_hand_them_over() -> None:
    """Nobody joins meanwhile, and the group says why; no rebind is asked for, since nothing is lost."""
    async with led_world() as world:
        await a_node_with(world, KIND)
        group = world.group("team")
        await bound(world, "a")
        report(world, kinds=[])
        await soon(lambda: world.condition("team", "Healthy") == ("False", "DevicesNotHandedOver"))
        assert world.holders("n1") == {"team": "0,1"}
        obstacle = world.fleet.joining_obstacle(world.read_group(group.name).request, "n1")
        assert obstacle is not None and obstacle.kind is ReasonKind.NOT_HANDED_OVER
        assert "no CDI specification" in obstacle.text


@in_virtual_time
async def test_where_numbers_are_told_claims_hold_numbers() -> None:
    """A reboot changes what a number means, for the container and for the claim alike."""
    async with led_world(labels={contract.MODE_LABEL: contract.MODE_SHARED, contract.HANDOVER_LABEL: "index"}) as world:
        await a_node_with(world, "index")
        world.group("team")
        await bound(world, "a")
        [claim] = ledger(world).claims.values()
        assert [device.uuid for device in claim.devices] == ["", ""]


@in_virtual_time
async def test_numbers_from_before_the_agent_came_are_told_nobody_where_only_uuids_are_understood() -> None:
    """The container would not start."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        await bound(world, "a")
        report(world)
        await soon(lambda: world.condition("team", "Healthy") == ("False", "DevicesNotHandedOver"))
        obstacle = world.fleet.joining_obstacle(world.read_group("team").request, "n1")
        assert obstacle is not None and "recreate both" in obstacle.cure


@in_virtual_time
async def test_a_rebind_by_cdi_reaches_recreated_pods_only() -> None:
    """A restarted container gets the device that its sandbox was made with; that stays reserved until the pod ends."""
    async with led_world() as world:
        await a_node_with(world, KIND)
        world.group("team")
        before = dict(await bound(world, "a"))
        await soon(lambda: world.read_group("team").status.allocated_pods)
        report(world, 1)
        said = await ask_for_others(world.cluster, "team")
        assert "Recreate them" in said
        assert said.splitlines()[-1] == "  ns/a"
        await soon(lambda: world.condition("team", "Healthy") == ("True", "PodsUsePreviousDevices"))
        message = world.read_group("team").status.conditions[1].message
        assert message.endswith("use previous ones until recreated: ns/a")
        after = dict(world.read_pod("a").metadata.annotations)
        assert after.pop(contract.FORMER_DEVICES)
        assert after == before, "what it was bound with is what its containers get"
        [told] = [text for _, name, reason, text in world.recorder.events if reason == "DevicesReplaced"]
        assert "kubectl delete pod -n ns a" in told
        recreated = await bound(world, "b")
        assert recreated[ANNOTATION] == f"{KIND}=GPU-0,{KIND}=GPU-2"
        report(world)
        await asyncio.sleep(BINDS_OVER_SECONDS + 30)
        assert [device.index for device in free_on(ledger(world))] == [3], "a's containers may open device 1"
        assert world.recorder.reasons("a") == ["DevicesReplaced"], "once"
        world.end("a")
        await soon(lambda: [device.index for device in free_on(ledger(world))] == [1, 3], BINDS_OVER_SECONDS)
        await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"))


@in_virtual_time
async def test_a_ledger_lost_after_such_a_rebind_names_the_newer_devices_again() -> None:
    """The pod that keeps former ones says so itself."""
    async with led_world() as world:
        await a_node_with(world, KIND)
        world.group("team")
        await bound(world, "a")
        report(world, 1)
        await ask_for_others(world.cluster, "team")
        await soon(lambda: contract.FORMER_DEVICES in world.read_pod("a").metadata.annotations)
        await bound(world, "b")
        world.cluster.remove(NODE_DEVICES, "n1")
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 3)
        [claim] = ledger(world).claims.values()
        assert [device.uuid for device in claim.devices] == ["GPU-0", "GPU-2"]
        assert [device.uuid for device in claim.former] == ["GPU-1"]


@in_virtual_time
async def test_a_pod_bound_by_variable_is_told_by_variable_on_a_node_that_changed() -> None:
    """Its sandbox has no annotation that a plugin could read; the runtime reads the variable at each start."""
    async with led_world(labels={contract.MODE_LABEL: contract.MODE_SHARED, contract.HANDOVER_LABEL: "uuid"}) as world:
        await a_node_with(world, "uuid")
        world.group("team")
        await bound(world, "a")
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": {contract.HANDOVER_LABEL: "cdi"}}})
        await soon(lambda: ledger(world).status.handover == {"nvidia": KIND})
        report(world, 1)
        await ask_for_others(world.cluster, "team")
        wanted = f"{KIND}=GPU-0,{KIND}=GPU-2"
        await soon(lambda: world.read_pod("a").metadata.annotations[VARIABLE] == wanted)
