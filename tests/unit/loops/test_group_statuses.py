"""A group's status follows what is so, with few writes; and people are told of what changed."""

import asyncio
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.answers import group_status
from deviceshare.domain.objects.devices import as_json
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, Group, GroupStatus
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import ApiError, Unavailable
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.domain.objects import GPU, gpus
from tests.unit.loops.live import World, a_bound_group, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time


@in_virtual_time
async def test_a_new_group_is_pending_until_a_pod_asks() -> None:
    """The first condition says what to do."""
    async with led_world() as world:
        world.group("team")
        await soon(lambda: world.condition("team", "Bound") == ("False", "NoPods"))
    status = world.read_group("team").status
    assert (status.phase, status.pod_count) == (PENDING, 0)
    assert world.condition("team", "Healthy") == ("Unknown", "NotBound")
    assert "deviceshare.io/group: team" in world.message("team")
    assert world.recorder.events == []


@in_virtual_time
async def test_a_bound_group_says_what_it_holds_and_who_uses_it() -> None:
    """Promptly, and in its conditions alone: no event says it once more."""
    world = World()
    world.node("n1")
    world.group("team")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.pod("b", "team")
        world.pod("a", "team")
        await world.bind("b", "n1")
        await soon(lambda: world.condition("team", "Bound") == ("True", "Claimed"), 0.2)
        await world.bind("a", "n1")
        await soon(lambda: world.read_group("team").status.allocated_pods == ["ns/a", "ns/b"])
        await asyncio.sleep(10)
    status = world.read_group("team").status
    assert (status.phase, status.pod_count, status.selected_devices) == (BOUND, 2, {GPU: "0,1"})
    assert world.condition("team", "Healthy")[0] == "True"
    assert world.recorder.reasons("team") == []


@in_virtual_time
async def test_a_group_whose_node_fails_as_it_is_bound_is_told_of_by_the_leader() -> None:
    """The bind says nothing of what isn't well: the leader does, with an event."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        world.cluster.edit(NODES, "n1", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
        await asyncio.sleep(1)
        await world.bind("a", "n1")
        await soon(lambda: world.condition("team", "Healthy") == ("False", "NodeNotReady"))
        await asyncio.sleep(2)
    assert world.read_group("team").status.phase == DEGRADED
    assert world.recorder.reasons("team") == ["Degraded"]


@in_virtual_time
async def test_finished_pods_leave() -> None:
    """The first one comes and the last one goes at once: a policy goes by it whether the group may be deleted."""
    world = World()
    world.node("n1")
    world.group("team")
    world.pod("a", "team")
    async with world.leading():
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        await world.bind("a", "n1")
        assert world.read_group("team").status.pod_count == 1
        await asyncio.sleep(1)
        world.end("a")
        await soon(lambda: world.read_group("team").status.allocated_pods == [], 0.2)
        await asyncio.sleep(60)
    status = world.read_group("team").status
    assert (status.pod_count, status.phase, status.node_name) == (0, BOUND, "n1")
    assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_bind_whose_binding_fails_leaves_a_status_that_is_corrected() -> None:
    """It named the pod before that was bound; nobody is told for long that a pod uses the group."""
    world = World()
    world.node("n1")
    world.group("team")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.pod("a", "team")
        world.cluster.fail = lambda verb, plural, name: Unavailable("gone") if verb == "bind" else None
        with pytest.raises(ApiError):
            await world.bind("a", "n1")
        assert world.read_group("team").status.allocated_pods == ["ns/a"]
        await soon(lambda: world.read_group("team").status.allocated_pods == [], 1.5)
        assert world.read_group("team").status.idle_since
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_group_and_its_first_pod_make_one_write() -> None:
    """The bind's, and of a group that no webhook saw, the leader's of the finalizer.

    What somebody takes out of the status comes back.
    """
    world = World()
    world.node("n1")
    world.group("team")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.pod("a", "team")
        before = len(world.cluster.writes("shareddevicegroups"))
        await world.bind("a", "n1")
        assert world.read_group("team").status.pod_count == 1
        assert world.condition("team", "Bound") == ("True", "Claimed")
        await asyncio.sleep(10)
        assert len(world.cluster.writes("shareddevicegroups")) - before == 2
        assert world.read_group("team").metadata.finalizers == [contract.PODS_FINALIZER]
        world.cluster.edit(GROUPS, "team", {"status": {"conditions": []}})
        world.end("a")
        await soon(lambda: world.condition("team", "Bound") == ("True", "Claimed"))


@in_virtual_time
async def test_many_pods_make_few_writes() -> None:
    """A hundred bound in five seconds."""
    world = World()
    world.node("n1")
    world.group("team")
    for number in range(100):
        world.pod(f"p{number}", "team")
    async with world.leading():
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        before = len(world.cluster.writes("shareddevicegroups"))
        for number in range(100):
            await world.bind(f"p{number}", "n1")
            await asyncio.sleep(0.03)
        await soon(lambda: world.read_group("team").status.pod_count == 100)
        assert len(world.cluster.writes("shareddevicegroups")) - before <= 10


@in_virtual_time
async def test_what_happens_before_a_group_may_be_written_again_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look takes the whole node's inventory; fifty pods a second make no fifty looks."""
    looks, desired = list[str](), group_status.desired_status

    def noting(group: Group, *args: Any, **more: Any) -> GroupStatus:
        looks.append(group.name)
        return desired(group, *args, **more)

    async with led_world() as world:
        await a_bound_group(world)
        for number in range(100):
            world.pod(f"p{number}", "team")
        await asyncio.sleep(3)
        monkeypatch.setattr(group_status, "desired_status", noting)
        for number in range(100):
            await world.bind(f"p{number}", "n1")
            await asyncio.sleep(0.01)
        await soon(lambda: world.read_group("team").status.pod_count == 101)
        assert len(looks) <= 6


