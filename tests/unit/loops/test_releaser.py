"""Claims that nobody needs are given back, soon where somebody may wait, and never while a pod uses the devices."""

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Unavailable
from deviceshare.loops.protocol import bind
from deviceshare.loops.protocol.bind import BIND_SECONDS, BINDS_OVER_SECONDS, claim_all, new_mark
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, a_bound_group, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time, now


async def a_group_deleted_before_its_next_pod(world: World) -> None:
    """Its first pod has ended, and the second is pending."""
    await a_bound_group(world)
    world.end("a")
    world.pod("b", "team")
    await asyncio.sleep(5)
    world.cluster.remove(GROUPS, "team")


@in_virtual_time
async def test_a_deleted_group_frees_its_devices_at_once() -> None:
    """Nobody uses them, nobody is about to."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.remove(PODS, "a", "ns")
        await asyncio.sleep(5)
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.holders("n1") == {}, 0.2)
        await asyncio.sleep(1)
    assert "Released" in world.recorder.reasons("n1")


@in_virtual_time
async def test_devices_of_a_group_deleted_under_its_pods_stay_reserved_until_they_end() -> None:
    """The webhook was away. The pods say so."""
    async with led_world() as world:
        await a_bound_group(world)
        world.pod("b", "team")
        await world.bind("b", "n1")
        world.cluster.remove(GROUPS, "team")
        await asyncio.sleep(5)
        before = len(world.cluster.requests)
        world.end("a")
        await asyncio.sleep(120)
        assert world.holders("n1") == {"team": "0,1*"}
        assert {verb for verb, *_ in world.cluster.requests[before:]} <= {"get"}  # no collection in vain
        assert world.recorder.reasons("b") == ["GroupDeleted"]
        world.end("b")
        await soon(lambda: world.holders("n1") == {}, 0.5)


@in_virtual_time
async def test_claims_of_one_node_that_end_together_do_not_conflict() -> None:
    """Twenty shares: each claim is marked and dropped, and hardly any write is made twice."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        names = [f"part-{number}" for number in range(20)]
        for name in names:
            world.share(name, 5)
            await world.bind(name, "n1")
        await asyncio.sleep(5)
        before = len(world.cluster.writes("nodedevices"))
        for name in names:
            world.end(name)
        await soon(lambda: world.holders("n1") == {}, 5)
        assert len(world.cluster.writes("nodedevices")) - before <= 2 * len(names) + 4


@in_virtual_time
async def test_a_claim_is_kept_while_a_bind_may_still_use_it() -> None:
    """A pod of the deleted group is pending: every bind that began before is waited out."""
    async with led_world() as world:
        await a_group_deleted_before_its_next_pod(world)
        deleted = now()
        await soon(lambda: world.holders("n1") == {"team": "0,1*"})
        await soon(lambda: world.holders("n1") == {}, 20)
        assert BINDS_OVER_SECONDS <= now() - deleted <= BINDS_OVER_SECONDS + 1


@in_virtual_time
@pytest.mark.parametrize("status", [False, True])
async def test_a_pod_that_cannot_be_written_holds_up_no_release(status: bool) -> None:
    """Neither with full annotations, nor with a webhook that is against any write: not by two seconds."""
    async with led_world() as world:
        await a_group_deleted_before_its_next_pod(world)
        world.cluster.refusing["b"] = status
        deleted = now()
        await soon(lambda: world.holders("n1") == {}, BINDS_OVER_SECONDS + 2)
        assert now() - deleted >= BINDS_OVER_SECONDS
    assert ("CannotBeWritten" in world.recorder.reasons("b")) is status


@in_virtual_time
@pytest.mark.parametrize(("status", "seconds"), [(False, 0.0), (True, BINDS_OVER_SECONDS)])
async def test_where_versions_are_compared_only_a_pod_that_refuses_every_write_is_waited_for(
    status: bool, seconds: float
) -> None:
    """Bindings of all others fail once they are touched, however late they come: a release takes no time for them."""
    world = World(compares=True)
    world.node("n1")
    async with world.leading():
        await a_group_deleted_before_its_next_pod(world)
        world.cluster.refusing["b"] = status
        deleted = now()
        await soon(lambda: world.holders("n1") == {}, seconds + 1)
        assert now() - deleted >= seconds


