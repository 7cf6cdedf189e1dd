"""Groups on lost nodes: who moves, who stays, and what people are told meanwhile."""

import asyncio
from typing import Any

import pytest

from deviceshare.domain.objects.nodes import OUT_OF_SERVICE
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.leader.releaser import LOOK_SECONDS
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.loops.live import World, a_bound_group, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time

MOVE = {"spec": {"nodeLossPolicy": "Move"}}


async def a_settled_group(world: World) -> None:
    """As `a_bound_group`, and no news of it is under way."""
    await a_bound_group(world)
    await asyncio.sleep(1)


def lose(world: World, *, gone: bool) -> None:
    """The node is deleted, and its ledger stays; or somebody says that it is down."""
    if gone:
        world.cluster.remove(NODES, "n1")
    else:
        taint = {"key": OUT_OF_SERVICE, "effect": "NoSchedule"}
        world.cluster.edit(NODES, "n1", {"spec": {"taints": [taint]}})


@pytest.mark.parametrize("gone", [True, False])
@in_virtual_time
async def test_a_group_leaves_its_lost_node_once_its_pods_are_gone(gone: bool) -> None:
    """Without waiting for binds where no pod waits; then its next pod binds it elsewhere."""
    async with led_world() as world:
        await a_settled_group(world)
        world.cluster.edit(GROUPS, "team", MOVE)
        lose(world, gone=gone)
        await soon(lambda: "leaves it once these pods are deleted: ns/a" in world.message("team", "Healthy"))
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: not world.read_group("team").node)
        await soon(lambda: world.condition("team", "Bound") == ("False", "Released"))
        await soon(lambda: world.condition("team", "Ready") == ("True", "Released"))
        what = "is gone" if gone else "is out of service"
        assert ("LeftNode", f"left node n1, which {what}; its next pod binds it again") in [
            (reason, text) for _, name, reason, text in world.recorder.events if name == "team"
        ]
        world.node("n2")
        await soon(lambda: world.open("n2"))
        world.pod("b", "team")
        await world.bind("b", "n2")
        await soon(lambda: world.condition("team", "Ready") == ("True", "Claimed"))
        assert world.released == 0, "it wasn't idle"
        # Nothing is left of the node that is gone.
        await soon(lambda: world.cluster.read(NODE_DEVICES, "n1") is None or not gone)


@in_virtual_time
async def test_a_pending_pod_does_not_keep_a_group_on_a_lost_node() -> None:
    """It waits for that node; its bind may be under way, so that is waited out."""
    async with led_world() as world:
        await a_settled_group(world)
        world.pod("b", "team", refused=True)
        world.cluster.edit(GROUPS, "team", MOVE)
        world.cluster.remove(PODS, "a", "ns")
        lose(world, gone=True)
        await asyncio.sleep(BINDS_OVER_SECONDS / 2)
        assert world.read_group("team").node == "n1"
        await soon(lambda: not world.read_group("team").node, BINDS_OVER_SECONDS)


@in_virtual_time
async def test_a_group_leaves_a_node_that_is_lost_after_it_was_no_longer_shared() -> None:
    """The mirror, which holds shared nodes only, says nothing of its end."""
    async with led_world() as world:
        await a_settled_group(world)
        world.cluster.edit(GROUPS, "team", MOVE)
        nodes = world.cluster.mirrors[NODES.plural]
        nodes.deaf = True
        nodes.set("n1", None)
        world.cluster.remove(PODS, "a", "ns")
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"
        lose(world, gone=True)
        await soon(lambda: not world.read_group("team").node, LOOK_SECONDS)


@in_virtual_time
async def test_a_group_that_stays_says_how_it_gets_away() -> None:
    """And leaves as soon as its policy says so."""
    async with led_world() as world:
        await a_settled_group(world)
        world.cluster.remove(PODS, "a", "ns")
        lose(world, gone=True)
        await soon(lambda: world.condition("team", "Ready") == ("False", "NodeGone"))
        patch = 'kubectl patch sdg team --type=merge -p \'{"spec":{"nodeLossPolicy":"Move"}}\''
        assert world.message("team", "Healthy") == (
            "node n1 is gone: delete and recreate the group (kubectl delete sdg team)"
            f"; or let it move ({patch}); or bring the node back"
        )
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"
        world.cluster.edit(GROUPS, "team", MOVE)
        await soon(lambda: not world.read_group("team").node)


@in_virtual_time
async def test_a_node_that_is_only_not_ready_keeps_its_groups() -> None:
    """The text says what to do if the machine is down for good."""
    async with led_world() as world:
        await a_settled_group(world)
        world.cluster.edit(GROUPS, "team", MOVE)
        world.cluster.remove(PODS, "a", "ns")
        not_ready: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "Unknown"}]}
        world.cluster.edit(NODES, "n1", {"status": not_ready})
        await soon(lambda: world.condition("team", "Healthy") == ("False", "NodeNotReady"))
        assert f"kubectl taint node n1 {OUT_OF_SERVICE}=nodeshutdown:NoExecute" in world.message("team", "Healthy")
        await asyncio.sleep(120)
        assert world.read_group("team").node == "n1"