@in_virtual_time
async def test_many_groups_share_the_writes_of_their_pods() -> None:
    """Of forty bound groups each gets a pod at the same moment; all say so, in turn."""
    world = World()
    names = [f"team-{number}" for number in range(40)]
    for number, name in enumerate(names):
        world.node(f"n{number}")
        world.group(name)
        world.pod(f"first-{name}", name)
        world.pod(f"second-{name}", name)
    async with world.leading():
        await soon(lambda: all(world.open(f"n{number}") for number in range(40)), 30)
        for number, name in enumerate(names):
            await world.bind(f"first-{name}", f"n{number}")
        await soon(lambda: all(world.read_group(name).status.pod_count == 1 for name in names), 10)
        await asyncio.sleep(5)
        before = len(world.cluster.writes("shareddevicegroups"))
        await asyncio.gather(*(world.bind(f"second-{name}", f"n{number}") for number, name in enumerate(names)))
        await asyncio.sleep(1)
        assert 3 <= len(world.cluster.writes("shareddevicegroups")) - before <= 7
        await soon(lambda: all(world.read_group(name).status.pod_count == 2 for name in names), 9)
        assert len(world.cluster.writes("shareddevicegroups")) - before == len(names)


@in_virtual_time
async def test_a_group_that_waits_says_who_is_in_the_way() -> None:
    """And it is told in other words when that changes, without a new transition."""
    world = World()
    world.node("n1", 2)
    world.group("first")
    world.group("second")
    world.pod("a", "first")
    async with world.leading():
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        await world.bind("a", "n1")
        world.pod("b", "second", refused=True)
        await soon(lambda: world.condition("second", "Bound") == ("False", "Waiting"))
        assert "n1: 0 of 2 free (first holds 0,1)" in world.message("second")
        since = world.read_group("second").status.conditions[0].last_transition_time
        world.node("n2", 1)
        await soon(lambda: "n2: 1 of 1 free" in world.message("second"), 20)
    assert world.read_group("second").status.conditions[0].last_transition_time == since
    assert world.recorder.reasons("second") == ["Waiting"]
    assert world.read_group("second").status.phase == PENDING


