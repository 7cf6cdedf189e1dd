"""What is asked a second time, of the API server, before something is taken from somebody for good.

Each was a condition that could be taken out of the code before, and no test noticed (`tests/mutants --generate`).
"""

import asyncio
from typing import Any

import pytest

from deviceshare.domain.objects.ledger import Claim, NodeDevices, claims_patch
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import GPU_PERCENT, POD, Holder, Share
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.protocol import bind, repair
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Cause, Outcome, release
from tests.unit.domain.objects import GPU, a_group, a_ledger, a_share_pod, gpus
from tests.unit.loops.live import soon
from tests.unit.loops.model import Actor
from tests.unit.loops.test_group_deletions import OURS, a_kept_group, deleted, finalizers
from tests.unit.loops.test_idle_groups import an_idle_group, released, wall_clock
from tests.unit.loops.test_repair_guards import a_cluster, a_pod, over
from tests.unit.loops.virtual_time import in_virtual_time

__all__ = ["wall_clock"]  # a fixture: idle time is read from it


def test_a_release_leaves_a_group_alone_that_lives_elsewhere_by_now() -> None:
    """It left a claim here, which goes; what is asked after the mark says so, and the group stays bound where it is."""
    cluster = a_cluster(team=Claim("team", list(gpus(0))))
    meta = {"name": "team", "uid": "uid-of-team"}
    cluster.put(GROUPS, {"metadata": meta, "spec": {}, "status": {"nodeName": "n2"}})
    work = release(cluster, "n1", "uid-of-team", BindStop(over), Cause())
    assert Actor("release", work).finish() is Outcome.FREED
    found = cluster.read(GROUPS, "team")
    assert found is not None
    assert found.node == "n2"


def test_a_claim_that_is_marked_and_in_use_is_not_written_again() -> None:
    """Its group is gone, and a pod with its device lives."""
    cluster = a_cluster(team=Claim("team", list(gpus(0)), releasing="mark"))
    a_pod(cluster, "team", 0)
    before = cluster.read(NODE_DEVICES, "n1")
    assert Actor("release", release(cluster, "n1", "uid-of-team", BindStop(over))).finish() is Outcome.IN_USE
    after = cluster.read(NODE_DEVICES, "n1")
    assert before is not None and after is not None
    assert after.metadata.resource_version == before.metadata.resource_version


def test_a_pod_recreated_under_its_name_does_not_keep_the_share_of_the_first() -> None:
    """It lives on the same node, and isn't the holder."""
    cluster = a_cluster()
    claims = {"uid-of-first": Claim(pod="ns/p", shares=[Share("main", GPU, 0, percent=30)])}
    cluster.edit(NODE_DEVICES, "n1", claims_patch(NodeDevices(), claims))
    cluster.put(PODS, {"metadata": {"name": "p", "uid": "uid-of-second"}, "spec": {"nodeName": "n1"}}, "ns")
    work = release(cluster, "n1", "uid-of-first", BindStop(over))
    assert Actor("release", work).finish() is Outcome.FREED
    seen = cluster.read(NODE_DEVICES, "n1")
    assert seen is not None
    assert seen.claims == {}


@pytest.mark.parametrize("device", [0, 1])
def test_a_pod_is_given_no_claim_of_what_another_has_or_had_before_a_rebind(device: int) -> None:
    """The other's containers may use the former device until they end."""
    cluster = a_cluster(other=Claim("other", list(gpus(0)), former=list(gpus(1))))
    a_pod(cluster, "team", device)
    seen, pod = cluster.read(NODE_DEVICES, "n1"), cluster.read(PODS, "team", "ns")
    assert seen is not None
    assert pod is not None

    def cover(ledger: NodeDevices) -> Any:
        return Actor("cover", repair.cover(cluster, ledger, [pod], "uid-of-team")).finish()

    assert cover(seen) is None
    cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {"uid-of-other": None}}})
    freed = cluster.read(NODE_DEVICES, "n1")
    assert freed is not None
    assert tuple(cover(freed).devices) == gpus(device)


def test_a_share_does_not_use_what_its_pod_claimed_of_another_groups_devices() -> None:
    """A bind ended half-way, and since then the group was created again under its name."""
    pod, group = a_share_pod("s", group="team", percent=40), a_group("team", 1, node="n1")
    request = request_of(pod, group)
    assert request is not None
    holder = Holder(pod.metadata.uid, POD, pod.metadata.key)
    empty = a_ledger("n1", {GPU: 2}, team=gpus(0), old=gpus(1))
    mine = bind.wanted_share(request).choose(empty, ())
    assert isinstance(mine, Claim)
    for within, usable in ((group.uid, True), ("uid-of-old", False)):
        left = Claim(pod=holder.name, shares=mine.shares, within=within)
        empty.claims[holder.uid] = left
        found = bind.wanted_share(request).choose(empty, ())
        assert (found == left) is usable
        if isinstance(found, Reason):
            assert found.kind is ReasonKind.CLAIM_RELEASING
    assert GPU_PERCENT in pod.share.resources


@in_virtual_time
async def test_a_finalizer_stays_while_a_pod_lives_that_the_mirror_does_not_show() -> None:
    """The group has no node any more, so that nothing is released first: only the list tells of the pod."""
    async with a_kept_group() as world:
        pods = world.cluster.mirrors[PODS.plural]
        pods.deaf = True
        pods.set("ns/a", None)
        deleted(world)
        world.cluster.edit(GROUPS, "team", {"status": None})
        await asyncio.sleep(30)
        assert finalizers(world) == [OURS]


@pytest.mark.parametrize("change", [{"spec": {"releaseAfter": "never"}}, {"spec": {"releaseAfter": "1h"}}])
@in_virtual_time
async def test_how_long_a_group_may_be_idle_is_asked_again_before_it_is_released(change: dict[str, Any]) -> None:
    """Its user has just changed it, and the mirror doesn't show that yet."""
    async with an_idle_group(releaseAfter="60s") as world:
        await asyncio.sleep(30)
        world.cluster.mirrors[GROUPS.plural].deaf = True
        world.cluster.edit(GROUPS, "team", change)
        await asyncio.sleep(120)
        assert not released(world)
        assert world.read_group("team").node == "n1"
        world.cluster.mirrors[GROUPS.plural].deaf = False
        world.cluster.edit(GROUPS, "team", {"spec": {"releaseAfter": "60s"}})
        await soon(lambda: released(world), 200)
