"""The Binder: many binds at once, each with the outcome that the claim protocol allows and none in the other's way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import as_json, devices_of
from deviceshare.domain.objects.ledger import new_ledger
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.join_obstacles import not_injected
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import ApiError, Conflict, ObjectChange, Unavailable
from deviceshare.loops.protocol import bind
from deviceshare.loops.protocol.bind import Refused, claim_all
from tests.unit.domain.objects import GPU, INJECTED
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time, now


class Scheduler:
    """A world of two nodes of four devices without a controller, and one process that binds."""

    def __init__(self) -> None:
        self.world = World()
        self.cluster = self.world.cluster
        self.conflicts = 0
        self.binder = self.world.binder(self._count)
        for name in ("n1", "n2"):
            self.world.node(name)
            self.cluster.put(NODE_DEVICES, {**new_ledger(name), "status": {"devices": as_json(devices_of({GPU: 4}))}})

    async def bind(self, pod: str, node: str) -> str:
        """The error's text, or ""."""
        found = self.world.read_pod(pod)
        self.binder.remember(found)
        try:
            await self.binder.bind("ns", pod, found.metadata.uid, node)
        except (Refused, ApiError) as error:
            return str(error)
        return ""

    def _count(self) -> None:
        self.conflicts += 1


@asynccontextmanager
async def scheduling() -> AsyncIterator[Scheduler]:
    """The mirrors have seen the world's beginning."""
    scheduler = Scheduler()
    await asyncio.sleep(1)
    yield scheduler
    await scheduler.binder.close()


@in_virtual_time
async def test_pods_of_a_new_group_that_are_bound_together_share_one_claim() -> None:
    """Two writes and a Binding for the first, one shared read and a Binding for the others; nobody collides."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        pods = [f"p{number}" for number in range(8)]
        for pod in pods:
            world.pod(pod, "a")
        await asyncio.sleep(1)
        scheduler.cluster.requests.clear()
        assert await asyncio.gather(*(scheduler.bind(pod, "n1") for pod in pods)) == [""] * 8
        assert {world.read_pod(pod).devices for pod in pods} == {devices_of({GPU: 2})}
        assert world.holders("n1") == {"a": "0,1"}
        verbs = [(verb, what) for verb, what, _ in scheduler.cluster.requests]
        assert verbs.count(("patch", "nodedevices")) == verbs.count(("patch", "shareddevicegroups")) == 1
        assert verbs.count(("get", "nodedevices")) <= 3
        assert verbs.count(("bind", "pods")) == 8
        assert scheduler.conflicts == 0


@in_virtual_time
async def test_no_devices_are_taken_while_a_plugin_pod_may_have_any_of_them() -> None:
    """It was bound after filter said yes; which devices it has is not known yet."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        world.pod("p", "a")
        await asyncio.sleep(1)
        world.fleet.set_plugin_pods("n1", {"plain": frozenset({GPU})})
        assert "unknown which devices" in await scheduler.bind("p", "n1")
        world.fleet.set_plugin_pods("n1", {})
        assert await scheduler.bind("p", "n1") == ""


@in_virtual_time
async def test_what_a_bind_takes_is_gone_for_the_next_filter_at_once() -> None:
    """The fleet shows the devices as taken while the claim is still being written."""
    async with scheduling() as scheduler:
        world = scheduler.world
        group, other = world.group("a", 3), world.group("b", 3)
        world.pod("p", "a")
        await asyncio.sleep(1)
        binding = asyncio.create_task(scheduler.bind("p", "n1"))
        await asyncio.sleep(0)
        assert world.fleet.filter(other.request, ["n1", "n2"]).fits == ["n2"]
        assert world.fleet.filter(group.request, ["n1", "n2"]).fits == ["n1"]
        assert await binding == ""
        assert world.fleet.filter(other.request, ["n1", "n2"]).fits == ["n2"]


