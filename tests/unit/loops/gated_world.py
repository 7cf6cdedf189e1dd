"""A cluster whose leader places pods behind scheduling gates, in virtual time, and what kube-scheduler does there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import NODES, PODS
from tests.unit.domain.objects import GPU, INJECTED
from tests.unit.loops.live import World, soon

GATE: dict[str, Any] = {"schedulingGates": [{"name": contract.PLACEMENT_GATE}]}


def a_host(world: World, name: str, devices: int = 4, cpu: int = 8, **spec: Any) -> None:
    have = {GPU: str(devices), "cpu": str(cpu), "pods": "10"}
    meta = {"name": name, "labels": {contract.MODE_LABEL: contract.MODE_SHARED}}
    status = {"allocatable": have, "conditions": [{"type": "Ready", "status": "True"}]}
    world.cluster.put(NODES, {"metadata": meta, "spec": spec, "status": status})


@asynccontextmanager
async def gated_world(*nodes: str) -> AsyncIterator[World]:
    """Two nodes unless told otherwise, and a leader that places pods."""
    world = World(gates=True)
    for name in nodes or ("n1", "n2"):
        a_host(world, name)
    async with world.leading():
        for name in nodes or ("n1", "n2"):
            await soon(partial(world.open, name))
        yield world


def gated(world: World, name: str, group: str = "team", cpu: str = "1", **more: Any) -> Pod:
    container = {"name": "main", "env": INJECTED, "resources": {"requests": {"cpu": cpu}}}
    return world.pod(name, group, containers=[container], **GATE, **more)


def owned(world: World, name: str, owner: str = "rs") -> None:
    """By a controller, which recreates it."""
    reference = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
    world.cluster.edit(PODS, name, {"metadata": {"ownerReferences": reference}}, "ns")


def refuse(world: World, name: str, why: str = "no free ports", **status: Any) -> None:
    """As kube-scheduler does where nothing fits, or (`reason`) where it failed itself."""
    reason = status.pop("reason", "Unschedulable")
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": why}
    world.cluster.edit(PODS, name, {"status": {"conditions": [condition], **status}}, "ns")


def bind(world: World, name: str) -> None:
    """As kube-scheduler does where the pod fits."""
    world.cluster.edit(PODS, name, {"spec": {"nodeName": world.read_pod(name).placed_on}}, "ns")


def messages(world: World, name: str, reason: str) -> list[str]:
    return [text for _, about, why, text in world.recorder.events if (about, why) == (name, reason)]


def exists(world: World, name: str) -> bool:
    return world.cluster.read(PODS, name, "ns") is not None


def here(world: World, name: str) -> str:
    return world.read_pod(name).placed_on


def marked(world: World, node: str) -> bool:
    """Whether the one claim there is being released."""
    [claim] = world.ledger(node).claims.values()
    return bool(claim.releasing)


async def place(world: World, *names: str) -> None:
    """These pods join the group `team` behind the gate, and the leader places them."""
    world.group("team")
    for name in names:
        gated(world, name)
    await soon(lambda: all(here(world, name) for name in names))
