"""What is asked a second time, of the API server, before something is taken from somebody for good.

Each was a condition that could be taken out of the code before, and no test noticed (`tests/mutants --generate`).
"""

import asyncio
from typing import Any

import pytest

from deviceshare.domain.objects.devices import devices_of
from deviceshare.domain.objects.ledger import Claim, NodeDevices, as_json, claims_patch, new_ledger
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import GPU_PERCENT, POD, Holder, Share
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.protocol import claiming, repair
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Cause, Outcome, release
from tests.unit.domain.objects import GPU, INJECTED, a_group, a_ledger, a_share_pod, gpus
from tests.unit.loops.live import soon
from tests.unit.loops.model import Actor, ModelCluster
from tests.unit.loops.test_group_deletions import OURS, a_kept_group, deleted, finalizers
from tests.unit.loops.test_idle_groups import an_idle_group, released, wall_clock
from tests.unit.loops.virtual_time import in_virtual_time

__all__ = ["wall_clock"]  # a fixture: idle time is read from it


def a_cluster(**claims: Claim) -> ModelCluster:
    """The node n1 of two devices with these claims, by the name of their group."""
    cluster = ModelCluster()
    cluster.put(NODES, {"metadata": {"name": "n1"}})
    held = {f"uid-of-{name}": claim for name, claim in claims.items()}
    spec = claims_patch(NodeDevices(), held)["spec"]
    cluster.put(NODE_DEVICES, {**new_ledger("n1"), "spec": spec, "status": {"devices": as_json(devices_of({GPU: 2}))}})
    return cluster


async def nobody(_: str) -> None:
    """No bind is under way."""


def test_a_release_leaves_a_group_alone_that_lives_elsewhere_by_now() -> None:
    """It left a claim here, which goes; what is asked after the mark says so, and the group stays bound where it is."""
    cluster = a_cluster(team=Claim("team", list(gpus(0))))
    meta = {"name": "team", "uid": "uid-of-team"}
    cluster.put(GROUPS, {"metadata": meta, "spec": {}, "status": {"nodeName": "n2"}})
    work = release(cluster, "n1", "uid-of-team", BindStop(nobody), Cause())
    assert Actor("release", work).finish() is Outcome.FREED
    found = cluster.read(GROUPS, "team")
    assert found is not None
    assert found.node == "n2"


def test_a_claim_that_is_marked_and_in_use_is_not_written_again() -> None:
    """Its group is gone, and a pod with its device lives."""
    cluster = a_cluster(team=Claim("team", list(gpus(0)), releasing="mark"))
    a_pod_of_team(cluster)
    before = cluster.read(NODE_DEVICES, "n1")
    assert Actor("release", release(cluster, "n1", "uid-of-team", BindStop(nobody))).finish() is Outcome.IN_USE
    after = cluster.read(NODE_DEVICES, "n1")
    assert before is not None and after is not None
    assert after.metadata.resource_version == before.metadata.resource_version


def test_a_pod_recreated_under_its_name_does_not_keep_the_share_of_the_first() -> None:
    """It lives on the same node, and isn't the holder."""
    cluster = a_cluster()
    claims = {"uid-of-first": Claim(pod="ns/p", shares=[Share("main", GPU, 0, percent=30)])}
    cluster.edit(NODE_DEVICES, "n1", claims_patch(NodeDevices(), claims))
    cluster.put(PODS, {"metadata": {"name": "p", "uid": "uid-of-second"}, "spec": {"nodeName": "n1"}}, "ns")
    work = release(cluster, "n1", "uid-of-first", BindStop(nobody))
    assert Actor("release", work).finish() is Outcome.FREED
    seen = cluster.read(NODE_DEVICES, "n1")
    assert seen is not None
    assert seen.claims == {}


def a_pod_of_team(cluster: ModelCluster, name: str = "p", device: int = 0) -> None:
    """It lives on n1, with this device."""
    written = {
        "deviceshare.io/group": "team",
        "deviceshare.io/group-uid": "uid-of-team",
        "deviceshare.io/pod-uid": f"uid-of-{name}",
        "deviceshare.io/selected-devices": f'{{"{GPU}": "{device}"}}',
    }
    meta = {"name": name, "uid": f"uid-of-{name}", "labels": {"deviceshare.io/group": "team"}, "annotations": written}
    spec = {"nodeName": "n1", "containers": [{"name": "main", "env": INJECTED}]}
    cluster.put(PODS, {"metadata": meta, "spec": spec}, "ns")


