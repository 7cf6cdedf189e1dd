"""DeviceQuotas in a cluster with a leader: what is reserved, counted, given back, and who is woken by it."""

import asyncio
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, PODS
from deviceshare.loops.leader.controller import allows_no_more
from deviceshare.loops.ports import ApiError
from deviceshare.loops.protocol.bind import Refused
from tests.unit.domain.objects import AMD, GPU
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

VISION = {"team": "vision"}


def put_quota(world: World, hard: int, **selector: Any) -> None:
    spec = {"groupSelector": selector or {"matchLabels": VISION}, "hard": {GPU: hard}}
    world.cluster.put(DEVICE_QUOTAS, {"metadata": {"name": "team"}, "spec": spec})


def counted(world: World) -> str:
    """What kubectl shows of the quota, and the names of the groups that it counts."""
    found = world.cluster.read(DEVICE_QUOTAS, "team")
    assert isinstance(found, DeviceQuota)
    names = sorted(each.name for each in found.status.reservations.values())
    return f"{found.status.summary} {','.join(names)}".strip()


def labelled(world: World, name: str, count: int = 2) -> None:
    spec = {"resources": {GPU: count}}
    world.cluster.put(GROUPS, {"metadata": {"name": name, "labels": VISION}, "spec": spec})


async def bound(world: World, group: str, node: str = "n1") -> str:
    """Makes a pod of the group and binds it; returns why that failed, or ""."""
    world.pod(f"pod-{group}", group)
    await asyncio.sleep(0.5)
    try:
        await world.bind(f"pod-{group}", node)
    except (Refused, ApiError) as error:
        return str(error)
    return ""


@in_virtual_time
async def test_groups_of_two_nodes_share_one_quota() -> None:
    """A bind that filter let pass is refused by what the quota itself says, before anything is claimed."""
    async with led_world() as world:
        world.node("n2")
        await soon(lambda: world.open("n1") and world.open("n2"))
        put_quota(world, 3)
        for name in ("a", "b"):
            labelled(world, name)
        await asyncio.sleep(1)
        world.cluster.mirrors[DEVICE_QUOTAS.plural].deaf = True
        assert await bound(world, "a", "n1") == ""
        assert counted(world) == f"{GPU}: 2/3 a"
        world.cluster.mirrors[DEVICE_QUOTAS.plural].objects.clear()
        assert f"quota team: 2 of 3 {GPU} are held by group a; group b wants 2" in await bound(world, "b", "n2")
        assert world.holders("n2") == {}


@in_virtual_time
async def test_a_group_that_no_quota_counts_costs_no_request_more() -> None:
    """Nor does a further pod of one that is bound."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        put_quota(world, 0)
        world.group("free", 1)
        await asyncio.sleep(1)
        before = len(world.cluster.requests)
        assert await bound(world, "free") == ""
        assert DEVICE_QUOTAS.plural not in {plural for _, plural, _ in world.cluster.requests[before:]}
        put_quota(world, 4)
        labelled(world, "a")
        assert await bound(world, "a") == ""
        before = len(world.cluster.requests)
        world.pod("more", "a")
        await world.bind("more", "n1")
        assert DEVICE_QUOTAS.plural not in {plural for _, plural, _ in world.cluster.requests[before:]}


@in_virtual_time
async def test_a_deleted_group_gives_back_what_it_held_and_waiting_pods_are_woken() -> None:
    """At once, where nothing of it lives; a group whose pods live is counted until they have ended."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        put_quota(world, 2)
        labelled(world, "a")
        labelled(world, "b")
        assert await bound(world, "a") == ""
        world.pod("b", "b", refused=True)
        await soon(lambda: world.condition("b", "Bound") == ("False", "QuotaExceeded"), 10)
        world.cluster.remove(GROUPS, "a")
        await asyncio.sleep(60)
        assert counted(world) == f"{GPU}: 2/2 a"
        assert contract.WOKEN_AT not in world.read_pod("b").metadata.annotations
        world.cluster.remove(PODS, "pod-a", "ns")
        before = now()
        await soon(lambda: contract.WOKEN_AT in world.read_pod("b").metadata.annotations, 20)
        assert counted(world) == f"{GPU}: 0/2"
        assert now() - before < 20


@in_virtual_time
async def test_the_leader_counts_what_was_bound_before_and_forgets_what_no_longer_matches() -> None:
    """A quota that came later may be exceeded; nobody is bound any more until it isn't."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        labelled(world, "a")
        labelled(world, "b")
        assert await bound(world, "a") == ""
        put_quota(world, 1)
        await soon(lambda: counted(world) == f"{GPU}: 2/1 a", 5)
        assert "allows 1" in await bound(world, "b")
        world.cluster.edit(GROUPS, "a", {"metadata": {"labels": {"team": "speech"}}})
        await soon(lambda: counted(world) == f"{GPU}: 0/1", 5)
        world.cluster.edit(GROUPS, "a", {"metadata": {"labels": VISION}})
        await soon(lambda: counted(world) == f"{GPU}: 2/1 a", 5)


@in_virtual_time
async def test_a_reservation_of_a_bind_that_died_is_given_back_once_no_bind_can_use_it() -> None:
    """It claimed nothing, and its pod is still pending."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        put_quota(world, 2)
        labelled(world, "a")
        world.cluster.fail = lambda verb, plural, _: (
            ApiError("the ledger can't be written") if (verb, plural) == ("patch", "nodedevices") else None
        )
        assert "can't be written" in await bound(world, "a")
        assert counted(world) == f"{GPU}: 2/2 a"
        await asyncio.sleep(5)
        assert counted(world) == f"{GPU}: 2/2 a"
        await soon(lambda: counted(world) == f"{GPU}: 0/2", 30)