@in_virtual_time
async def test_a_group_that_is_being_bound_is_left_alone() -> None:
    """A write would make the bind start again."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        world.group("team")
        await soon(lambda: world.condition("team", "Bound") == ("False", "NoPods"))
        before = len(world.cluster.writes("shareddevicegroups"))
        world.pod("a", "team")
        await asyncio.sleep(1)
        assert len(world.cluster.writes("shareddevicegroups")) == before
        await asyncio.sleep(3)
        assert world.condition("team", "Bound") == ("False", "Waiting")


@in_virtual_time
async def test_what_the_webhook_would_have_refused_is_said_in_the_condition() -> None:
    """It was away when the group was created."""
    world = World()
    async with world.leading():
        world.cluster.put(GROUPS, {"metadata": {"name": "team"}, "spec": {"resources": {"example.org/gpu": 1}}})
        await soon(lambda: world.condition("team", "Bound") == ("False", "InvalidSpec"))
    assert "unknown resource 'example.org/gpu'" in world.message("team")
    assert world.recorder.reasons("team") == ["InvalidSpec"]


@in_virtual_time
async def test_a_node_that_fails_degrades_its_groups_until_it_is_well() -> None:
    """They keep their node; both turns are told."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(NODES, "n1", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
        await soon(lambda: world.condition("team", "Healthy") == ("False", "NodeNotReady"))
        status = world.read_group("team").status
        assert (status.phase, status.node_name) == (DEGRADED, "n1")
        world.cluster.edit(NODES, "n1", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        await soon(lambda: world.read_group("team").status.phase == BOUND)
    assert world.recorder.reasons("team") == ["Degraded", "Recovered"]


@in_virtual_time
async def test_a_node_that_is_gone_degrades_its_groups() -> None:
    """The message says what to do."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.remove(NODES, "n1")
        await soon(lambda: world.condition("team", "Healthy") == ("False", "NodeGone"))
    assert "kubectl delete sdg team" in world.message("team", "Healthy")
    assert world.read_group("team").node == "n1"


@in_virtual_time
async def test_a_node_that_is_not_shared_any_more_degrades_its_groups() -> None:
    """It is not called gone, although the mirror of shared nodes lost it."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": None}})
        await asyncio.sleep(0.02)
        world.cluster.mirrors["nodes"].set("n1", None)
        await soon(lambda: world.condition("team", "Healthy") == ("False", "NodeNotShared"))
        await asyncio.sleep(10)
    assert world.condition("team", "Healthy") == ("False", "NodeNotShared")
    assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_shrunken_capacity_degrades_the_groups_that_lost_devices() -> None:
    """Only those."""
    async with led_world() as world:
        await a_bound_group(world)
        world.group("other")
        world.pod("b", "other")
        await world.bind("b", "n1")
        world.cluster.edit(NODES, "n1", {"status": {"allocatable": {GPU: "3"}}})
        await soon(lambda: world.condition("other", "Healthy") == ("False", "DevicesLost"))
    assert "n1 lost nvidia.com/gpu 3" in world.message("other", "Healthy")
    assert world.condition("team", "Healthy") == ("True", "AsClaimed")
    assert len(world.ledger("n1").devices) == 3


@in_virtual_time
async def test_a_wiped_status_comes_back_from_the_pods() -> None:
    """The node and the devices, with an event that says so."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(GROUPS, "team", {"status": None})
        await soon(lambda: world.read_group("team").status.pod_count == 1)
    status = world.read_group("team").status
    assert (status.node_name, status.phase, status.selected_devices) == ("n1", BOUND, {GPU: "0,1"})
    assert "Repaired" in world.recorder.reasons("team")


@in_virtual_time
async def test_contradicting_pods_of_a_wiped_group_are_told_not_guessed() -> None:
    """Somebody copied annotations: the group names no node until a person decides."""
    world = World()
    world.node("n1")
    world.node("n2")
    async with world.leading():
        await a_bound_group(world)
        copied = world.cluster.objects["pods"]["ns/a"]["metadata"]["annotations"]
        world.pod("b", "team")
        annotations = {**copied, "deviceshare.io/pod-uid": world.read_pod("b").metadata.uid}
        world.cluster.edit(PODS, "b", {"spec": {"nodeName": "n2"}, "metadata": {"annotations": annotations}}, "ns")
        world.cluster.edit(GROUPS, "team", {"status": None})
        await soon(lambda: world.condition("team", "Bound") == ("False", "Repairing"), 5)
        assert "n1 and n2" in world.message("team")
        assert world.read_group("team").node == ""
        world.end("b")
        await soon(lambda: world.read_group("team").node == "n1", 5)


@in_virtual_time
async def test_a_claim_that_changes_is_told_in_its_groups_status() -> None:
    """Nothing else of its node does."""
    async with led_world() as world:
        await a_bound_group(world)
        await asyncio.sleep(5)
        claim = {"devices": as_json(gpus(0, 3))}
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {world.read_group("team").uid: claim}}})
        await soon(lambda: world.read_group("team").status.selected_devices == {GPU: "0,3"})


@pytest.mark.parametrize("waits", [True, False])
@in_virtual_time
async def test_a_bound_group_that_pods_wait_for_is_looked_at_when_another_claims(
    monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Devices that aren't the group's: a share within it needs room in the ledger. Without a waiting pod it isn't."""
    async with led_world() as world:
        await a_bound_group(world)
        if waits:
            world.share("w", 40, group="team", refused=True)
        await asyncio.sleep(5)
        looked, desired = list[str](), group_status.desired_status

        def looking(group: Group, *given: Any, **named: Any) -> GroupStatus:
            looked.append(group.name)
            return desired(group, *given, **named)

        monkeypatch.setattr(group_status, "desired_status", looking)
        world.cluster.fail = lambda verb, plural, _: (
            Unavailable("no pod is woken") if (verb, plural) == ("patch", PODS.plural) else None
        )
        world.share("other", 40)
        await world.bind("other", "n1")
        await asyncio.sleep(5)
        assert ("team" in looked) is waits