@in_virtual_time
async def test_a_bind_that_fails_gives_back_what_it_assumed() -> None:
    """The API server is away while the claim is written."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a", 4)
        world.pod("p", "a")
        await asyncio.sleep(1)
        scheduler.cluster.fail = lambda verb, what, name: Unavailable("away") if verb == "patch" else None
        assert await scheduler.bind("p", "n1") == "away"
        assert len(world.fleet.free("n1")) == 4
        scheduler.cluster.fail = lambda verb, what, name: None
        assert await scheduler.bind("p", "n2") == ""


@in_virtual_time
async def test_two_groups_that_come_to_a_node_at_once_both_get_devices_of_their_own() -> None:
    """One compare-and-swap has both claims; of two that raced, the loser would have to choose again."""
    async with scheduling() as scheduler:
        world = scheduler.world
        for name in ("a", "b"):
            world.group(name)
            world.pod(f"p{name}", name)
        await asyncio.sleep(1)
        outcomes = await asyncio.gather(*(scheduler.bind(pod, "n1") for pod in ("pa", "pb")))
        assert outcomes == ["", ""]
        assert sorted(world.holders("n1").values()) == ["0,1", "2,3"]
        assert scheduler.conflicts == 0


@in_virtual_time
async def test_a_bind_repeated_after_a_lost_answer_is_a_success() -> None:
    """kube-scheduler asks again after a time-out; the pod is where it asks for."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        world.pod("p", "a")
        await asyncio.sleep(1)
        lost = iter([False, False, True])
        scheduler.cluster.lose = lambda: next(lost, False)
        assert "lost" in await scheduler.bind("p", "n1")
        assert world.read_pod("p").node == "n1"
        assert await scheduler.bind("p", "n1") == ""
        assert await scheduler.bind("p", "n2") == "group a lives on node n1"


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda world: world.pod("p", "nowhere"), "group nowhere does not exist"),
        (lambda world: (world.group("a", 9), world.pod("p", "a")), "no longer fits"),
        (
            lambda world: (world.group("a"), world.pod("p", "a"), world.cluster.remove(NODE_DEVICES, "n1")),
            "not known yet",
        ),
    ],
)
@in_virtual_time
async def test_a_bind_that_cannot_be_done_says_why(prepare: Callable[[World], object], reason: str) -> None:
    """Each reason is for the person who reads the pod's events."""
    async with scheduling() as scheduler:
        prepare(scheduler.world)
        await asyncio.sleep(1)
        assert reason in await scheduler.bind("p", "n1")


@in_virtual_time
async def test_a_pod_of_a_bound_group_is_refused_elsewhere() -> None:
    """The scheduler asked before it knew."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        world.pod("p1", "a")
        world.pod("p2", "a")
        await asyncio.sleep(1)
        assert await scheduler.bind("p1", "n1") == ""
        assert await scheduler.bind("p2", "n2") == "group a lives on node n1"


@in_virtual_time
async def test_a_pod_that_is_gone_or_was_recreated_is_refused() -> None:
    """Neither is bound in the name of the one that filter saw."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        old = world.pod("p", "a")
        await asyncio.sleep(1)
        scheduler.binder.remember(old)
        scheduler.cluster.remove(PODS, "p", "ns")
        with pytest.raises(Refused, match="is gone"):
            await scheduler.binder.bind("ns", "p", old.metadata.uid, "n1")
        world.pod("p", "a")
        with pytest.raises(Refused, match="was recreated"):
            await scheduler.binder.bind("ns", "p", old.metadata.uid, "n1")
        assert world.read_pod("p").node == ""


@in_virtual_time
async def test_a_pod_without_the_injected_environment_is_never_bound() -> None:
    """The variables of other vendors are no substitute."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        world.pod("p", "a")
        containers = [{"name": "main", "env": INJECTED[1:]}]
        scheduler.cluster.edit(PODS, "p", {"spec": {"containers": containers}}, "ns")
        await asyncio.sleep(1)
        assert await scheduler.bind("p", "n1") == str(not_injected(["the env NVIDIA_VISIBLE_DEVICES"]))
        assert world.holders("n1") == {}


@in_virtual_time
async def test_a_pod_without_a_group_is_bound_as_it_is() -> None:
    """Our scheduler serves such pods too; they get no annotation."""
    async with scheduling() as scheduler:
        scheduler.cluster.put(PODS, {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "c"}]}}, "ns")
        uid = scheduler.world.read_pod("plain").metadata.uid
        await scheduler.binder.bind("ns", "plain", uid, "n1")  # never seen by filter: read first
        bound = scheduler.world.read_pod("plain")
        assert (bound.node, bound.metadata.annotations) == ("n1", {})


@in_virtual_time
async def test_a_bind_ends_in_time_when_the_api_server_hangs() -> None:
    """The scheduler gets an answer before its own patience ends."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        world.pod("p", "a")
        await asyncio.sleep(1)

        async def hang(*args: Any, **kwargs: Any) -> Any:
            await asyncio.Event().wait()

        scheduler.cluster.patch = hang  # type: ignore[method-assign]
        began = now()
        asyncio.get_running_loop().call_later(60, lambda: None)  # lets virtual time pass
        assert "longer than" in await scheduler.bind("p", "n1")
        assert now() - began <= bind.BIND_SECONDS
        assert len(world.fleet.free("n1")) == 4


