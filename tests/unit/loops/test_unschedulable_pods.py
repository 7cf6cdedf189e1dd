"""Pods that were placed where they don't fit: they are recreated and their group leaves the node, or get an Event."""

import asyncio

import pytest

from deviceshare.domain import contract
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.gates import LOOK_SECONDS, UNSCHEDULABLE_SECONDS
from deviceshare.loops.ports import ApiError, Conflict
from tests.unit.loops.gated_world import bind, exists, gated, gated_world, here, marked, messages, owned, place, refuse
from tests.unit.loops.live import soon
from tests.unit.loops.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_pod_that_does_not_fit_is_recreated_and_its_group_goes_elsewhere() -> None:
    """Deleted only after kube-scheduler had its time; the node is avoided, and the claim released."""
    async with gated_world() as world:
        await place(world, "a")
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
        assert "FailedPlacement" in world.recorder.reasons("a")
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
        await place(world, "a")
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
        await place(world, "a")
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
        await place(world, "a")
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
async def test_a_pod_that_its_group_kept_there_leaves_once_the_others_have_ended() -> None:
    """kube-scheduler refuses it in the same words as before, so nothing of the pod itself changes then."""
    async with gated_world() as world:
        await place(world, "a")
        bind(world, "a")
        gated(world, "b")
        await soon(lambda: here(world, "b"))
        owned(world, "b")
        refuse(world, "b")
        await asyncio.sleep(100)
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: not exists(world, "b"), LOOK_SECONDS + 5)


@in_virtual_time
async def test_a_pod_without_a_controller_is_for_its_author_to_recreate() -> None:
    """Nobody else would."""
    async with gated_world() as world:
        await place(world, "a")
        refuse(world, "a")
        await asyncio.sleep(600)
        [said] = messages(world, "a", "NodeDoesNotFit")
        assert "kubectl delete pod" in said
        assert world.cluster.read(PODS, "a", "ns")


@in_virtual_time
async def test_a_pod_is_not_deleted_while_one_without_a_controller_keeps_its_group_there() -> None:
    """It would come back to the same node, and a Job counts each such pod as a failed one."""
    async with gated_world() as world:
        await place(world, "a", "b")
        owned(world, "a")
        first = here(world, "a")
        for name in ("a", "b"):
            refuse(world, name)
        await asyncio.sleep(300)
        assert here(world, "a") == first
        assert "delete that one" in messages(world, "a", "NodeDoesNotFit")[0]
        world.cluster.remove(PODS, "b", "ns")
        await soon(lambda: not exists(world, "a"), LOOK_SECONDS + 5)


@in_virtual_time
async def test_an_error_of_kube_scheduler_itself_says_nothing_of_the_node() -> None:
    """It retries; a deletion would change nothing."""
    async with gated_world() as world:
        await place(world, "a")
        owned(world, "a")
        refuse(world, "a", "API server timed out", reason="SchedulerError")
        await asyncio.sleep(600)
        assert exists(world, "a")
        assert messages(world, "a", "FailedPlacement") == []


@pytest.mark.parametrize(
    "why",
    [
        "pod has unbound immediate PersistentVolumeClaims. preemption: 0/2 nodes are available: 2 No victims.",
        'persistentvolumeclaim "data" not found.',
        "Pod ns/a is rejected in PreFilter because ElasticQuota team is more than Max.",
    ],
)
@in_virtual_time
async def test_a_pod_that_waits_for_what_is_no_nodes_is_left_alone(why: str) -> None:
    """A volume is provisioned in a minute: a Job whose pod is deleted meanwhile may have failed for good."""
    async with gated_world() as world:
        await place(world, "a")
        owned(world, "a")
        refuse(world, "a", f"0/2 nodes are available: {why}")
        await asyncio.sleep(600)
        assert exists(world, "a")
        assert messages(world, "a", "NodeDoesNotFit") == []
        refuse(world, "a", "0/2 nodes are available: 1 node(s) had volume node affinity conflict.")
        await asyncio.sleep(UNSCHEDULABLE_SECONDS - 1)
        assert exists(world, "a")
        await soon(lambda: not exists(world, "a"), 5)


@in_virtual_time
async def test_a_pod_is_not_deleted_while_another_of_its_group_may_yet_be_bound_there() -> None:
    """The group could not leave: the recreated pod would come back to the same node, again and again."""
    async with gated_world() as world:
        await place(world, "a", "b")
        for name in ("a", "b"):
            owned(world, name)
        refuse(world, "a")
        refuse(world, "b", "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
        await asyncio.sleep(300)
        assert exists(world, "a")
        assert "pod ns/b may yet be bound there" in messages(world, "a", "NodeDoesNotFit")[0]
        refuse(world, "b")
        await soon(lambda: not exists(world, "a") and not exists(world, "b"), UNSCHEDULABLE_SECONDS + LOOK_SECONDS)


@in_virtual_time
async def test_a_node_on_which_plugins_disagree_does_not_fit() -> None:
    """kube-scheduler looked at none, though the reason is the node: the pod's volume is elsewhere."""
    async with gated_world() as world:
        await place(world, "a")
        owned(world, "a")
        why = "node(s) didn't satisfy plugin(s) [NodeAffinity VolumeBinding] simultaneously."
        refuse(world, "a", f"0/2 nodes are available: {why}")
        await soon(lambda: not exists(world, "a"), UNSCHEDULABLE_SECONDS + 5)


@in_virtual_time
async def test_a_pod_that_stays_is_not_told_of_again_at_every_change_of_the_schedulers_words() -> None:
    """They count nodes, which come and go."""
    async with gated_world() as world:
        await place(world, "a")
        for number in range(300):
            refuse(world, "a", f"0/{number} nodes are available")
            await asyncio.sleep(3)
        assert 3 < len(messages(world, "a", "NodeDoesNotFit")) < 10


@in_virtual_time
async def test_a_pod_that_kube_scheduler_makes_room_for_has_more_time() -> None:
    """Its victims may take their grace period."""
    async with gated_world() as world:
        await place(world, "a")
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
        await place(world, "a")
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
