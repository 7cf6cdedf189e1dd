"""A group without pods is released after as long as it says, never while a pod uses or wants it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.objects.groups import AFTER_LAST_POD, GroupLife
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Unavailable
from tests.unit.domain.objects import GPU
from tests.unit.loops.gated_world import gated, gated_world, here
from tests.unit.loops.live import World, a_bound_group, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

BEGAN = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture(autouse=True)
def wall_clock() -> Iterator[None]:
    """Shows virtual time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timestamps, "now", lambda: timestamps.timestamp(BEGAN + timedelta(seconds=now())))
        yield


@asynccontextmanager
async def an_idle_group(life: GroupLife | None = None, **spec: Any) -> AsyncIterator[World]:
    """The group team on node n1, whose only pod has just ended."""
    world = World(life=life or GroupLife())
    world.node("n1")
    async with world.leading():
        await a_bound_group(world)
        if spec:
            world.cluster.edit(GROUPS, "team", {"spec": spec})
        await asyncio.sleep(100)
        world.end("a")
        await soon(lambda: world.read_group("team").status.idle_since)
        yield world


def _idle_from(world: World, earliest: str) -> bool:
    """Both as deviceshare writes them, so that they compare as texts."""
    since = world.read_group("team").status.idle_since or ""
    return earliest <= since <= timestamps.now()


def released(world: World) -> bool:
    return not world.read_group("team").node and "team" not in world.holders("n1")


@in_virtual_time
async def test_an_idle_group_is_released_and_says_so() -> None:
    """Node, devices and claim are gone; condition and Event say why, for as long as no pod asks again."""
    async with an_idle_group(releaseAfter="20m") as world:
        await asyncio.sleep(1190)
        assert world.holders("n1") == {"team": "0,1"}
        await soon(lambda: released(world), 15)
        await asyncio.sleep(300)
        status = world.read_group("team").status
        assert (status.phase, status.idle_since, status.selected_devices) == ("Pending", "", {})
        assert world.condition("team", "Bound") == ("False", "Released")
        assert world.message("team") == "released after 20m without pods; its next pod binds it again"
        assert world.condition("team", "Healthy") == ("Unknown", "NotBound")
        [event] = [text for _, name, why, text in world.recorder.events if (name, why) == ("team", "Released")]
        assert event == f"{GPU} 0,1 on node n1 released after 20m without pods; its next pod binds it again"
        assert world.released == 1


@in_virtual_time
async def test_the_next_pod_binds_a_released_group_anew() -> None:
    """And the condition forgets the release."""
    async with an_idle_group(releaseAfter="10s") as world:
        await soon(lambda: released(world), 15)
        world.pod("b", "team")
        await world.bind("b", "n1")
        await soon(lambda: world.condition("team", "Bound") == ("True", "Claimed"))
        await asyncio.sleep(60)
        assert world.read_group("team").status.idle_since == ""
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_the_setting_holds_for_groups_that_say_nothing_and_never_is_an_answer() -> None:
    """A group's own word counts more."""
    async with an_idle_group(GroupLife("10s")) as world:
        world.group("keeper", releaseAfter="never")
        world.pod("k", "keeper")
        await world.bind("k", "n1")
        await asyncio.sleep(1)
        world.end("k")
        ended = timestamps.now()
        await soon(lambda: released(world), 15)
        await asyncio.sleep(600)
        assert world.holders("n1") == {"keeper": "2,3"}
        assert world.read_group("keeper").status.idle_since == ended


@in_virtual_time
async def test_a_group_in_use_is_never_released_whatever_its_status_says() -> None:
    """Somebody forged it: it is corrected, and a look at the pods goes before every release."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.pod("b", "team")
        await world.bind("b", "n1")
        world.cluster.edit(GROUPS, "team", {"status": {"idleSince": "2020-01-01T00:00:00Z"}})
        await soon(lambda: world.read_group("team").status.idle_since == "")
        world.cluster.mirrors[PODS.plural].deaf = True
        world.cluster.mirrors[PODS.plural].set("ns/b", None)
        world.cluster.edit(GROUPS, "team", {"status": {"idleSince": "2020-01-01T00:00:00Z"}})
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_pod_that_only_the_api_server_shows_costs_fewer_and_fewer_writes() -> None:
    """As one that can't be read may do for good; it marks the claim each time, and nobody joins meanwhile."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.cluster.mirrors[PODS.plural].deaf = True
        world.pod("b", "team")
        await world.bind("b", "n1")
        before = len(world.cluster.writes(NODE_DEVICES.plural))
        await asyncio.sleep(1200)
        assert len(world.cluster.writes(NODE_DEVICES.plural)) - before <= 120
        world.cluster.remove(PODS, "b", "ns")
        await soon(lambda: released(world), 100)


