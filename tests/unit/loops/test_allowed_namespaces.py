"""Pods of namespaces that their group doesn't allow: never bound, and tried again once they are."""

import asyncio
from typing import Any

from deviceshare.domain import contract
from deviceshare.loops.kinds import GROUPS, NAMESPACES, NODE_DEVICES
from deviceshare.loops.ports import ApiError
from deviceshare.loops.protocol.bind import Refused
from tests.unit.loops.gated_world import gated, gated_world, here, messages
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time

VISION: dict[str, Any] = {"from": "Selector", "selector": {"matchLabels": {"team": "vision"}}}


async def refusal(world: World, pod: str) -> str:
    """What kube-scheduler is answered that binds the pod to n1."""
    try:
        await world.bind(pod, "n1")
    except (Refused, ApiError) as error:
        return str(error)
    return ""


def woken(world: World, name: str) -> bool:
    return contract.WOKEN_AT in world.read_pod(name).metadata.annotations


@in_virtual_time
async def test_a_bind_of_a_pod_that_may_not_join_writes_nothing() -> None:
    """Whatever filter said a moment ago: no claim, no group, no Binding; by a name or by labels, known or not."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("named", allowedNamespaces={"from": "Selector", "names": ["other"], "message": "ask ada"})
        world.group("labelled", allowedNamespaces=VISION)
        world.pod("a", "named")
        world.pod("b", "labelled")
        await asyncio.sleep(1)
        assert "takes no pods of namespace ns" in await refusal(world, "a")
        assert "its owner says: ask ada" in await refusal(world, "a")
        assert "are not known yet" in await refusal(world, "b")
        world.cluster.put(NAMESPACES, {"metadata": {"name": "ns", "labels": {"team": "speech"}}})
        await asyncio.sleep(1)
        assert "takes no pods of namespace ns" in await refusal(world, "b")
        assert world.cluster.bindings == []
        ledger = world.cluster.read(NODE_DEVICES, "n1")
        assert ledger is not None
        assert not ledger.claims
        assert not world.read_group("named").node


@in_virtual_time
async def test_running_pods_stay_when_their_namespace_is_no_longer_allowed() -> None:
    """The next one is refused; the group keeps its devices for those that have them."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        world.pod("b", "team")
        assert await refusal(world, "a") == ""
        world.cluster.edit(GROUPS, "team", {"spec": {"allowedNamespaces": {"from": "Selector"}}})
        await asyncio.sleep(60)
        assert "those of no namespace" in await refusal(world, "b")
        assert world.read_pod("a").lives
        assert world.read_group("team").status.allocated_pods == ["ns/a"]


@in_virtual_time
async def test_pods_are_woken_once_their_namespace_is_allowed() -> None:
    """By a change of the group, or of the namespace's labels; not before."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("named", allowedNamespaces={"from": "Selector", "names": ["other"]})
        world.group("labelled", allowedNamespaces=VISION)
        world.pod("a", "named", refused=True)
        world.pod("b", "labelled", refused=True)
        await asyncio.sleep(90)
        assert not woken(world, "a")
        assert not woken(world, "b")
        world.cluster.edit(GROUPS, "named", {"spec": {"allowedNamespaces": {"names": ["other", "ns"]}}})
        await soon(lambda: woken(world, "a"), 1)
        world.cluster.put(NAMESPACES, {"metadata": {"name": "ns", "labels": {"team": "vision"}}})
        await soon(lambda: woken(world, "b"), 1)


@in_virtual_time
async def test_behind_gates_only_allowed_pods_are_placed() -> None:
    """The leader asks the same question, and looks again when the group changes."""
    async with gated_world("n1") as world:
        world.group("team", allowedNamespaces={"from": "Selector", "names": ["other"]})
        gated(world, "a")
        await soon(lambda: world.recorder.reasons("a") == ["NotPlaced"])
        assert "takes no pods of namespace ns" in messages(world, "a", "NotPlaced")[0]
        world.cluster.edit(GROUPS, "team", {"spec": {"allowedNamespaces": {"names": ["ns"]}}})
        await soon(lambda: here(world, "a"), 3)
