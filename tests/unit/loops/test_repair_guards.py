"""What one look of a repair, or of a count for a quota, leaves alone.

Each was a condition that could be taken out of the code before, and no test noticed (`tests/mutants --generate`).
"""

import json
from functools import partial
from typing import Any

import pytest

from deviceshare.domain.objects.devices import Device, as_json, devices_of
from deviceshare.domain.objects.ledger import Claim, NodeDevices, claims_patch, new_ledger
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.protocol import bind, repair
from deviceshare.loops.protocol.reserve import recount, reserve
from tests.unit.domain.objects import GPU, INJECTED, a_group, gpus
from tests.unit.domain.objects import a_share_pod as a_stranger
from tests.unit.loops.model import Actor, ModelCluster


def a_cluster(unreadable: dict[str, Any] | None = None, /, **claims: Claim) -> ModelCluster:
    """The node n1 of two devices with claims by their holder's name, and one of the group `team` in raw JSON."""
    cluster = ModelCluster()
    cluster.put(NODES, {"metadata": {"name": "n1"}})
    spec = claims_patch(NodeDevices(), {f"uid-of-{name}": claim for name, claim in claims.items()})["spec"]
    if unreadable:
        spec["claims"]["uid-of-team"] = unreadable
    status = {"devices": as_json(devices_of({GPU: 2}))}
    cluster.put(NODE_DEVICES, {**new_ledger("n1"), "spec": spec, "status": status})
    return cluster


def a_pod(cluster: ModelCluster, group: str, device: int, name: str = "") -> None:
    """Named as its group unless told otherwise, it lives on n1 with this device."""
    name = name or group
    written = {
        "deviceshare.io/group": group,
        "deviceshare.io/group-uid": f"uid-of-{group}",
        "deviceshare.io/pod-uid": f"uid-of-pod-{name}",
        "deviceshare.io/selected-devices": json.dumps({GPU: str(device)}),
    }
    labels = {"deviceshare.io/group": group}
    meta = {"name": name, "uid": f"uid-of-pod-{name}", "labels": labels, "annotations": written}
    cluster.put(PODS, {"metadata": meta, "spec": {"nodeName": "n1", "containers": [{"env": INJECTED}]}}, "ns")


def a_share_pod(cluster: ModelCluster, share: Share, group: str = "") -> None:
    """It lives on n1 and was told that it has this share, of the group's devices where it names one."""
    told = {"container": share.container, "resource": GPU, "index": share.index, "percent": share.percent}
    written = {"deviceshare.io/shares": json.dumps([told]), "deviceshare.io/pod-uid": "uid-of-s"}
    written |= {"deviceshare.io/group-uid": f"uid-of-{group}" if group else "uid-of-s"}
    written |= {"deviceshare.io/group": group} if group else {}
    meta = {"name": "s", "uid": "uid-of-s", "labels": {"deviceshare.io/group": group}, "annotations": written}
    cluster.put(PODS, {"metadata": meta, "spec": {"nodeName": "n1", "containers": [{"env": INJECTED}]}}, "ns")


def ledger(cluster: ModelCluster) -> NodeDevices:
    seen = cluster.read(NODE_DEVICES, "n1")
    assert seen is not None
    return seen


async def over(_: object) -> None:
    """No bind is under way."""


def restored(cluster: ModelCluster) -> dict[str, Claim]:
    """The claims once those that can't be read were written again."""
    gather = partial(repair.evidence, cluster)
    work = repair.restore_claims(cluster, ledger(cluster), gather=gather, wait_out_binds=over)
    Actor("restore", work).finish()
    return ledger(cluster).claims


def covered(cluster: ModelCluster, uid: str, **more: Any) -> Claim | None:
    """The claim that a repair writes for the holder, of all pods that there are."""
    work = repair.cover(cluster, ledger(cluster), cluster.all(PODS), uid, **more)
    claim: Claim | None = Actor("cover", work).finish()
    return claim