@in_virtual_time
async def test_a_share_of_a_pod_that_waits_elsewhere_is_free_at_once_where_versions_are_compared() -> None:
    """Its claim is of a bind that gave up."""
    world = World(compares=True)
    world.node("n1", 1)
    async with world.leading():
        await soon(lambda: world.open("n1"))
        request = request_of(world.share("s", 30), None)
        assert request is not None
        await claim_all(world.cluster, [bind.wanted_share(request)], "n1")
        await asyncio.sleep(BIND_SECONDS - 1)
        assert world.holders("n1") == {"ns/s": "0"}
        await soon(lambda: world.holders("n1") == {}, 2)


@in_virtual_time
async def test_a_collection_that_starts_again_does_not_wait_again() -> None:
    """Others claim on the node all the time, so that the last write may well fail."""
    async with led_world(8) as world:
        await a_group_deleted_before_its_next_pod(world)
        deleted = now()
        failures = [Unavailable("hiccup")] * 3

        def fail(verb: str, plural: str, name: str) -> Unavailable | None:
            late = now() >= deleted + BINDS_OVER_SECONDS
            return failures.pop() if failures and late and (verb, plural) == ("patch", "nodedevices") else None

        world.cluster.fail = fail
        await soon(lambda: world.holders("n1") == {}, 20)
        assert not failures
        assert now() - deleted <= BINDS_OVER_SECONDS + 3


@in_virtual_time
async def test_the_wait_ends_when_the_last_pending_pod_goes() -> None:
    """Waiting pods get the devices without delay."""
    async with led_world() as world:
        await a_group_deleted_before_its_next_pod(world)
        await asyncio.sleep(3)
        assert world.holders("n1") == {"team": "0,1*"}
        world.cluster.remove(PODS, "b", "ns")
        await soon(lambda: world.holders("n1") == {}, 0.5)


@in_virtual_time
async def test_a_claim_whose_bind_died_is_released_within_30_seconds() -> None:
    """Although the group's pods still wait; in between it is left for the next bind to use."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        group = world.group("team")
        world.pod("a", "team", refused=True)
        await claim_all(world.cluster, [bind.wanted_devices(group.request, token="t1")], "n1")
        claimed = now()
        await asyncio.sleep(BIND_SECONDS - 1)
        assert world.holders("n1") == {"team": "0,1"}
        await soon(lambda: world.holders("n1") == {}, 30)
        assert now() - claimed <= 30


@in_virtual_time
async def test_a_claim_that_lost_the_race_is_released() -> None:
    """The group was bound elsewhere by another replica."""
    world = World()
    world.node("n1")
    world.node("n2")
    async with world.leading():
        await soon(lambda: world.open("n1") and world.open("n2"))
        group = world.group("team")
        world.pod("a", "team")
        await claim_all(world.cluster, [bind.wanted_devices(group.request, token="t2")], "n2")
        await world.bind("a", "n1")
        await soon(lambda: world.holders("n2") == {}, 0.5)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_mark_on_the_claim_of_a_bound_group_is_taken_away() -> None:
    """An old leader marked it and died."""
    async with led_world() as world:
        await a_bound_group(world)
        uid = world.read_group("team").uid
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: {"releasing": new_mark()}}}})
        await soon(lambda: world.holders("n1") == {"team": "0,1"}, 0.5)
        await asyncio.sleep(30)
        assert world.condition("team", "Healthy") == ("True", "AsClaimed")
    assert "Released" not in world.recorder.reasons("n1")


@in_virtual_time
async def test_a_marked_claim_of_an_unbound_group_is_collected_at_once() -> None:
    """What an old leader began is ended."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        uid = world.group("team").uid
        claim = {"group": "team", "devices": [{"resource": GPU, "index": 0}], "releasing": new_mark()}
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: claim}}})
        await soon(lambda: world.holders("n1") == {}, 0.5)


