"""Lost ledgers are recreated from what is left, whoever writes meanwhile."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Devices, as_json, devices_of
from deviceshare.domain.objects.ledger import new_ledger
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Conflict
from deviceshare.loops.protocol import repair
from tests.unit.domain.objects import GPU, gpus
from tests.unit.loops.model import Actor, ModelCluster, Pause


def a_cluster(groups: int) -> ModelCluster:
    """A node without a ledger, and groups that are bound nowhere."""
    cluster = ModelCluster()
    cluster.put(NODES, {"metadata": {"name": "n1", "labels": {contract.MODE_LABEL: contract.MODE_SHARED}}})
    for number in range(groups):
        cluster.put(GROUPS, {"metadata": {"name": f"g{number}"}, "spec": {"resources": {GPU: 1}}})
    return cluster


def filling(cluster: ModelCluster, waits: list[str]) -> Actor:
    """A leader that fills the ledger of n1, and the UIDs by which it waits."""

    async def wait_out(uid: str) -> None:
        waits.append(uid)
        await Pause("binds are over")

    gather = partial(repair.evidence, cluster)
    return Actor("leader", repair.fill(cluster, "n1", gather=gather, wait_out_binds=wait_out))


def a_pod(cluster: ModelCluster, group: str, node: str = "") -> None:
    annotations = {contract.GROUP: group}
    if node:
        annotations |= {contract.GROUP_UID: f"uid-of-{group}", contract.SELECTED_DEVICES: f'{{"{GPU}": "1"}}'}
    meta = {"name": "p", "labels": {contract.GROUP: group}, "annotations": annotations}
    cluster.put(PODS, {"metadata": meta, "spec": {"nodeName": node}}, "ns")


def claims(cluster: ModelCluster) -> dict[str, list[int]]:
    """By group, with an asterisk where the claim is marked."""
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    found = ledger.claims.values()
    return {f"{claim.group}{'*' * bool(claim.releasing)}": [d.index for d in claim.devices] for claim in found}


def test_a_new_ledger_is_filled_with_what_groups_and_live_pods_say() -> None:
    """Marked, since a release may be under way by a mark that was lost."""
    cluster, waits = a_cluster(2), list[str]()
    uid = cluster.put(NODE_DEVICES, new_ledger("n1"))["metadata"]["uid"]
    cluster.edit(GROUPS, "g0", {"status": {"nodeName": "n1", "selectedDevices": {GPU: "0"}}})
    a_pod(cluster, "g1", "n1")
    filling(cluster, waits).finish()
    assert (claims(cluster), waits) == ({"g0*": [0], "g1*": [1]}, [uid])
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None and ledger.filled


def test_what_is_bound_while_binds_are_waited_out_is_in_the_ledger() -> None:
    """It is listed again after the wait, for as long as any pod waits."""
    cluster = a_cluster(1)
    cluster.put(NODE_DEVICES, new_ledger("n1"))
    a_pod(cluster, "g0")
    leader = filling(cluster, [])
    while not leader.waiting:
        leader.step()
    cluster.edit(GROUPS, "g0", {"status": {"nodeName": "n1", "selectedDevices": {GPU: "0"}}})
    leader.finish()
    assert claims(cluster) == {"g0*": [0]}


def test_a_ledger_that_somebody_wrote_meanwhile_is_not_filled() -> None:
    """Of two leaders the second begins again, and finds it done."""
    cluster = a_cluster(1)
    cluster.put(NODE_DEVICES, new_ledger("n1"))
    late = filling(cluster, [])
    for _ in ("get ledger", "list groups", "list pods", "write ledger"):
        late.step()
    filling(cluster, []).finish()
    assert isinstance(late.finish(), Conflict)
    version = cluster.objects[NODE_DEVICES.plural]["n1"]["metadata"]["resourceVersion"]
    filling(cluster, []).finish()
    assert cluster.objects[NODE_DEVICES.plural]["n1"]["metadata"]["resourceVersion"] == version


def covering(cluster: ModelCluster, taken: Mapping[str, Any]) -> Devices | None:
    """What is claimed again for g0, which is bound to n1 with device 0, beside these claims."""
    cluster.edit(GROUPS, "g0", {"status": {"nodeName": "n1", "selectedDevices": {GPU: "0"}}})
    body = {**new_ledger("n1"), "spec": {"claims": taken}, "status": {"devices": as_json(devices_of({GPU: 2}))}}
    cluster.put(NODE_DEVICES, body)
    seen, group = cluster.read(NODE_DEVICES, "n1"), cluster.read(GROUPS, "g0")
    assert seen is not None and group is not None
    work = repair.cover(cluster, seen, cluster.all(PODS), group.uid, group)
    claim = Actor("leader", work).finish()
    return tuple(claim.devices) if claim else None


def test_a_bound_group_without_a_claim_gets_it_again_marked() -> None:
    """Collect takes the mark away, once no release can go on that read the group before."""
    cluster = a_cluster(1)
    assert covering(cluster, {}) == gpus(0)
    assert claims(cluster) == {"g0*": [0]}


def test_a_bound_group_whose_devices_others_have_gets_a_claim_without_any() -> None:
    """Nobody can join by it; the group is released."""
    cluster = a_cluster(1)
    taken = {"uid": {"group": "other", "devices": [{"resource": GPU, "index": 0}]}}
    assert covering(cluster, taken) == ()
    assert claims(cluster) == {"other": [0], "g0*": []}


def test_a_live_pod_whose_devices_others_have_is_left_to_a_person() -> None:
    """It is reported: the ledger can't say what is so."""
    cluster = a_cluster(1)
    cluster.objects[GROUPS.plural]["g0"]["metadata"]["uid"] = "uid-of-g0"
    a_pod(cluster, "g0", "n1")
    taken = {"uid": {"group": "other", "devices": [{"resource": GPU, "index": 1}]}}
    assert covering(cluster, taken) is None
    assert claims(cluster) == {"other": [1]}


def test_a_wiped_group_that_is_being_deleted_is_not_bound_again() -> None:
    """Its pods' claim keeps the devices until they have ended."""
    cluster = a_cluster(1)
    cluster.edit(GROUPS, "g0", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert Actor("leader", repair.readopt(cluster, "g0")).finish() is None


def test_a_collectors_mark_is_taken_away_before_the_group_is_bound_again() -> None:
    """The collector may have listed the pods already: without its mark its last write fails."""
    cluster = a_cluster(1)
    group = cluster.read(GROUPS, "g0")
    assert group is not None
    claim = {"group": "g0", "devices": as_json(devices_of({GPU: 1})), "releasing": "a mark"}
    cluster.put(NODE_DEVICES, {**new_ledger("n1"), "spec": {"claims": {group.uid: claim}}})
    annotations = {contract.GROUP: "g0", contract.GROUP_UID: group.uid, contract.SELECTED_DEVICES: f'{{"{GPU}": "0"}}'}
    meta = {"name": "p", "labels": {contract.GROUP: "g0"}, "annotations": annotations}
    cluster.put(PODS, {"metadata": meta, "spec": {"nodeName": "n1"}}, "ns")
    written = Actor("leader", repair.readopt(cluster, "g0")).finish()
    assert written.node == "n1"
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert ledger.claims[group.uid].releasing == ""