PRUNED = {"group": "team", "devices": [{"resource": GPU, "index": 1}], "former": 7}


def test_what_is_left_of_an_unreadable_claim_says_nothing() -> None:
    """Its holder's pods do."""
    cluster = a_cluster(PRUNED)
    a_pod(cluster, "team", 0)
    claim = restored(cluster)["uid-of-team"]
    assert (claim.devices, claim.former) == (list(gpus(0)), [])


def test_an_unreadable_claim_of_what_a_readable_one_holds_stays_as_it_is() -> None:
    cluster = a_cluster({**PRUNED, "devices": []}, other=Claim("other", list(gpus(1))))
    a_pod(cluster, "team", 1)
    assert restored(cluster)["uid-of-other"].devices == list(gpus(1))
    assert ledger(cluster).hidden_claims == {"uid-of-team"}


def test_a_restored_claim_has_no_token_of_a_claim_on_another_node() -> None:
    """Its group lives there by now, and a pod of it here."""
    cluster = a_cluster(PRUNED)
    a_pod(cluster, "team", 0)
    meta, status = {"name": "team", "uid": "uid-of-team"}, {"nodeName": "n2", "claimToken": "of n2"}
    cluster.put(GROUPS, {"metadata": meta, "spec": {"resources": {GPU: 1}}, "status": status})
    assert restored(cluster)["uid-of-team"].token not in ("", "of n2")


def test_pods_of_others_have_no_part_in_a_holders_claim() -> None:
    cluster = a_cluster()
    a_pod(cluster, "team", 0)
    a_pod(cluster, "other", 1)
    claim = covered(cluster, "uid-of-team")
    assert claim is not None
    assert claim.devices == list(gpus(0))


def test_a_bound_group_without_pods_gets_the_token_that_it_names() -> None:
    cluster = a_cluster()
    claim = covered(cluster, "uid-of-team", group=a_bound_group(cluster, 0))
    assert claim is not None
    assert (claim.devices, claim.token) == (list(gpus(0)), "its own")


def test_a_share_within_a_group_is_claimed_beside_the_groups_own_claim() -> None:
    cluster = a_cluster(team=Claim("team", list(gpus(0))))
    a_share_pod(cluster, Share("main", GPU, 0, percent=60), "team")
    claim = covered(cluster, "uid-of-s")
    assert claim is not None
    assert [(share.index, share.percent) for share in claim.shares] == [(0, 60)]


def test_a_share_is_measured_on_its_own_device_alone() -> None:
    """Half of the other device is taken."""
    cluster = a_cluster(t=Claim(pod="ns/t", shares=[Share("main", GPU, 1, percent=50)]))
    a_share_pod(cluster, Share("main", GPU, 0, percent=60))
    assert covered(cluster, "uid-of-s") is not None


def a_bound_group(cluster: ModelCluster, device: int) -> Any:
    """The group `team`, whose status says that it has this device of n1."""
    status = {"nodeName": "n1", "claimToken": "its own", "selectedDevices": {GPU: str(device)}}
    meta = {"name": "team", "uid": "uid-of-team"}
    cluster.put(GROUPS, {"metadata": meta, "spec": {"resources": {GPU: 1}}, "status": status})
    return cluster.read(GROUPS, "team")


def claimed_twice(cluster: ModelCluster) -> list[Device]:
    return [state.device for state in device_states(ledger(cluster)) if state.claimed_twice]


A_DISPUTE = {"a": Claim("a", list(gpus(0))), "b": Claim("b", list(gpus(0, 1)))}
"""Whichever is taken for wrong, device 1 is in a claim."""


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_claim_that_contradicts_another_holds_its_devices_all_the_same(names: str) -> None:
    """A pod's and a group's evidence for one of them gives that no second owner, nor a third."""
    of_pod, of_group = (a_cluster(**{name: A_DISPUTE[name] for name in names}) for _ in range(2))
    a_pod(of_pod, "team", 1)
    assert covered(of_pod, "uid-of-team") is None
    claim = covered(of_group, "uid-of-team", group=a_bound_group(of_group, 1))
    assert claim is not None
    assert claim.devices == []
    assert claimed_twice(of_pod) == claimed_twice(of_group) == [*gpus(0)]