@in_virtual_time
async def test_a_group_that_changed_its_mind_does_not_get_its_old_claim() -> None:
    """A bind died after its claim, then the user asked for fewer devices: the claim is left to the collector."""
    async with scheduling() as scheduler:
        world = scheduler.world
        group = world.group("a", 2)
        world.pod("p", "a")
        await claim_all(scheduler.cluster, [bind.wanted_devices(group.request, token="t1")], "n1")
        scheduler.cluster.edit(GROUPS, "a", {"spec": {"resources": {GPU: 1}}})
        await asyncio.sleep(1)
        assert "is being released" in await scheduler.bind("p", "n1")
        assert world.read_group("a").node == ""


@in_virtual_time
async def test_conflicts_that_do_not_end_are_reported_as_such() -> None:
    """Bounded retries: the scheduler's backoff takes over. In each the ledger is read once, and tried again."""
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("a")
        world.pod("p", "a")
        await asyncio.sleep(1)
        scheduler.cluster.fail = lambda verb, what, name: Conflict("again") if verb == "patch" else None
        assert await scheduler.bind("p", "n1") == "again"
        assert scheduler.conflicts == 2 * 5
        assert contract.GROUP_UID not in world.read_pod("p").metadata.annotations
        await soon(lambda: len(world.fleet.free("n1")) == 4)


@pytest.mark.parametrize("remembered", [True, False], ids=["known from filter", "read again"])
@pytest.mark.parametrize(
    ("namespace", "name", "uid"),
    [("ns", "q", None), ("other", "p", None), ("ns", "p", ""), ("ns", "p", "another")],
    ids=["another name", "another namespace", "no UID", "another UID"],
)
@in_virtual_time
async def test_name_namespace_and_uid_of_a_bind_belong_together(
    remembered: bool, namespace: str, name: str, uid: str | None
) -> None:
    """Else a pod would be given what was decided for another: no Binding is posted."""
    async with scheduling() as scheduler:
        scheduler.world.group("a")
        scheduler.world.pod("p", "a")
        scheduler.world.pod("q", "a")
        await asyncio.sleep(1)
        pod = scheduler.world.read_pod("p")
        if remembered:
            scheduler.binder.remember(pod)
        with pytest.raises(Refused):
            await scheduler.binder.bind(namespace, name, pod.metadata.uid if uid is None else uid, "n1")
        assert [scheduler.world.read_pod(each).spec.node_name for each in "pq"] == ["", ""]


@in_virtual_time
async def test_a_pod_is_remembered_until_it_is_bound() -> None:
    """Else a replica would grow with the pods that it has ever bound."""
    async with scheduling() as scheduler:
        scheduler.world.pod("plain", "")
        await asyncio.sleep(1)
        pod = scheduler.world.read_pod("plain")
        scheduler.binder.remember(pod)
        assert scheduler.binder.deviceless(pod.metadata.uid)
        assert await scheduler.bind("plain", "n1") == ""
        assert not scheduler.binder.deviceless(pod.metadata.uid)


@in_virtual_time
async def test_what_another_replica_bound_is_forgotten_and_so_is_what_is_gone() -> None:
    """By the mirror of pods; a waiting pod is remembered."""
    async with scheduling() as scheduler:
        waiting = Pod(ObjectMeta(name="p", namespace="ns", uid="u"))
        for old, new, remembered in (
            (waiting, waiting, True),
            (waiting, replace(waiting, spec=PodSpec(node_name="n1")), False),
            (waiting, None, False),
        ):
            scheduler.binder.remember(waiting)
            scheduler.binder.change(ObjectChange("ns/p", old, new))
            assert scheduler.binder.deviceless("u") is remembered


@in_virtual_time
async def test_bound_pods_keep_their_nodes_where_a_setting_says_so() -> None:
    """Autoscalers read it. What the pod's author wrote stays."""
    evictable = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    async with scheduling() as scheduler:
        world = scheduler.world
        world.group("team")
        binder = world.binder(keeps_nodes=True)
        for name, own in (("a", {}), ("b", {evictable: "true"})):
            world.pod(name, "team")
            world.cluster.edit(PODS, name, {"metadata": {"annotations": own}}, "ns")
            await asyncio.sleep(1)
            pod = world.read_pod(name)
            binder.remember(pod)
            await binder.bind("ns", name, pod.metadata.uid, "n1")
        await binder.close()
        written = [set(binding["annotations"]) & set(contract.KEEPING) for binding in world.cluster.bindings]
        assert written == [set(contract.KEEPING), set(contract.KEEPING) - {evictable}]
