"""A deletion with the policy AfterLastPod lets nobody join, ends the group with its last pod, and survives leaders."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import AFTER_LAST_POD, GroupLife
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Unavailable
from deviceshare.loops.protocol.bind import Refused
from tests.unit.loops.live import LiveCluster, World, a_bound_group, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

OURS, OTHERS = contract.PODS_FINALIZER, "example.com/backup"


class FinalizingCluster(LiveCluster):
    """As the API server, it removes an object that is being deleted once it has no finalizers."""

    def edit(self, kind: Any, name: str, patch: Any, namespace: str = "") -> None:
        super().edit(kind, name, patch, namespace)
        meta = self.objects[kind.plural].get(self._key(name, namespace), {}).get("metadata", {})
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            self.remove(kind, name, namespace)


def deleted(world: World, name: str = "team") -> None:
    """kubectl delete, where admission lets it pass."""
    world.cluster.edit(GROUPS, name, {"metadata": {"deletionTimestamp": "2026-11-22T12:00:00Z"}})


def finalizers(world: World) -> list[str]:
    return world.read_group("team").metadata.finalizers


def _has(world: World, wanted: list[str]) -> bool:
    return finalizers(world) == wanted


def gone(world: World) -> bool:
    return world.cluster.read(GROUPS, "team") is None and world.holders("n1") == {}


@asynccontextmanager
async def a_kept_group(
    life: GroupLife = GroupLife(),  # noqa: B008 it is frozen
    policy: str = AFTER_LAST_POD,
    *,
    compares: bool = False,
) -> AsyncIterator[World]:
    """The group team on node n1 with the pod a, and the finalizer."""
    world = World(FinalizingCluster(), life=life, compares=compares)
    world.node("n1")
    async with world.leading():
        await a_bound_group(world)
        world.cluster.edit(GROUPS, "team", {"spec": {"deletionPolicy": policy}})
        await soon(lambda: finalizers(world) == [OURS])
        await asyncio.sleep(1)  # The leader has read the answer to its write.
        yield world


@in_virtual_time
async def test_the_finalizer_follows_the_policy() -> None:
    """Others' finalizers stay. The setting holds for groups that say nothing."""
    async with a_kept_group() as world:
        world.cluster.edit(GROUPS, "team", {"metadata": {"finalizers": [OTHERS, OURS]}})
        for policy, wanted in (
            ("Refuse", [OTHERS]),
            (AFTER_LAST_POD, [OTHERS, OURS]),
            ("Refuse", [OTHERS]),
            (None, [OTHERS, OURS]),
        ):
            world.cluster.edit(GROUPS, "team", {"spec": {"deletionPolicy": policy}})
            await soon(partial(_has, world, wanted))
        await asyncio.sleep(5)  # summaries
        before = len(world.cluster.requests)
        await asyncio.sleep(60)
        assert world.cluster.requests[before:] == []
        assert world.read_group("team").status.allocated_pods == ["ns/a"]
    async with a_kept_group(GroupLife(deletion_policy="Refuse")) as world:
        world.cluster.edit(GROUPS, "team", {"spec": {"deletionPolicy": None}})
        await soon(partial(_has, world, []))


@in_virtual_time
async def test_the_finalizer_comes_when_the_group_is_bound() -> None:
    """Before, no pod uses it, and the write would meet the first bind."""
    world = World(FinalizingCluster())
    world.node("n1")
    world.group("team")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        await asyncio.sleep(60)
        assert finalizers(world) == []
        world.pod("a", "team")
        await world.bind("a", "n1")
        await soon(lambda: finalizers(world) == [OURS], 1)


@in_virtual_time
async def test_a_deleted_group_ends_with_its_last_pod() -> None:
    """Until then it is Terminating and says so; nobody joins."""
    async with a_kept_group() as world:
        world.pod("b", "team")
        await world.bind("b", "n1")
        deleted(world)
        await soon(lambda: world.read_group("team").status.phase == "Terminating")
        assert "it is being deleted and takes no pods" in world.message("team")
        world.pod("late", "team")
        with pytest.raises(Refused, match="group team is being deleted and takes no pods"):
            await world.bind("late", "n1")
        assert not world.read_pod("late").node
        world.end("a")
        await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1"}
        world.end("b")
        await soon(lambda: gone(world), 60)
        assert "Deleted" in world.recorder.reasons("team")


@in_virtual_time
async def test_without_waiting_pods_it_ends_at_once() -> None:
    """Nothing has to be waited out."""
    async with a_kept_group() as world:
        deleted(world)
        await asyncio.sleep(5)
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: world.cluster.read(GROUPS, "team") is None, 3)
        await soon(lambda: gone(world), 3)


