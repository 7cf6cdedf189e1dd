"""Rebinds by a leading controller, over the model API server in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import replacement
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Unavailable
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.domain.objects import GPU, free_on
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time, now


def report(world: World, *broken: int, node: str = "n1", devices: int = 4, boot: str = "") -> None:
    """What the node's agent says."""
    parts = [Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79" if n in broken else "") for n in range(devices)]
    world.cluster.edit(
        NODE_DEVICES, node, {"status": {"hardware": msgspec.to_builtins(Hardware(boot_id=boot, devices=parts))}}
    )


def ask(world: World, group: str, token: str = "request-1") -> None:
    """As `deviceshare rebind` does."""
    world.cluster.edit(GROUPS, group, {"metadata": {"annotations": {contract.REBIND: token}}})


async def a_bound_group(world: World, name: str = "team", pod: str = "a") -> None:
    await soon(lambda: world.open("n1"))
    report(world)
    world.group(name)
    world.pod(pod, name)
    await world.bind(pod, "n1")


def claim(world: World) -> Any:
    return next(iter(world.ledger("n1").claims.values()))


def numbers(devices: Any) -> list[int]:
    return [device.index for device in devices]


@in_virtual_time
async def test_a_broken_device_is_replaced_and_the_pods_are_updated() -> None:
    """The healthy one stays; what was replaced goes to nobody until the pod that had it has ended."""
    async with led_world() as world:
        await a_bound_group(world)
        report(world, 1)
        await soon(lambda: world.condition("team", "Healthy") == ("False", "DevicesUnhealthy"))
        ask(world, "team")
        await soon(lambda: claim(world).rebound == "request-1")
        assert (numbers(claim(world).devices), numbers(claim(world).former)) == ([0, 2], [1])
        await soon(lambda: numbers(world.read_pod("a").devices) == [0, 2])
        pod = world.read_pod("a")
        assert pod.former == (Device(GPU, 1, "GPU-1"),)
        assert pod.metadata.annotations[vendors.NVIDIA.annotation] == "GPU-0,GPU-2"
        await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"))
        assert world.read_group("team").status.selected_devices == {GPU: "0,2"}
        assert "Rebound" in world.recorder.reasons("team")
        assert "DevicesReplaced" in world.recorder.reasons("a")
        report(world)
        await asyncio.sleep(BINDS_OVER_SECONDS + 30)
        assert numbers(free_on(world.ledger("n1"))) == [3]
        world.end("a")
        await soon(lambda: numbers(free_on(world.ledger("n1"))) == [1, 3])
        assert world.holders("n1") == {"team": "0,2"}


@in_virtual_time
async def test_what_no_pod_ever_had_stays_reserved_until_binds_are_over() -> None:
    """A bind may have read the claim before it was changed, and its Binding is still on its way."""
    async with led_world() as world:
        await a_bound_group(world)
        world.end("a")
        report(world, 0)
        ask(world, "team")
        await soon(lambda: claim(world).rebound == "request-1")
        asked = now()
        await soon(lambda: not claim(world).former, BINDS_OVER_SECONDS + 2)
        assert now() >= asked + BINDS_OVER_SECONDS - 0.1


@in_virtual_time
async def test_a_pod_whose_binding_was_late_is_told_too() -> None:
    """It got the devices that its bind had read."""
    async with led_world() as world:
        await a_bound_group(world)
        late = world.pod("b", "team")
        annotations = dict(world.read_pod("a").metadata.annotations) | {contract.POD_UID: late.metadata.uid}
        report(world, 0)
        ask(world, "team")
        await soon(lambda: claim(world).rebound == "request-1")
        await asyncio.sleep(5)
        body = {"spec": {"nodeName": "n1"}, "metadata": {"annotations": annotations}}
        world.cluster.edit(PODS, "b", body, "ns")
        await soon(lambda: replacement.is_current(world.read_pod("b"), world.ledger("n1"), claim(world)))
        world.end("a")
        await asyncio.sleep(BINDS_OVER_SECONDS + 2)
        assert numbers(claim(world).former) == [0], "the late pod had it"


@in_virtual_time
async def test_a_request_that_nothing_can_answer_is_answered_once() -> None:
    """All or nothing, and the reason is told; a device that comes free later changes nothing by itself."""
    async with led_world(2) as world:
        await a_bound_group(world)
        report(world, 1, devices=2)
        ask(world, "team")
        await soon(lambda: claim(world).rebound == "request-1")
        assert numbers(claim(world).devices) == [0, 1]
        assert "RebindImpossible" in world.recorder.reasons("team")
        message = next(text for _, _, reason, text in world.recorder.events if reason == "RebindImpossible")
        assert f"needs 1 healthy {GPU} to replace 1, but node n1 has 0 free" in message
        ask(world, "team", "request-2")
        await soon(lambda: claim(world).rebound == "request-2")


@in_virtual_time
async def test_a_group_whose_devices_are_well_keeps_them() -> None:
    """The request is answered all the same, so that whoever asked needn't wait."""
    async with led_world() as world:
        await a_bound_group(world)
        ask(world, "team")
        await soon(lambda: claim(world).rebound == "request-1")
        assert (numbers(claim(world).devices), claim(world).former) == ([0, 1], [])
        assert "RebindNotNeeded" in world.recorder.reasons("team")


@in_virtual_time
async def test_devices_that_a_plugin_gave_away_unknown_which_replace_nothing() -> None:
    """Any of them may be another pod's."""
    async with led_world() as world:
        await a_bound_group(world)
        world.fleet.set_plugin_pods("n1", {"uid-of-plain": frozenset([GPU])})
        report(world, 1)
        ask(world, "team")
        await soon(lambda: "RebindImpossible" in world.recorder.reasons("team"))
        assert numbers(claim(world).devices) == [0, 1]


@pytest.mark.parametrize("first", ["node", "agent"])
@in_virtual_time
async def test_a_node_that_was_started_anew_waits_for_its_agent(first: str) -> None:
    """Until it reports again, a number may be another device's. Two watches show the two, in any order."""
    async with led_world() as world:
        await a_bound_group(world)
        boots: dict[str, Callable[[str], None]] = {
            "node": lambda boot: world.cluster.edit(NODES, "n1", {"status": {"nodeInfo": {"bootID": boot}}}),
            "agent": lambda boot: report(world, 1, boot=boot),
        }
        for tell in boots.values():
            tell("before")
        boots.pop(first)("after")
        await asyncio.sleep(1)
        ask(world, "team")
        await asyncio.sleep(30)
        assert not claim(world).rebound
        for tell in boots.values():
            tell("after")
        await soon(lambda: numbers(claim(world).devices) == [0, 2])


@in_virtual_time
async def test_the_next_leader_goes_on_where_the_last_one_died() -> None:
    """After the claim was written, before any pod was told."""
    async with led_world() as world:
        await a_bound_group(world)
        report(world, 1)
        world.cluster.fail = lambda verb, plural, name: (
            Unavailable("dying") if (verb, plural) == ("patch", "pods") else None
        )
        ask(world, "team")
        await soon(lambda: numbers(claim(world).former) == [1])
    successor = world.successor()
    async with successor.leading():
        await soon(lambda: numbers(successor.read_pod("a").devices) == [0, 2])
        successor.end("a")
        await soon(lambda: not claim(successor).former, BINDS_OVER_SECONDS + 2)


@in_virtual_time
async def test_a_group_deleted_in_the_middle_still_has_its_pods_told() -> None:
    """Its claim is kept for them, with what they had before."""
    async with led_world() as world:
        await a_bound_group(world)
        report(world, 1)
        ask(world, "team")
        await soon(lambda: numbers(claim(world).former) == [1])
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: numbers(world.read_pod("a").devices) == [0, 2])
        await soon(lambda: world.holders("n1") == {"team": "0,2*"})
        await asyncio.sleep(BINDS_OVER_SECONDS + 2)
        assert numbers(claim(world).former) == [1]
        world.end("a")
        await soon(lambda: world.holders("n1") == {})