@in_virtual_time
async def test_a_group_that_the_mirror_does_not_know_yet_is_not_taken_for_gone() -> None:
    """Mirrors don't move together: a claim may be seen before its group."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        mirror = world.cluster.mirrors["shareddevicegroups"]
        mirror.deaf = True
        world.group("team")
        world.pod("a", "team")
        await world.bind("a", "n1")
        await asyncio.sleep(2)
        assert world.holders("n1") == {"team": "0,1"}
        mirror.set("team", world.read_group("team"))
        await soon(lambda: world.read_group("team").status.pod_count == 1)
        assert not any("releasing" in str(body) for body in world.cluster.bodies)


@in_virtual_time
async def test_a_collection_under_way_does_not_hold_up_others() -> None:
    """Twenty that wait, and one that needn't."""
    async with led_world(21) as world:
        await soon(lambda: world.open("n1"))
        for number in range(21):
            world.group(f"g{number}", 1)
            world.pod(f"p{number}", f"g{number}")
            await world.bind(f"p{number}", "n1")
            world.end(f"p{number}")
        for number in range(20):
            world.pod(f"q{number}", f"g{number}")
            world.cluster.remove(GROUPS, f"g{number}")
        await asyncio.sleep(4)
        world.cluster.remove(GROUPS, "g20")
        await soon(lambda: "g20" not in world.holders("n1"), 0.5)
        assert len(world.holders("n1")) == 20


def test_no_two_marks_are_equal() -> None:
    """Equal marks would be one and the same write."""
    assert len({new_mark() for _ in range(500)}) == 500


@in_virtual_time
async def test_a_mark_that_was_replaced_is_waited_for_anew() -> None:
    """Another leader took it away and marked the claim again: between the two somebody may have joined."""
    async with led_world() as world:
        await a_group_deleted_before_its_next_pod(world)
        await asyncio.sleep(10)
        (uid,) = world.ledger("n1").claims
        again = {"spec": {"claims": {uid: {"releasing": "another"}}}}
        world.cluster.edit(NODE_DEVICES, "n1", again)
        await asyncio.sleep(BINDS_OVER_SECONDS - 1)
        assert world.holders("n1") == {"team": "0,1*"}
        await soon(lambda: world.holders("n1") == {}, 3)


@in_virtual_time
async def test_a_fresh_claim_of_an_unbound_group_is_left_alone() -> None:
    """A bind wrote it and is about to write the group."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        group = world.group("team")
        await claim_all(world.cluster, [bind.wanted_devices(group.request, token="t1")], "n1")
        await asyncio.sleep(BIND_SECONDS - 1)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_what_came_and_went_while_a_mirror_was_behind_leaves_no_claim() -> None:
    """Its watch broke off and it lists anew: no event ever told of the pods and the group, though they were bound."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        other = world.successor()
        other.share("s", 30)
        other.group("team", 1)
        other.pod("a", "team")
        for name in ("s", "a"):
            await other.bind(name, "n1")
        world.cluster.mirrors[NODE_DEVICES.plural].set("n1", world.ledger("n1"))
        await asyncio.sleep(20)
        assert world.holders("n1") == {"ns/s": "0", "team": "1"}
        for name in ("s", "a"):
            other.cluster.remove(PODS, name, "ns")
        other.cluster.remove(GROUPS, "team")
        await soon(lambda: world.holders("n1") == {}, 60)


@in_virtual_time
async def test_a_pod_that_no_event_told_of_keeps_its_devices_until_it_ends_and_no_longer() -> None:
    """Its group is gone; that the pod is there is known from a list alone."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.cluster.mirrors[PODS.plural].deaf = True
        world.group("team")
        world.pod("a", "team")
        await world.bind("a", "n1")
        await asyncio.sleep(5)
        world.cluster.remove(GROUPS, "team")
        with capture_logs() as logs:
            await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1*"}
        assert [each["event"] for each in logs].count("Kept claim in use") == 1
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: world.holders("n1") == {}, 60)


@in_virtual_time
async def test_a_claim_of_a_live_pod_is_not_marked_while_its_groups_status_is_lost() -> None:
    """The status can't be written for a while."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.fail = lambda verb, what, _: (
            Unavailable("away") if (verb, what) == ("patch", GROUPS.plural) else None
        )
        world.cluster.edit(GROUPS, "team", {"status": {"nodeName": None}})
        await asyncio.sleep(120)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_pods_of_other_groups_are_not_told_that_a_group_is_gone() -> None:
    """They run on the same node."""
    async with led_world() as world:
        await a_bound_group(world)
        world.group("other")
        world.pod("b", "other")
        await world.bind("b", "n1")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.recorder.reasons("a") == ["GroupDeleted"])
        await asyncio.sleep(60)
    assert world.recorder.reasons("b") == []