@in_virtual_time
async def test_a_claim_that_the_mirror_does_not_show_yet_is_not_called_missing() -> None:
    """Mirrors don't move together; a group that flashes Degraded would frighten people."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        world.cluster.mirrors["nodedevices"].deaf = True
        world.group("team")
        world.pod("a", "team")
        await world.bind("a", "n1")
        await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"))
    assert world.recorder.reasons("team") == []


@in_virtual_time
async def test_a_status_that_is_right_is_not_written() -> None:
    """A leader that starts finds everything in order and leaves it so."""
    async with led_world() as world:
        await a_bound_group(world)
        world.group("idle")
        await asyncio.sleep(10)
    after = world.successor()
    async with after.leading():
        await asyncio.sleep(60)
    assert [each for each in after.cluster.requests if each[0] not in ("get", "list")] == []
    assert after.recorder.events == []


@in_virtual_time
async def test_no_status_write_ever_names_a_node() -> None:
    """Only binding and repair do; whatever else is written leaves it as it is."""
    async with led_world() as world:
        await a_bound_group(world)
        world.end("a")
        await asyncio.sleep(5)
    bodies = world.cluster.bodies
    named = [body for body in bodies if "nodeName" in body.get("status", {})]
    settling = {"phase", "nodeName", "selectedDevices", "claimToken"}  # the bind's own, tried again after a conflict
    assert named and all(body["status"].keys() >= settling for body in named)
    assert all(body["metadata"]["resourceVersion"] for body in bodies)


@in_virtual_time
async def test_a_pod_that_waits_in_vain_has_one_event_and_the_groups_condition_names_it() -> None:
    """The group was deleted and created again; it lives elsewhere than the pod's own selector lets the pod go."""
    world = World()
    world.node("n1")
    world.group("team")
    world.pod("a", "team")
    async with world.leading():
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        await world.bind("a", "n1")
        await soon(lambda: world.condition("team", "Bound") == ("True", "Claimed"))
        world.pod("stuck", "team", nodeSelector={"zone": "nowhere"})
        await soon(lambda: "pod ns/stuck can't join it" in world.message("team"), 5)
        world.pod("b", "team")
        await asyncio.sleep(60)
    assert world.recorder.reasons("stuck") == ["NodesRuledOut"]
    assert world.condition("team", "Bound") == ("True", "Claimed")
    assert world.recorder.reasons("b") == []


@in_virtual_time
async def test_a_change_of_nodes_has_only_those_groups_looked_at_that_are_told_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of twenty groups that wait one waits for a node of its own rack; looks at all take the loop from webhooks."""
    async with led_world() as world:
        world.node("n2", 1, labels={contract.MODE_LABEL: contract.MODE_SHARED, "zone": "west"})
        world.group("concerned", 3, nodeSelector={"zone": "west"})
        for number in range(20):
            world.group(f"other-{number}", 3, nodeSelector={"zone": "east"})
        for name in ("concerned", *(f"other-{number}" for number in range(20))):
            world.pod(f"of-{name}", name, refused=True)
        await asyncio.sleep(60)
        assert "n2: 1 of 1 free" in world.message("concerned")
        looks: list[str] = []
        desired = group_status.desired_status

        def noting(group: Group, *args: Any, **more: Any) -> GroupStatus:
            looks.append(group.name)
            return desired(group, *args, **more)

        monkeypatch.setattr(group_status, "desired_status", noting)
        world.cluster.edit(NODES, "n2", {"status": {"allocatable": {GPU: "2"}}})
        await soon(lambda: "n2: 2 of 2 free" in world.message("concerned"), 30)
        assert set(looks) == {"concerned"}