def readopted(cluster: ModelCluster) -> tuple[str, dict[str, Claim]]:
    """The node of the group whose status was wiped, and the claims, after the repair."""
    cluster.put(GROUPS, {"metadata": {"name": "team", "uid": "uid-of-team"}, "spec": {"resources": {GPU: 1}}})
    Actor("readopt", repair.readopt(cluster, "team")).finish()
    group, seen = cluster.read(GROUPS, "team"), cluster.read(NODE_DEVICES, "n1")
    assert group is not None and seen is not None
    return group.node, seen.claims


def test_a_wiped_status_is_repaired_though_the_claim_is_gone_too() -> None:
    cluster = a_cluster()
    a_pod_of_team(cluster)
    node, claims = readopted(cluster)
    assert node == "n1"
    assert claims["uid-of-team"].devices == list(gpus(0))


def test_nothing_is_repaired_where_others_have_the_devices_or_no_pod_lives() -> None:
    held, empty = a_cluster(other=Claim("other", list(gpus(0)))), a_cluster()
    a_pod_of_team(held)
    assert readopted(held)[0] == readopted(empty)[0] == ""
    seen = empty.read(NODE_DEVICES, "n1")
    assert seen is not None
    assert Actor("cover", repair.cover(empty, seen, [], "uid-of-team")).finish() is None


def test_a_claim_without_a_mark_is_not_written_when_a_status_is_repaired() -> None:
    cluster = a_cluster(team=Claim("team", list(gpus(0)), token="token"))
    a_pod_of_team(cluster)
    before = cluster.read(NODE_DEVICES, "n1")
    assert readopted(cluster)[0] == "n1"
    after = cluster.read(NODE_DEVICES, "n1")
    assert before is not None and after is not None
    assert after.metadata.resource_version == before.metadata.resource_version


@pytest.mark.parametrize(
    ("claim", "status", "named"),
    [
        (Claim("team", list(gpus(0)), token="token"), {"nodeName": "n1"}, "token"),
        (Claim("team", list(gpus(0)), token="token"), {"nodeName": "n1", "claimToken": "another"}, "token"),
        (Claim("team", list(gpus(0)), token="token", releasing="mark"), {"nodeName": "n1"}, ""),
        (Claim("team", list(gpus(0))), {"nodeName": "n1"}, ""),
        (Claim("team", list(gpus(0)), token="token"), {}, ""),
        (None, {"nodeName": "n1"}, ""),
        (Claim("team", list(gpus(0)), token="token"), {"nodeName": "n2"}, ""),
    ],
    ids=["no token", "another", "marked", "an old claim", "unbound", "no claim", "no ledger"],
)
def test_a_bound_group_names_its_claim_unless_that_is_being_released(
    claim: Claim | None, status: dict[str, str], named: str
) -> None:
    """It was bound by a version that knew no tokens, or somebody changed its status."""
    cluster = a_cluster(**({"team": claim} if claim else {}))
    meta = {"name": "team", "uid": "uid-of-team"}
    cluster.put(GROUPS, {"metadata": meta, "spec": {"resources": {GPU: 1}}, "status": status})
    Actor("name the claim", repair.name_claim(cluster, "team")).finish()
    assert Actor("name a claim", repair.name_claim(cluster, "gone")).finish() is None
    group = cluster.read(GROUPS, "team")
    assert group is not None
    assert group.status.claim_token == (named or status.get("claimToken", ""))


@pytest.mark.parametrize("device", [0, 1])
def test_a_pod_is_given_no_claim_of_what_another_has_or_had_before_a_rebind(device: int) -> None:
    """The other's containers may use the former device until they end."""
    cluster = a_cluster(other=Claim("other", list(gpus(0)), former=list(gpus(1))))
    written = {
        "deviceshare.io/group": "team",
        "deviceshare.io/group-uid": "uid-of-team",
        "deviceshare.io/pod-uid": "uid-of-p",
        "deviceshare.io/selected-devices": f'{{"{GPU}": "{device}"}}',
    }
    meta = {"name": "p", "uid": "uid-of-p", "labels": {"deviceshare.io/group": "team"}, "annotations": written}
    spec = {"nodeName": "n1", "containers": [{"name": "main", "env": INJECTED}]}
    cluster.put(PODS, {"metadata": meta, "spec": spec}, "ns")
    seen, pod = cluster.read(NODE_DEVICES, "n1"), cluster.read(PODS, "p", "ns")
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
    mine = claiming.wanted_share(request).choose(empty)
    assert isinstance(mine, Claim)
    for within, usable in ((group.uid, True), ("uid-of-old", False)):
        left = Claim(pod=holder.name, shares=mine.shares, within=within)
        empty.claims[holder.uid] = left
        found = claiming.wanted_share(request).choose(empty)
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