def test_a_group_one_of_whose_pods_has_what_others_have_is_left_to_a_person() -> None:
    """What its other pod has isn't claimed for both."""
    cluster = a_cluster(other=Claim("other", list(gpus(1))))
    for name, device in (("a", 0), ("b", 1)):
        a_pod(cluster, "team", device, name)
    assert covered(cluster, "uid-of-team") is None
    assert ledger(cluster).claims.keys() == {"uid-of-other"}


def test_a_claim_that_can_be_read_holds_its_devices_though_it_contradicts_another() -> None:
    """One that can't be read isn't written again with one of them."""
    cluster = a_cluster({**PRUNED, "devices": []}, **A_DISPUTE)
    a_pod(cluster, "team", 1)
    restored(cluster)
    assert ledger(cluster).hidden_claims == {"uid-of-team"}


@pytest.mark.parametrize("alive", [False, True])
def test_a_group_whose_device_a_stranger_shares_by_now_does_not_get_it_back(alive: bool) -> None:
    """Somebody deleted its claim by hand; beside what was a share within it, another pod got a part by its bind."""
    part = Claim(pod="ns/inside", shares=[Share("main", GPU, 1, percent=40)], within="uid-of-team")
    cluster = a_cluster(other=Claim("other", list(gpus(0))), inside=part)
    stranger = a_stranger("s", percent=40)
    request = request_of(stranger, None)
    assert request is not None
    claim = bind.wanted_share(request).choose(ledger(cluster), ())
    assert isinstance(claim, Claim)
    assert claim.devices == list(gpus(1))
    cluster.edit(NODE_DEVICES, "n1", claims_patch(ledger(cluster), {stranger.metadata.uid: claim}))
    group = a_bound_group(cluster, 1)
    if alive:
        a_pod(cluster, "team", 1)
    written = covered(cluster, "uid-of-team", group=group)
    assert (written.devices if written else None) == (None if alive else [])
    assert claimed_twice(cluster) == []


def test_a_share_within_a_group_that_lost_its_claim_has_only_what_the_others_leave() -> None:
    """Without that claim all shares of the device are counted as one."""
    part = Claim(pod="ns/inside", shares=[Share("main", GPU, 1, percent=60)], within="uid-of-team")
    for size, fits in ((60, False), (40, True)):
        cluster = a_cluster(inside=part)
        a_share_pod(cluster, Share("main", GPU, 1, percent=size), "team")
        assert (covered(cluster, "uid-of-s") is not None) is fits


def test_a_share_of_a_device_that_its_group_does_not_have_is_counted_beside_all_others() -> None:
    others = Claim(pod="ns/other", shares=[Share("main", GPU, 1, percent=60)], within="uid-of-team")
    cluster = a_cluster(team=Claim("team", list(gpus(0))), other=others)
    a_share_pod(cluster, Share("main", GPU, 1, percent=60), "team")
    assert covered(cluster, "uid-of-s") is None


def readopted(cluster: ModelCluster) -> tuple[str, dict[str, Claim]]:
    """The node of the group whose status was wiped, and the claims, after the repair."""
    cluster.put(GROUPS, {"metadata": {"name": "team", "uid": "uid-of-team"}, "spec": {"resources": {GPU: 1}}})
    Actor("readopt", repair.readopt(cluster, "team")).finish()
    group, seen = cluster.read(GROUPS, "team"), cluster.read(NODE_DEVICES, "n1")
    assert group is not None and seen is not None
    return group.node, seen.claims