@in_virtual_time
async def test_a_quota_whose_selector_becomes_faulty_binds_nobody_and_forgets_nobody() -> None:
    """What it counted stays counted, and is right again when the selector is."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        put_quota(world, 4)
        for name in ("a", "b"):
            labelled(world, name)
        world.group("stranger", 1)
        assert await bound(world, "a") == ""
        await soon(lambda: counted(world) == f"{GPU}: 2/4 a")
        faulty = [{"key": "team", "operator": "In"}]
        world.cluster.edit(DEVICE_QUOTAS, "team", {"spec": {"groupSelector": {"matchExpressions": faulty}}})
        await soon(lambda: counted(world).startswith("invalid, so no group is bound: spec.groupSelector"))
        for name in ("b", "stranger"):
            assert "quota team can't be applied (spec.groupSelector" in await bound(world, name)
        assert counted(world).endswith(" a")
        assert world.holders("n1") == {"a": "0,1"}
        world.cluster.edit(DEVICE_QUOTAS, "team", {"spec": {"groupSelector": {"matchExpressions": []}}})
        world.cluster.remove(PODS, "pod-b", "ns")
        assert await bound(world, "b") == ""
        await soon(lambda: counted(world) == f"{GPU}: 4/4 a,b")


@in_virtual_time
async def test_a_group_that_cannot_be_read_keeps_what_it_has_reserved_and_nobody_else_does() -> None:
    """Whether it is bound or not: what it holds is unknown, and others' reservations are given back beside it."""
    async with led_world(6) as world:
        await soon(lambda: world.open("n1"))
        put_quota(world, 6)
        for name in ("a", "b", "c"):
            labelled(world, name)
            assert await bound(world, name) == ""
        await soon(lambda: counted(world) == f"{GPU}: 6/6 a,b,c")
        world.cluster.edit(GROUPS, "a", {"spec": {"resources": {GPU: "many"}}})
        world.cluster.edit(GROUPS, "b", {"status": {"nodeName": ["n1"]}})
        await asyncio.sleep(20)
        assert counted(world) == f"{GPU}: 6/6 a,b,c"
        for name in ("b", "c"):
            world.cluster.remove(PODS, f"pod-{name}", "ns")
        world.cluster.remove(GROUPS, "c")
        await soon(lambda: counted(world) == f"{GPU}: 4/6 a,b", 20)


NOT_COUNTED = (
    "quota team has not been counted since it was created or changed: until the leader does, it lets no group have "
    + GPU
)


@in_virtual_time
async def test_a_quota_that_was_not_counted_yet_lets_nobody_be_bound() -> None:
    """Nobody leads when it is created, changed or wiped: what groups hold by then is not in its status."""
    world = World()
    world.node("n1")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        labelled(world, "a", 1)
        assert await bound(world, "a") == ""
    labelled(world, "b", 1)
    world.group("stranger", 1)
    put_quota(world, 1, matchLabels={"team": "speech"})
    assert await bound(world, "stranger") == ""
    world.cluster.edit(DEVICE_QUOTAS, "team", {"spec": {"groupSelector": {"matchLabels": VISION}}})
    assert await bound(world, "b") == NOT_COUNTED
    held = f"quota team: 1 of 1 {GPU} are held by group a; group b wants 1"
    for spoil in ({"status": None}, {"spec": {"hard": {GPU: 1, AMD: 1}}}):
        async with world.leading():
            await soon(lambda: counted(world).endswith(f"{GPU}: 1/1 a"))
        assert held in await bound(world, "b")
        world.cluster.edit(DEVICE_QUOTAS, "team", spoil)
        assert await bound(world, "b") == NOT_COUNTED
    assert world.holders("n1").keys() == {"a", "stranger"}


@in_virtual_time
async def test_pods_that_waited_for_a_count_are_woken_by_it() -> None:
    """When the spec changes they don't fit yet; kube-scheduler would retry them after minutes."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        put_quota(world, 0)
        labelled(world, "b")
        world.pod("b", "b", refused=True)
        await soon(lambda: world.condition("b", "Bound") == ("False", "QuotaExceeded"), 10)
        world.cluster.fail = lambda verb, plural, _: (
            ApiError("no") if (verb, plural) == ("patch", DEVICE_QUOTAS.plural) else None
        )
        world.cluster.edit(DEVICE_QUOTAS, "team", {"spec": {"hard": {GPU: 2}}})
        await asyncio.sleep(60)
        assert contract.WOKEN_AT not in world.read_pod("b").metadata.annotations
        assert world.message("b") == NOT_COUNTED
        before = world.cluster.read(DEVICE_QUOTAS, "team")
        world.cluster.fail = lambda *_: None
        await soon(lambda: contract.WOKEN_AT in world.read_pod("b").metadata.annotations, 40)
        after = world.cluster.read(DEVICE_QUOTAS, "team")
        assert before and after
        assert (allows_no_more(after, before), allows_no_more(before, after)) == (False, True)
