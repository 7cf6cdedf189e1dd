"""Lost ledgers are recreated from what is left, whoever writes meanwhile."""

from collections.abc import Callable

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import devices_of
from deviceshare.domain.objects.ledger import Claim, new_ledger
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.protocol import repair
from deviceshare.loops.protocol.repair import Evidence
from tests.unit.domain.objects import GPU, free_on
from tests.unit.loops.model import Actor, ModelCluster

WAITING_GROUPS = 300


def a_cluster(groups: int) -> ModelCluster:
    """A node without a ledger, and groups that are bound nowhere."""
    cluster = ModelCluster()
    cluster.put(NODES, {"metadata": {"name": "n1", "labels": {contract.MODE_LABEL: contract.MODE_SHARED}}})
    for number in range(groups):
        cluster.put(GROUPS, {"metadata": {"name": f"g{number}"}, "spec": {"resources": {GPU: 1}}})
    return cluster


def gather(cluster: ModelCluster, meanwhile: Callable[[int], None]) -> Evidence:
    """Fenced evidence, with something happening before each request but the first."""
    actor = Actor("leader", repair.fenced_evidence(cluster))
    actor.step()
    actor.step()
    requests = 0
    while not actor.over:
        meanwhile(requests)
        actor.step()
        requests += 1
    assert requests <= 2 * WAITING_GROUPS + 1, "no group is begun again"
    assert isinstance(actor.outcome, Evidence), actor.outcome
    return actor.outcome


def test_a_ledger_does_not_starve_under_groups_that_are_written_all_the_time() -> None:
    """Their conditions change while hundreds of them wait: each such write is as good a fence as ours."""
    cluster = a_cluster(WAITING_GROUPS)
    before = {group.name: group.metadata.resource_version for group in cluster.all(GROUPS)}

    def every_group_is_written(requests: int) -> None:
        for group in before:
            cluster.edit(GROUPS, group, {"status": {"phase": "Pending"}})

    evidence = gather(cluster, every_group_is_written)
    assert len(evidence.groups) == WAITING_GROUPS
    assert all(group.metadata.resource_version != before[group.name] for group in cluster.all(GROUPS))


def test_every_bind_fails_that_read_an_unbound_group_before_the_evidence_was_gathered() -> None:
    """Its version has moved on."""
    cluster = a_cluster(3)
    before = {group.metadata.resource_version for group in cluster.all(GROUPS)}
    gather(cluster, lambda requests: None)
    assert before.isdisjoint(group.metadata.resource_version for group in cluster.all(GROUPS))


def test_a_group_bound_while_evidence_is_gathered_counts_as_bound() -> None:
    """The LIST still showed it unbound; its devices must not be anybody else's."""
    cluster = a_cluster(3)
    bound = {"status": {"nodeName": "n1", "selectedDevices": {GPU: "0"}}}
    evidence = gather(cluster, lambda requests: cluster.edit(GROUPS, "g1", bound) if requests == 0 else None)
    assert [group.node for group in evidence.groups] == ["", "n1", ""]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_group_deleted_while_evidence_is_gathered_is_left_out(at: int) -> None:
    """Before our fence, or between its conflict and our look."""
    cluster = a_cluster(2)

    def change(requests: int) -> None:
        if requests == 0:
            cluster.edit(GROUPS, "g0", {})
        if requests == at:
            cluster.remove(GROUPS, "g0")

    evidence = gather(cluster, change)
    assert len(evidence.groups) == (2 if at == 2 else 1)


def test_a_ledger_is_opened_only_after_a_second_look() -> None:
    """A group was bound, and a pod of another got devices, after the evidence that the closed ledger was made from."""
    cluster = a_cluster(2)
    node = cluster.read(NODES, "n1")
    assert node is not None
    cluster.put(NODE_DEVICES, new_ledger(node, {}))
    cluster.edit(GROUPS, "g0", {"status": {"nodeName": "n1", "selectedDevices": {GPU: "0"}}})
    annotations = {
        contract.GROUP: "g1",
        contract.GROUP_UID: "uid-of-g1",
        contract.SELECTED_DEVICES: f'{{"{GPU}": "1"}}',
    }
    meta = {"name": "p", "labels": {contract.GROUP: "g1"}, "annotations": annotations}
    cluster.put(PODS, {"metadata": meta, "spec": {"nodeName": "n1"}}, "ns")
    work = repair.open_ledger(cluster, "n1", devices_of({GPU: 4}), gather=lambda: repair.evidence(cluster), mark="m")
    assert Actor("leader", work).finish() == []
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert {claim.group: [device.index for device in claim.devices] for claim in ledger.claims.values()} == {
        "g0": [0],
        "g1": [1],
    }
    assert [device.index for device in free_on(ledger)] == [2, 3]


def test_a_wiped_group_that_is_being_deleted_is_not_bound_again() -> None:
    """Its pods' claim keeps the devices until they have ended."""
    cluster = a_cluster(1)
    cluster.edit(GROUPS, "g0", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert Actor("leader", repair.readopt(cluster, "g0", token="t1")).finish() is None


def test_a_ledger_is_recreated_with_what_a_bound_group_holds_before_it_has_pods() -> None:
    """Its first pod may be on its way."""
    cluster = a_cluster(1)
    cluster.edit(GROUPS, "g0", {"status": {"nodeName": "n1", "selectedDevices": {GPU: "0"}}})
    node = cluster.read(NODES, "n1")
    assert node is not None

    async def over() -> None:
        """Every bind is over."""

    work = repair.recreate(cluster, node, gather=lambda: repair.fenced_evidence(cluster), mark="m", wait_out_binds=over)
    assert Actor("leader", work).finish().disputed == []
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert [claim.group for claim in ledger.claims.values()] == ["g0"]


def test_a_collectors_mark_is_taken_away_before_the_group_is_bound_again() -> None:
    """The collector may have listed the pods already: without its mark its last write fails."""
    cluster = a_cluster(1)
    group, node = cluster.read(GROUPS, "g0"), cluster.read(NODES, "n1")
    assert group is not None and node is not None
    claim = Claim("g0", list(devices_of({GPU: 1})))
    body = new_ledger(node, {group.uid: claim})
    body["spec"]["claims"][group.uid]["releasing"] = "a mark"
    cluster.put(NODE_DEVICES, body)
    annotations = {contract.GROUP: "g0", contract.GROUP_UID: group.uid, contract.SELECTED_DEVICES: f'{{"{GPU}": "0"}}'}
    meta = {"name": "p", "labels": {contract.GROUP: "g0"}, "annotations": annotations}
    cluster.put(PODS, {"metadata": meta, "spec": {"nodeName": "n1"}}, "ns")
    written = Actor("leader", repair.readopt(cluster, "g0", token="t1")).finish()
    assert written.node == "n1"
    ledger = cluster.read(NODE_DEVICES, "n1")
    assert ledger is not None
    assert ledger.claims[group.uid].releasing == ""