@in_virtual_time
async def test_a_time_in_the_future_or_none_at_all_begins_anew() -> None:
    """Clocks may be set back; what isn't a time is no reason to wait for ever."""
    async with an_idle_group(releaseAfter="10m") as world:
        for forged in ("2027-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "yesterday", None):
            world.cluster.edit(GROUPS, "team", {"status": {"idleSince": forged}})
            written = timestamps.now()
            await soon(partial(_idle_from, world, written))
        await soon(lambda: released(world), 620)


@in_virtual_time
async def test_a_leader_that_begins_knows_since_when_a_group_is_idle() -> None:
    """The time is in its status; a group of an older deviceshare has none and gets one."""
    async with an_idle_group(releaseAfter="10m") as world:
        await asyncio.sleep(300)
    next_world = world.successor()
    async with next_world.leading():
        await asyncio.sleep(200)
        assert next_world.holders("n1") == {"team": "0,1"}
        await soon(lambda: released(next_world), 120)


@in_virtual_time
async def test_a_pod_that_waits_keeps_the_group() -> None:
    """It wants the devices, though kube-scheduler found no room for it. When it is gone, the group is released."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.pod("b", "team", refused=True)
        await asyncio.sleep(600)
        assert world.holders("n1") == {"team": "0,1"}
        world.cluster.remove(PODS, "b", "ns")
        await soon(lambda: released(world), 5)


@pytest.mark.parametrize(
    "spec",
    [
        {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        {"nodeSelector": {"kubernetes.io/hostname": "n2"}},
        {"containers": [{"name": "main"}]},
    ],
    ids=["gated by others", "for another node", "not injected"],
)
@in_virtual_time
async def test_a_pod_that_can_not_join_keeps_no_group(spec: dict[str, Any]) -> None:
    """Binds of it that may be under way are waited out all the same."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.pod("b", "team", **spec)
        await soon(lambda: released(world), 60)


@in_virtual_time
async def test_a_bind_that_failed_keeps_no_group_for_ever() -> None:
    """Its pod went while it was under way, and nothing tells when it is over."""
    async with an_idle_group(releaseAfter="10s") as world:
        uid = world.read_group("team").uid
        world.fleet.assume(uid, Assumption("n1"))
        await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1"}
        world.fleet.forget(uid)
        await soon(lambda: released(world), 60)


@in_virtual_time
async def test_a_pod_that_comes_while_binds_are_waited_out_finds_the_group() -> None:
    """The mark goes at once, and with it what is in the pod's way."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.pod("b", "team", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
        await soon(lambda: world.holders("n1") == {"team": "0,1*"}, 15)
        world.pod("c", "team")
        await soon(lambda: world.holders("n1") == {"team": "0,1"}, 1)
        await world.bind("c", "n1")
        await asyncio.sleep(60)
        assert world.read_group("team").status.allocated_pods == ["ns/c"]
        assert "Released" not in world.recorder.reasons("team")


@in_virtual_time
async def test_never_is_heard_while_binds_are_waited_out() -> None:
    """Whoever says so keeps the devices, and the mark goes."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.pod("b", "team", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
        await soon(lambda: world.holders("n1") == {"team": "0,1*"}, 15)
        world.cluster.edit(GROUPS, "team", {"spec": {"releaseAfter": "never"}})
        await soon(lambda: world.holders("n1") == {"team": "0,1"}, 5)
        await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_the_spec_that_counts_is_the_one_in_the_api_server() -> None:
    """The mirror may be behind."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.cluster.mirrors[GROUPS.plural].deaf = True
        world.cluster.edit(GROUPS, "team", {"spec": {"releaseAfter": "never"}})
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"


@in_virtual_time
async def test_a_leader_that_stopped_half_way_leaves_nothing_behind() -> None:
    """Marked only: the mark goes or the release goes on. Unbound already: the claim is collected."""
    for failing in (GROUPS.plural, NODE_DEVICES.plural):
        async with an_idle_group(releaseAfter="10s") as world:
            marks = world.cluster.writes(NODE_DEVICES.plural)

            world.cluster.fail = partial(_failing, world, len(marks), failing)
            await asyncio.sleep(20)
            assert world.holders("n1") == {"team": "0,1*"}
        next_world = world.successor()
        async with next_world.leading():
            await soon(partial(released, next_world), 60)


def _failing(world: World, marks: int, what: str, *request: str) -> Unavailable | None:
    """Writes of one kind fail once the claim is marked."""
    begun = len(world.cluster.writes(NODE_DEVICES.plural)) > marks + (what == NODE_DEVICES.plural)
    return Unavailable("down") if request[:2] == ("patch", what) and begun else None


@in_virtual_time
async def test_an_idle_group_is_released_behind_gates() -> None:
    """A placed pod uses it, a waiting one keeps it, and the next one places it anew."""
    async with gated_world("n1") as world:
        world.group("team", releaseAfter="10s")
        gated(world, "a")
        await soon(lambda: here(world, "a"))
        await asyncio.sleep(60)
        assert world.read_group("team").node == "n1"
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: released(world), 20)
        gated(world, "b")
        await soon(lambda: here(world, "b"), 5)
        assert list(world.holders("n1")) == ["team"]


@in_virtual_time
async def test_a_pod_with_a_part_of_the_groups_devices_keeps_it_until_it_has_ended() -> None:
    """One that is being deleted still uses them, until it is gone."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.share("s", 30, group="team")
        await world.bind("s", "n1")
        deleting = {"metadata": {"deletionTimestamp": "2026-11-22T00:00:00Z", "finalizers": ["example.com/slow"]}}
        world.cluster.edit(PODS, "s", deleting, "ns")
        await asyncio.sleep(60)
        assert "team" in world.holders("n1")
        world.cluster.remove(PODS, "s", "ns")
        await soon(lambda: world.holders("n1") == {}, 60)
        assert not world.read_group("team").node


@in_virtual_time
async def test_a_deleted_group_that_others_keep_is_released_too() -> None:
    """Nobody can join it, and its finalizer may stay for ever."""
    async with an_idle_group(releaseAfter="10s") as world:
        world.pod("b", "team")
        world.cluster.edit(GROUPS, "team", {"metadata": {"deletionTimestamp": "2026-11-22T00:00:00Z"}})
        await soon(lambda: released(world), 60)


@in_virtual_time
async def test_an_idle_group_that_outlives_its_deletion_keeps_its_finalizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is released, not deleted, and nobody is told that it was."""
    async with an_idle_group(releaseAfter="20m", deletionPolicy=AFTER_LAST_POD) as world:
        world.cluster.remove(PODS, "a", "ns")
        written, patch = list[Any](), world.cluster.patch

        async def record(kind: Any, name: str, body: Any, **more: Any) -> Any:
            written.append(body.get("metadata", {}).get("finalizers"))
            return await patch(kind, name, body, **more)

        monkeypatch.setattr(world.cluster, "patch", record)
        await soon(lambda: released(world), 1300)
        await asyncio.sleep(60)
        assert world.read_group("team").metadata.finalizers == [contract.PODS_FINALIZER]
        assert [] not in written
    assert "Deleted" not in world.recorder.reasons("team")


@in_virtual_time
async def test_a_group_of_which_it_is_not_known_since_when_it_is_idle_waits_for_all_of_its_time() -> None:
    """Somebody wrote nonsense into its status, or a time that is yet to come."""
    async with an_idle_group(releaseAfter="20m") as world:
        world.cluster.edit(GROUPS, "team", {"status": {"idleSince": "2999-01-01T00:00:00Z"}})
        await asyncio.sleep(60)
        world.cluster.edit(GROUPS, "team", {"status": {"idleSince": "long ago"}})
        await asyncio.sleep(60)
        assert world.holders("n1") == {"team": "0,1"}
        await soon(lambda: released(world), 3000)