@in_virtual_time
async def test_a_node_that_comes_back_in_time_keeps_its_groups() -> None:
    """The mark is taken away, and pods join again."""
    async with led_world() as world:
        await a_settled_group(world)
        world.cluster.edit(GROUPS, "team", MOVE)
        world.pod("b", "team", refused=True)
        world.cluster.remove(PODS, "a", "ns")
        lose(world, gone=False)
        await soon(lambda: world.holders("n1") == {"team": "0,1*"})
        world.cluster.edit(NODES, "n1", {"spec": None})
        await soon(lambda: world.holders("n1") == {"team": "0,1"}, 5)
        await world.bind("b", "n1")
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"


@in_virtual_time
async def test_a_node_out_of_service_gets_no_group() -> None:
    """Whatever the effect of the taint: kube-scheduler would only prefer others."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        taint = {"key": OUT_OF_SERVICE, "effect": "PreferNoSchedule"}
        world.cluster.edit(NODES, "n1", {"spec": {"taints": [taint]}})
        group = world.group("team")
        await asyncio.sleep(1)
        reason = world.fleet.filter(group.request, ["n1"]).reasons["n1"]
        assert reason.kind == "NodeOutOfService"
        assert f"kubectl taint node NODE {OUT_OF_SERVICE}-" in str(reason)


# Cordoned nodes.

CORDON = {"spec": {"unschedulable": True}}
TOLERATION = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}


async def a_drained_group(world: World, **spec: Any) -> None:
    """The group team on the node n1, whose only pod was evicted when that was cordoned; n2 has room."""
    await a_settled_group(world)
    world.cluster.edit(GROUPS, "team", {"spec": spec})
    world.node("n2")
    await soon(lambda: world.open("n2"))
    world.cluster.edit(NODES, "n1", CORDON)
    world.cluster.remove(PODS, "a", "ns")
    await asyncio.sleep(1)


@in_virtual_time
async def test_a_group_follows_a_waiting_pod_off_its_cordoned_node() -> None:
    """Once binds under way are over; before a pod waits it stays."""
    async with led_world() as world:
        await a_drained_group(world)
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"
        assert "it is cordoned: no pod goes there until kubectl uncordon n1" in world.message("team", "Healthy")
        world.pod("b", "team", refused=True)
        await soon(lambda: not world.read_group("team").node, BINDS_OVER_SECONDS + 5)
        await asyncio.sleep(1)
        assert world.holders("n1") == {}
        assert ("LeftNode", "left node n1, which is cordoned, for a pod that waits") in [
            (reason, text) for _, name, reason, text in world.recorder.events if name == "team"
        ]
        await world.bind("b", "n2")
        await soon(lambda: world.condition("team", "Ready") == ("True", "Claimed"))


@pytest.mark.parametrize(
    "why",
    ["a pod runs there", "its policy", "the pod tolerates it", "the pod fits nowhere else", "the others are tainted"],
)
@in_virtual_time
async def test_a_group_stays_on_its_cordoned_node(why: str) -> None:
    """It would win nothing, or doesn't want to."""
    async with led_world() as world:
        await a_drained_group(world, **({"cordonPolicy": "Stay"} if why == "its policy" else {}))
        if why == "a pod runs there":
            world.pod("c", "team")
            await world.bind("c", "n1")
        if why == "the others are tainted":
            world.cluster.edit(NODES, "n2", {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})
        more: dict[str, dict[str, Any]] = {
            "the pod tolerates it": {"tolerations": [TOLERATION]},
            "the pod fits nowhere else": {"nodeSelector": {"kubernetes.io/hostname": "n1"}},
        }
        world.pod("b", "team", refused=True, **more.get(why, {}))
        await asyncio.sleep(BINDS_OVER_SECONDS + 60)
        assert world.read_group("team").node == "n1"


@in_virtual_time
async def test_a_group_leaves_its_cordoned_node_when_another_has_room() -> None:
    """Of which nothing tells, so it is looked at again."""
    async with led_world() as world:
        await a_settled_group(world)
        world.cluster.edit(NODES, "n1", CORDON)
        world.cluster.remove(PODS, "a", "ns")
        world.pod("b", "team", refused=True)
        await asyncio.sleep(BINDS_OVER_SECONDS + 60)
        assert world.read_group("team").node == "n1"
        world.node("n2")
        await soon(lambda: not world.read_group("team").node, BINDS_OVER_SECONDS + LOOK_SECONDS + 5)
