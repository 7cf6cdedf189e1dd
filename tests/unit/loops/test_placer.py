"""The leader behind scheduling gates: it chooses, places, says why it can't, and takes back what did not fit."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import node_choice
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.node_choice import Choice
from deviceshare.domain.placement.occupancy import Occupancy
from deviceshare.loops.kinds import GROUPS, NODES, PODS
from deviceshare.loops.leader import placer
from deviceshare.loops.leader.misfits import UNSCHEDULABLE_SECONDS
from deviceshare.loops.ports import ApiError, Conflict, Unavailable
from tests.unit.domain.objects import GPU, INJECTED
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time

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

    monkeypatch.setattr(placer, "choose_node", choose)
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

        monkeypatch.setattr(placer, "choose_node", choose)
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
async def test_a_pod_that_does_not_fit_is_recreated_and_its_group_goes_elsewhere() -> None:
    """Deleted only after kube-scheduler had its time; the node is avoided, and the claim released."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        owned(world, "a")
        first = here(world, "a")
        refuse(world, "a")
        await asyncio.sleep(UNSCHEDULABLE_SECONDS - 1)
        assert world.cluster.read(PODS, "a", "ns")
        await soon(lambda: world.cluster.read(PODS, "a", "ns") is None, 5)
        gated(world, "b")
        owned(world, "b")
        await soon(lambda: here(world, "b"), 30)
        assert here(world, "b") != first
        assert world.holders(first) == {}
        assert world.holders(here(world, "b")) == {"team": "0,1"}
        assert "NodeDidNotFit" in world.recorder.reasons("a")
        assert "LeftNode" in world.recorder.reasons("team")


@in_virtual_time
async def test_a_group_of_pods_that_do_not_fit_leaves_together() -> None:
    """None of them is placed again before the last has gone."""
    async with gated_world() as world:
        world.group("team")
        for name in ("a", "b"):
            gated(world, name)
        await soon(lambda: here(world, "a") and here(world, "b"))
        first = here(world, "a")
        for name in ("a", "b"):
            owned(world, name)
            refuse(world, name)
        await soon(lambda: not exists(world, "a") and not exists(world, "b"), 30)
        for name in ("c", "d"):
            gated(world, name)
        await soon(lambda: here(world, "c") and here(world, "d"), 30)
        assert here(world, "c") == here(world, "d") != first


@in_virtual_time
async def test_a_group_leaves_though_others_write_the_ledger_meanwhile() -> None:
    """Its status says so already: the claim that is left over must not draw it back to the node."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        owned(world, "a")
        first = here(world, "a")
        conflicts: list[str] = []

        def fail(verb: str, plural: str, name: str) -> ApiError | None:
            if (verb, plural) != ("patch", "nodedevices") or world.read_group("team").node or conflicts:
                return None
            conflicts.append(name)
            return Conflict("the agent was first")

        world.cluster.fail = fail
        refuse(world, "a")
        await soon(lambda: bool(conflicts), 60)
        gated(world, "b")
        owned(world, "b")
        await soon(lambda: here(world, "b"), 60)
        assert here(world, "b") != first
        await soon(lambda: world.holders(first) == {}, 60)


@in_virtual_time
async def test_a_group_that_stays_after_all_takes_pods_again() -> None:
    """A pod of it was bound while its claim was marked: nobody else would take the mark away."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        owned(world, "a")
        placed = world.read_pod("a")
        refuse(world, "a")
        await soon(lambda: not exists(world, "a"), 30)
        await soon(lambda: marked(world, placed.node), 5)
        late = world.pod("late", "team", nodeName=placed.node)
        told = {**placed.metadata.annotations, contract.POD_UID: late.metadata.uid}
        world.cluster.edit(PODS, "late", {"metadata": {"annotations": told}}, "ns")
        gated(world, "b")
        await soon(lambda: here(world, "b") == placed.node, 60)
        assert not marked(world, placed.node)


@in_virtual_time
async def test_a_pod_whose_group_lives_there_with_others_is_left_as_it_is() -> None:
    """There is no other node for it; people are told, once."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        bind(world, "a")
        gated(world, "b")
        await soon(lambda: here(world, "b"))
        owned(world, "b")
        refuse(world, "b")
        await asyncio.sleep(600)
        assert here(world, "b") == world.read_pod("a").node
        [said] = messages(world, "b", "NodeDoesNotFit")
        assert "lives there with other pods" in said and "no free ports" in said


@in_virtual_time
async def test_a_pod_without_a_controller_is_for_its_author_to_recreate() -> None:
    """Nobody else would."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        refuse(world, "a")
        await asyncio.sleep(600)
        [said] = messages(world, "a", "NodeDoesNotFit")
        assert "kubectl delete pod" in said
        assert world.cluster.read(PODS, "a", "ns")


@in_virtual_time
async def test_an_error_of_kube_scheduler_itself_says_nothing_of_the_node() -> None:
    """It retries; a deletion would change nothing."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        owned(world, "a")
        refuse(world, "a", "API server timed out", reason="SchedulerError")
        await asyncio.sleep(600)
        assert exists(world, "a")
        assert messages(world, "a", "NodeDidNotFit") == []


@in_virtual_time
async def test_a_pod_that_stays_is_not_told_of_again_at_every_change_of_the_schedulers_words() -> None:
    """They count nodes, which come and go."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        for number in range(300):
            refuse(world, "a", f"0/{number} nodes are available")
            await asyncio.sleep(3)
        assert 3 < len(messages(world, "a", "NodeDoesNotFit")) < 10


@in_virtual_time
async def test_a_pod_that_kube_scheduler_makes_room_for_has_more_time() -> None:
    """Its victims may take their grace period."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        owned(world, "a")
        refuse(world, "a", nominatedNodeName="n1")
        await asyncio.sleep(200)
        bind(world, "a")
        await asyncio.sleep(600)
        assert world.read_pod("a").spec.node_name


@in_virtual_time
async def test_a_pod_that_is_bound_after_all_is_not_deleted() -> None:
    """Every deletion names the version that was refused."""
    async with gated_world() as world:
        world.group("team")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        owned(world, "a")
        refuse(world, "a")
        await asyncio.sleep(UNSCHEDULABLE_SECONDS - 0.02)
        world.cluster.mirrors["pods"].deaf = True
        bind(world, "a")
        await asyncio.sleep(30)
        assert world.read_pod("a").spec.node_name
        assert ("delete", "pods", "a") in world.cluster.requests


@in_virtual_time
async def test_deletions_of_one_controllers_pods_get_rarer() -> None:
    """Where the pod fits nowhere, a cluster must not churn."""
    async with gated_world("n1") as world:
        world.group("team")
        deleted = 0
        for number in range(600):
            names = [f"p{number}" for number in range(number + 1)]
            live = [name for name in names if world.cluster.read(PODS, name, "ns")]
            if not live:
                gated(world, f"p{number}")
                owned(world, f"p{number}")
                deleted += 1
            elif here(world, live[-1]) and not world.read_pod(live[-1]).refusal:
                refuse(world, live[-1])
            await asyncio.sleep(3)
        assert 1 < deleted <= 5
        assert world.cluster.writes("pods", "delete")


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
