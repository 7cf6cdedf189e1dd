"""The leader behind scheduling gates: it chooses nodes, places pods, and says why it can't."""

import asyncio
from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.answers.explanation import Case, explain_pod
from deviceshare.domain.objects.pod_requests import without_surplus
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import node_choice
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.node_choice import Choice, Occupancy
from deviceshare.loops.kinds import GROUPS, NODES, PODS
from deviceshare.loops.leader import gates
from deviceshare.loops.ports import ApiError, Unavailable
from tests.unit.loops.gated_world import GATE, a_host, exists, gated, gated_world, here, messages, owned
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time


@in_virtual_time
async def test_the_pods_of_a_group_are_placed_on_one_node() -> None:
    """With the devices of its claim, each in one patch, without a Binding."""
    async with gated_world() as world:
        world.group("team")
        for name in ("a", "b", "c"):
            gated(world, name)
        await soon(lambda: all(here(world, name) for name in ("a", "b", "c")))
        assert {here(world, name) for name in ("a", "b", "c")} == {world.read_group("team").node}
        assert {device.index for device in world.read_pod("b").devices} == {0, 1}
        assert world.cluster.bindings == []
        assert world.recorder.reasons("a") == ["Placed"]


@in_virtual_time
async def test_a_pod_that_waits_is_placed_as_soon_as_a_device_is_free() -> None:
    """A gated pod needs no touch: the decision is the leader's."""
    async with gated_world("n1") as world:
        world.group("big", 4)
        gated(world, "a", "big")
        await soon(lambda: here(world, "a"))
        world.group("team", 2)
        gated(world, "b")
        await soon(lambda: world.recorder.reasons("b") == ["NotPlaced"])
        assert messages(world, "b", "NotPlaced")[0].startswith("0/1 shared nodes fit: 1 ")
        world.cluster.remove(PODS, "a", "ns")
        world.cluster.remove(GROUPS, "big")
        await soon(lambda: here(world, "b"), 3)


@in_virtual_time
async def test_replicas_that_avoid_each_other_are_placed_apart_at_once() -> None:
    """kube-scheduler refuses none of them, and none is recreated: binpack alone would put all on one node."""
    names = "n1", "n2", "n3", "n4"
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {contract.GROUP: ""}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with gated_world(*names) as world:
        for name in names:
            world.share(name, 10, affinity=affinity, schedulingGates=[{"name": "example.com/not-yet"}])
            owned(world, name)
            world.cluster.edit(PODS, name, {"spec": GATE}, "ns")
        await soon(lambda: all(here(world, name) for name in names), 5)
        assert {here(world, name) for name in names} == set(names)


@in_virtual_time
async def test_a_pod_behind_our_gate_that_asks_for_nothing_is_told() -> None:
    """Somebody copied the gate, or took the annotation out of the manifest: nobody would ever place it."""
    async with gated_world("n1") as world:
        meta = {"name": "web", "namespace": "x", "uid": "web"}
        gates = [{"name": contract.PLACEMENT_GATE}]
        pod = msgspec.convert({"metadata": meta, "spec": {"schedulingGates": gates, "containers": [{}]}}, Pod)
        world.others.set("x/web", without_surplus(pod))
        await soon(lambda: bool(messages(world, "web", "NotPlaced")))
        assert "neither names a group nor asks for a share" in messages(world, "web", "NotPlaced")[0]
        assert "nobody places it" in explain_pod(Case(world.fleet, None, None, []), pod).message


@in_virtual_time
async def test_why_a_pod_waits_is_said_once() -> None:
    """Not at each of the many changes of a cluster; and again when it changes, or before the Event expires."""
    async with gated_world("n1") as world:
        world.group("team")
        gated(world, "a", cpu="99")
        for _ in range(40):
            world.cluster.edit(NODES, "n1", {"metadata": {"labels": {"beat": str(_)}}})
            await asyncio.sleep(1)
        assert messages(world, "a", "NotPlaced") == ["0/1 shared nodes fit: 1 Insufficient cpu"]
        world.cluster.edit(NODES, "n1", {"spec": {"unschedulable": True}})
        await soon(lambda: len(messages(world, "a", "NotPlaced")) == 2)
        await asyncio.sleep(700)
        assert len(messages(world, "a", "NotPlaced")) == 3


@in_virtual_time
async def test_reasons_that_alternate_are_said_the_more_rarely() -> None:
    """Each is an object in the API server, for each of thousands of pods that may wait."""
    async with gated_world("n1") as world:
        world.group("team")
        gated(world, "a", cpu="99")
        for number in range(600):
            world.cluster.edit(NODES, "n1", {"spec": {"unschedulable": bool(number % 2)}})
            await asyncio.sleep(3)
        said = messages(world, "a", "NotPlaced")
        assert len(set(said)) == 2
        assert 5 < len(said) < 12


@in_virtual_time
async def test_what_is_being_placed_counts_for_the_next_decision() -> None:
    """CPU as well as devices: nobody is refused by kube-scheduler for what deviceshare could know."""
    async with gated_world() as world:
        for number in range(4):
            world.group(f"g{number}", 1)
            gated(world, f"p{number}", f"g{number}", cpu="4")
        await soon(lambda: all(here(world, f"p{number}") for number in range(4)))
        places = sorted(here(world, f"p{number}") for number in range(4))
        assert places == ["n1", "n1", "n2", "n2"]


@in_virtual_time
async def test_other_pods_take_room_and_give_it_back() -> None:
    """Those that want nothing of deviceshare are counted, too."""
    async with gated_world("n1") as world:
        world.group("team")
        spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "8"}}}]}
        meta = {"name": "web", "namespace": "x", "uid": "web", "resourceVersion": "1"}
        world.others.set("x/web", msgspec.convert({"metadata": meta, "spec": spec}, Pod))
        gated(world, "a")
        await soon(lambda: messages(world, "a", "NotPlaced") == ["0/1 shared nodes fit: 1 Insufficient cpu"])
        world.others.set("x/web", None)
        await soon(lambda: here(world, "a"), 2)