@in_virtual_time
async def test_a_group_recreated_under_its_name_does_not_keep_the_claim_of_the_first() -> None:
    """Both live on the same node, the first by a claim that was left."""
    async with led_world() as world:
        await a_bound_group(world)
        left = {"group": "team", "devices": [{"resource": GPU, "index": 2}]}
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {"uid-of-the-first": left}}})
        await soon(lambda: "uid-of-the-first" not in world.ledger("n1").claims, 60)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_pod_recreated_under_its_name_does_not_keep_the_claim_of_the_first() -> None:
    """It lives on the same node, with a share of its own."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.share("s", 30)
        await world.bind("s", "n1")
        left = {"pod": "ns/s", "shares": [{"container": "main", "resource": GPU, "index": 1, "percent": 50}]}
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {"uid-of-the-first": left}}})
        await soon(lambda: "uid-of-the-first" not in world.ledger("n1").claims, 60)
        assert world.holders("n1") == {"ns/s": "0"}


@in_virtual_time
async def test_all_claims_of_a_group_go_wherever_they_were_left() -> None:
    """One after the other, by one name."""
    async with led_world() as world:
        await a_bound_group(world)
        world.node("n2")
        await soon(lambda: world.open("n2"))
        uid, left = world.read_group("team").uid, {"group": "team", "devices": [{"resource": GPU, "index": 1}]}
        world.cluster.edit(NODE_DEVICES, "n2", {"spec": {"claims": {uid: left}}})
        await asyncio.sleep(1)
        world.cluster.remove(PODS, "a", "ns")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.holders("n1") == world.holders("n2") == {}, 60)
        await a_bound_group(world)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_share_that_is_bound_between_two_looks_of_its_release_keeps_its_claim() -> None:
    """Nobody is told that its holder is gone."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        pod = world.share("s", 30)
        request = request_of(pod, None)
        assert request is not None
        await claim_all(world.cluster, [bind.wanted_share(request)], "n1")
        reads = 0

        def bound_late(verb: str, plural: str, name: str) -> None:
            nonlocal reads
            reads += (verb, plural, name) == ("get", PODS.plural, "s")
            if reads == 2:
                told = {"container": "main", "resource": GPU, "index": 0, "percent": 30}
                written = {"deviceshare.io/shares": json.dumps([told]), "deviceshare.io/pod-uid": pod.metadata.uid}
                written["deviceshare.io/group-uid"] = pod.metadata.uid
                bound = {"metadata": {"annotations": written}, "spec": {"nodeName": "n1"}}
                world.cluster.edit(PODS, "s", bound, "ns")
                reads += 1

        world.cluster.fail = bound_late
        with capture_logs() as logs:
            await asyncio.sleep(120)
        assert reads > 2
        assert "Kept claim in use" not in [each["event"] for each in logs]
        assert world.holders("n1") == {"ns/s": "0"}
    assert world.recorder.reasons("s") == []


@in_virtual_time
async def test_a_claim_that_is_recreated_before_the_mirror_shows_it_gone_is_collected_again() -> None:
    """Of a pod whose binds die: the same part of the same device, so that the mirror shows no difference."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        request = request_of(world.share("s", 30), None)
        assert request is not None
        await claim_all(world.cluster, [bind.wanted_share(request)], "n1")
        await asyncio.sleep(1)
        ledgers = world.cluster.mirrors[NODE_DEVICES.plural]
        ledgers.deaf = True
        await soon(lambda: world.holders("n1") == {}, 60)
        await claim_all(world.cluster, [bind.wanted_share(request)], "n1")
        ledgers.deaf = False
        ledgers.set("n1", world.ledger("n1"))
        assert world.holders("n1") == {"ns/s": "0"}
        await soon(lambda: world.holders("n1") == {}, 60)