def test_a_wiped_status_is_repaired_though_the_claim_is_gone_too() -> None:
    cluster = a_cluster()
    a_pod(cluster, "team", 0)
    node, claims = readopted(cluster)
    assert node == "n1"
    assert claims["uid-of-team"].devices == list(gpus(0))


def test_nothing_is_repaired_where_others_have_the_devices_or_no_pod_lives() -> None:
    held, empty = a_cluster(other=Claim("other", list(gpus(0)))), a_cluster()
    a_pod(held, "team", 0)
    assert readopted(held)[0] == readopted(empty)[0] == ""
    seen = empty.read(NODE_DEVICES, "n1")
    assert seen is not None
    assert Actor("cover", repair.cover(empty, seen, [], "uid-of-team")).finish() is None


def test_a_claim_without_a_mark_is_not_written_when_a_status_is_repaired() -> None:
    cluster = a_cluster(team=Claim("team", list(gpus(0)), token="token"))
    a_pod(cluster, "team", 0)
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


def test_a_quota_that_is_gone_is_not_counted() -> None:
    assert Actor("count", recount(ModelCluster(), "q", suspects=[], bound=[])).finish() is None


def test_groups_are_listed_for_a_quota_that_was_not_counted_yet_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, listed = ModelCluster(), list[str]()
    cluster.put(DEVICE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {GPU: 2}}})
    as_it_is = cluster.list

    async def listing(kind: Any, *given: Any, **named: Any) -> list[Any]:
        listed.append(kind.plural)
        found: list[Any] = await as_it_is(kind, *given, **named)
        return found

    monkeypatch.setattr(cluster, "list", listing)
    for _ in range(2):
        Actor("count", recount(cluster, "q", suspects=[], bound=[])).finish()
    assert listed == [GROUPS.plural]


def a_quota(cluster: ModelCluster, **labels: str) -> None:
    """One that nobody counted yet, for groups with these labels."""
    spec = {"hard": {GPU: 2}, "groupSelector": {"matchLabels": labels}}
    cluster.put(DEVICE_QUOTAS, {"metadata": {"name": "q"}, "spec": spec})


def reservations(cluster: ModelCluster) -> set[str]:
    quota = cluster.read(DEVICE_QUOTAS, "q")
    assert quota is not None
    return set(quota.status.reservations)


def test_a_quota_that_does_not_count_the_group_any_more_reserves_nothing_for_it() -> None:
    """It is larger than what the quota allows, too."""
    cluster = ModelCluster()
    a_quota(cluster, team="red")
    Actor("count", recount(cluster, "q", suspects=[], bound=[])).finish()
    assert Actor("reserve", reserve(cluster, a_group("blue", count=3), ["q"])).finish() == []
    assert reservations(cluster) == set()


def test_a_group_that_cannot_be_read_is_not_counted() -> None:
    """How much it has isn't known."""
    cluster = ModelCluster()
    a_quota(cluster)
    for name, resources in (("one", {GPU: 1}), ("hidden", 7)):
        meta = {"name": name, "uid": f"uid-of-{name}"}
        cluster.put(GROUPS, {"metadata": meta, "spec": {"resources": resources}, "status": {"nodeName": "n1"}})
    Actor("count", recount(cluster, "q", suspects=[], bound=[])).finish()
    assert reservations(cluster) == {"uid-of-one"}


def test_a_bound_group_without_a_reservation_is_counted_as_it_was_mirrored() -> None:
    """It isn't read again: whoever reserved for it meanwhile wrote the quota, so this write fails."""
    cluster = ModelCluster()
    a_quota(cluster)
    Actor("first count", recount(cluster, "q", suspects=[], bound=[])).finish()
    bound = a_group("one", count=1, node="n1")
    Actor("count", recount(cluster, "q", suspects=[], bound=[bound])).finish()
    assert reservations(cluster) == {bound.uid}