@in_virtual_time
async def test_the_pod_of_higher_priority_gets_the_last_room() -> None:
    """Though it is younger."""
    async with gated_world("n1") as world:
        world.group("team")
        world.cluster.edit(NODES, "n1", {"status": {"allocatable": {"cpu": "1"}}})
        await asyncio.sleep(0.1)
        gated(world, "low")
        gated(world, "high", priority=1000)
        await soon(lambda: here(world, "high"))
        await asyncio.sleep(30)
        assert not here(world, "low")


@in_virtual_time
async def test_another_gate_is_waited_for() -> None:
    """Kueue's, for example: a pod is placed when ours is the last."""
    async with gated_world("n1") as world:
        world.group("team")
        both: dict[str, Any] = {
            "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, {"name": contract.PLACEMENT_GATE}]
        }
        world.pod("a", "team", **both)
        await asyncio.sleep(30)
        assert not here(world, "a") and world.recorder.reasons("a") == []
        world.cluster.edit(PODS, "a", {"spec": GATE}, "ns")
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": {"any": "change"}}})
        await soon(lambda: here(world, "a"))


@in_virtual_time
async def test_a_pod_whose_gate_somebody_removed_is_left_alone() -> None:
    """It has no devices, and counts as placed nowhere."""
    async with gated_world("n1") as world:
        world.group("team")
        world.pod("a", "team")
        await asyncio.sleep(30)
        assert not world.read_pod("a").lives
        assert world.read_group("team").node == ""


@in_virtual_time
async def test_a_failure_is_retried_with_backoff_and_keeps_no_other_waiting() -> None:
    """Of one pod the patch fails; the next is placed meanwhile."""
    async with gated_world() as world:

        def fail(verb: str, plural: str, name: str) -> ApiError | None:
            return Unavailable("try later") if (verb, plural, name) == ("patch", "pods", "a") else None

        world.cluster.fail = fail
        world.group("team")
        gated(world, "a")
        gated(world, "b")
        await soon(lambda: here(world, "b"))
        await asyncio.sleep(60)
        assert 5 < len(world.cluster.writes("pods")) < 20
        world.cluster.fail = lambda verb, plural, name: None
        await soon(lambda: here(world, "a"), 15)


@in_virtual_time
async def test_a_pod_that_no_code_can_choose_for_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it has in its spec: the next is placed, and it is told where to look."""

    def choose(fleet: Fleet, occupancy: Occupancy, pod: Pod, *rest: Any) -> Generator[None, None, Choice]:
        if pod.metadata.name == "a":
            raise ValueError("a value that nobody thought of")
        return node_choice.choose_node(fleet, occupancy, pod, *rest)

    monkeypatch.setattr(gates, "choose_node", choose)
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        gated(world, "b")
        await soon(lambda: here(world, "b"), 5)
        assert messages(world, "a", "NotPlaced") == ["choosing a node for it failed: see deviceshare's logs"]


@in_virtual_time
async def test_a_pod_that_goes_while_its_node_is_chosen_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among thousands of nodes that takes a while, in which everything else goes on."""
    async with gated_world("n1") as world:

        def choose(fleet: Fleet, occupancy: Occupancy, pod: Pod, *rest: Any) -> Generator[None, None, Choice]:
            choice = yield from node_choice.choose_node(fleet, occupancy, pod, *rest)
            if pod.metadata.name == "a" and exists(world, "a"):
                world.cluster.remove(PODS, "a", "ns")
                world.cluster.mirrors["pods"].set("ns/a", None)
                yield
            return choice

        monkeypatch.setattr(gates, "choose_node", choose)
        world.group("team")
        gated(world, "a", cpu="8")
        await soon(lambda: not exists(world, "a"))
        gated(world, "b", cpu="8")
        await soon(lambda: here(world, "b"), 5)
        assert world.cluster.writes("pods") == ["b"]


@in_virtual_time
async def test_nothing_is_remembered_of_a_pod_that_went_while_it_was_placed() -> None:
    """Nobody would ever forget it."""
    async with gated_world() as world:

        def fail(verb: str, plural: str, name: str) -> ApiError | None:
            if (verb, plural, name) != ("patch", "pods", "a"):
                return None
            world.cluster.fail = lambda verb, plural, name: None
            world.cluster.remove(PODS, "a", "ns")
            world.cluster.mirrors["pods"].set("ns/a", None)
            return Unavailable("try later")

        world.cluster.fail = fail
        world.group("team")
        gated(world, "a")
        await soon(lambda: not exists(world, "a"))
        await asyncio.sleep(1)
        assert messages(world, "a", "NotPlaced") == []


# A node that does not fit.


@in_virtual_time
async def test_a_successor_places_what_its_predecessor_left_half_way() -> None:
    """Killed between the claim and the patch: the pod is still gated, and its group's claim is there."""
    world = World(gates=True)
    a_host(world, "n1")
    async with world.leading():
        await soon(lambda: world.open("n1"))

        def fail(verb: str, plural: str, name: str) -> ApiError | None:
            return Unavailable("never") if (verb, plural) == ("patch", "pods") else None

        world.cluster.fail = fail
        world.group("team")
        gated(world, "a")
        await soon(lambda: world.holders("n1") == {"team": "0,1"} and world.read_group("team").node == "n1")
    second = world.successor()
    async with second.leading():
        await soon(lambda: here(second, "a"), 15)
        assert second.holders("n1") == {"team": "0,1"}