@pytest.mark.parametrize(("compares", "within"), [(True, 1), (False, 14)])
@in_virtual_time
async def test_a_waiting_pod_delays_the_end_only_where_its_binds_are_to_be_waited_out(
    compares: bool, within: float
) -> None:
    """API servers before 1.23 don't compare the version in a Binding."""
    async with a_kept_group(compares=compares) as world:
        world.pod("waits", "team", refused=True)
        deleted(world)
        await asyncio.sleep(5)
        world.cluster.remove(PODS, "a", "ns")
        began = now()
        await soon(lambda: world.cluster.read(GROUPS, "team") is None, 60)
        assert within - 1 <= now() - began <= within


@in_virtual_time
async def test_a_group_that_no_pod_ever_used_ends_at_once() -> None:
    """It has no node."""
    async with a_kept_group() as world:
        world.cluster.put(GROUPS, {"metadata": {"name": "new", "finalizers": [OURS]}, "spec": {"resources": {}}})
        deleted(world, "new")
        await soon(lambda: world.cluster.read(GROUPS, "new") is None, 0.5)


@in_virtual_time
async def test_a_bind_under_way_keeps_the_group() -> None:
    """Its Binding lands after the leader has looked at its mirror."""
    async with a_kept_group() as world:
        pods = world.cluster.mirrors[PODS.plural]
        world.pod("b", "team")
        await asyncio.sleep(1)
        pods.deaf = True
        await world.bind("b", "n1")
        deleted(world)
        pods.set("ns/a", None)
        world.cluster.remove(PODS, "a", "ns")
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"
        assert world.holders("n1") == {"team": "0,1"}
        pods.deaf = False
        pods.set("ns/b", world.read_pod("b"))
        world.end("b")
        await soon(lambda: gone(world), 60)


@in_virtual_time
async def test_a_group_whose_ledger_is_gone_for_good_ends_all_the_same() -> None:
    """Its node was deleted, and nobody recreates the ledger."""
    async with a_kept_group() as world:
        deleted(world)
        world.cluster.remove(NODES, "n1")
        world.cluster.remove(NODE_DEVICES, "n1")
        await asyncio.sleep(5)
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: world.cluster.read(GROUPS, "team") is None, 60)


@in_virtual_time
async def test_a_policy_that_changes_while_pods_still_run_ends_no_group_under_them() -> None:
    """What was accepted is kept."""
    async with a_kept_group() as world:
        deleted(world)
        world.cluster.edit(GROUPS, "team", {"spec": {"deletionPolicy": "Refuse"}})
        await asyncio.sleep(60)
        assert finalizers(world) == [OURS]
        world.end("a")
        await soon(lambda: gone(world), 5)


@in_virtual_time
async def test_leaders_that_stop_between_any_two_writes_are_followed_by_one_that_ends_the_group() -> None:
    """After the mark, after the group lost its node, after the claim was dropped."""
    for many in range(3):
        async with a_kept_group() as world:
            deleted(world)
            await asyncio.sleep(5)
            left = [many]

            def fail(verb: str, plural: str, name: str, left: list[int] = left) -> Unavailable | None:
                if verb != "patch":
                    return None
                left[0] -= 1
                return Unavailable("down") if left[0] < 0 else None

            world.cluster.fail = fail
            world.cluster.remove(PODS, "a", "ns")
            await asyncio.sleep(30)
            assert world.cluster.read(GROUPS, "team")
        next_world = world.successor(FinalizingCluster())
        async with next_world.leading():
            await soon(partial(gone, next_world), 60)


@in_virtual_time
async def test_a_group_that_somebody_else_keeps_is_shown_as_ending_without_pods() -> None:
    """It has left its node, and its status names no pods any more."""
    async with a_kept_group() as world:
        world.cluster.edit(GROUPS, "team", {"metadata": {"finalizers": [OTHERS, OURS]}})
        deleted(world)
        world.cluster.remove(PODS, "a", "ns")
        await soon(partial(_has, world, [OTHERS]))
        await soon(lambda: world.holders("n1") == {})
        await asyncio.sleep(5)
        status = world.read_group("team").status
        assert (status.phase, status.node_name, status.allocated_pods) == ("Terminating", "", [])


@in_virtual_time
async def test_a_finalizer_that_somebody_removed_leaves_it_as_it_was_without() -> None:
    """The claim stays until the pods have ended."""
    async with a_kept_group() as world:
        deleted(world)
        world.cluster.edit(GROUPS, "team", {"metadata": {"finalizers": None}})
        await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1*"}
        world.end("a")
        await soon(lambda: gone(world), 5)


@in_virtual_time
async def test_a_group_that_ended_is_not_put_back_into_the_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch may have told of its end before the write that ends it is answered."""
    async with a_kept_group() as world:
        put = list[Any]()
        monkeypatch.setattr(world.cluster.mirrors[GROUPS.plural], "put", put.append)
        deleted(world)
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: gone(world))
    assert "" not in world.recorder.reasons("team")
    assert [group for group in put if group.deleting and not group.metadata.finalizers] == []