@in_virtual_time
async def test_a_ledger_lost_after_a_rebind_comes_back_with_the_former_devices() -> None:
    """From what the pods say, once nobody can be telling them anything else."""
    async with led_world() as world:
        await a_bound_group(world)
        report(world, 1)
        ask(world, "team")
        await soon(lambda: numbers(world.read_pod("a").devices) == [0, 2])
        world.cluster.remove(NODE_DEVICES, "n1")
        lost = now()
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 3)
        assert now() >= lost + BINDS_OVER_SECONDS
        assert (numbers(claim(world).devices), numbers(claim(world).former)) == ([0, 2], [1])


@in_virtual_time
async def test_a_pod_with_devices_of_others_is_not_told_anything() -> None:
    """Nobody knows how it came by them; it is reported."""
    async with led_world() as world:
        await a_bound_group(world)
        ask(world, "team")
        forged = {contract.SELECTED_DEVICES: f'{{"{GPU}":"3"}}', vendors.NVIDIA.annotation: "GPU-3"}
        world.cluster.edit(PODS, "a", {"metadata": {"annotations": forged}}, "ns")
        await soon(lambda: "DevicesNotHeld" in world.recorder.reasons("a"), 5)
        pod: Pod = world.read_pod("a")
        assert numbers(pod.devices) == [3]


@in_virtual_time
async def test_a_pod_that_refuses_to_be_updated_holds_up_no_other() -> None:
    """The first of two pods can't be written; it is told what it missed once it can be."""
    async with led_world() as world:
        await a_bound_group(world)
        world.pod("b", "team")
        await world.bind("b", "n1")
        world.cluster.refusing["a"] = True
        report(world, 1)
        ask(world, "team")
        await soon(lambda: numbers(world.read_pod("b").devices) == [0, 2])
        await asyncio.sleep(60)
        assert (numbers(world.read_pod("a").devices), numbers(claim(world).former)) == ([0, 1], [1])
        assert "CannotBeWritten" in world.recorder.reasons("a")
        del world.cluster.refusing["a"]
        await soon(lambda: numbers(world.read_pod("a").devices) == [0, 2], 21)
