"""Which devices replace which, and what pods are told of it."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.groups import Group, GroupMeta
from deviceshare.domain.objects.hardware import NVLINK, Allocation, Hardware, Link, Part, Withheld
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import replacement
from deviceshare.domain.placement.handover import annotations_of
from tests.unit.domain.objects import AMD, GPU, gpus

TEAM = Group(GroupMeta(uid="a"))
NOT_DECIDED: Mapping[str, str] = {}
CDI = {"nvidia": vendors.NVIDIA.kinds[0]}


def gpu(index: int) -> Device:
    return Device(GPU, index, f"GPU-{index}")


def a_node(
    *broken: int, lost: tuple[int, ...] = (), links: tuple[tuple[int, int], ...] = (), **claims: Claim
) -> NodeDevices:
    """Four GPUs that an agent reports, and two AMD ones that nobody does."""
    parts = [
        Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79" if n in (*broken, *lost) else "", lost=n in lost) for n in range(4)
    ]
    hardware = Hardware(devices=parts, links=[Link(GPU, a, b, NVLINK, 4) for a, b in links])
    have = [*gpus(0, 1, 2, 3), Device(AMD, 0), Device(AMD, 1)]
    return NodeDevices(
        ObjectMeta(name="n1", resource_version="7"), LedgerSpec(dict(claims)), LedgerStatus(have, hardware=hardware)
    )


def reporting(ledger: NodeDevices, **more: Any) -> NodeDevices:
    """The ledger after its agent reported this besides."""
    return replace(ledger, status=replace(ledger.status, hardware=replace(ledger.hardware, **more)))


def a_pod(devices: Devices, former: Devices = (), handover: Mapping[str, str] = NOT_DECIDED) -> Pod:
    annotations = annotations_of(devices, handover)
    if former:
        annotations[contract.FORMER_DEVICES] = msgspec.json.encode(former).decode()
    return Pod(ObjectMeta(annotations=annotations), PodSpec(node_name="n1"))


def test_only_what_is_broken_is_replaced() -> None:
    """By the best connected to what the group keeps."""
    claim = Claim("a", [gpu(0), gpu(1)])
    verdict = replacement.judge(a_node(1, links=((0, 3),), a=claim), TEAM)
    assert (verdict.broken, verdict.replacements, verdict.obstacle) == ((gpu(1),), (gpu(3),), "")
    assert verdict.claims["a"].devices == [gpu(0), gpu(3)]


def test_a_lost_device_is_broken_too() -> None:
    """Whether its agent tells so, or the node just hasn't it any more."""
    claim = Claim("a", [gpu(1), Device(AMD, 5)])
    verdict = replacement.judge(a_node(lost=(1,), a=claim), TEAM)
    assert verdict.broken == (Device(AMD, 5), gpu(1))
    assert verdict.claims["a"].devices == [Device(AMD, 0), gpu(0)]


def test_what_plain_pods_got_or_may_get_is_replaced_too() -> None:
    """By what a placeholder keeps, where there are placeholders."""
    claim = Claim("a", [gpu(0), gpu(1)])
    ledger, web = a_node(a=claim), Allocation("shop/web", "w", GPU, [1])
    given = reporting(ledger, allocations=[web])
    assert replacement.judge(given, TEAM).claims["a"].devices == [gpu(0), gpu(2)]
    keeper = Allocation("system/keeper", "k", GPU, [0, 3], placeholder=True)
    kept = reporting(ledger, allocations=[keeper], placeholders=True)
    assert replacement.judge(kept, TEAM).claims["a"].devices == [gpu(0), gpu(3)]


def test_half_a_cure_is_none() -> None:
    """A group of two resources gets both replaced or neither."""
    claim, other = Claim("a", [gpu(0), Device(AMD, 5)]), Claim("b", [gpu(1), gpu(2), gpu(3)])
    verdict = replacement.judge(a_node(0, a=claim, b=other), TEAM)
    assert verdict.obstacle == f"needs 1 healthy {GPU} to replace 0, but node n1 has 0 free"
    assert (verdict.replacements, verdict.claims) == ((), {})


def test_a_group_that_has_numbers_is_given_no_uuids_beside_them() -> None:
    """Its pods would be told a mixture, which no runtime understands; the leader names its devices by UUID first."""
    claim = Claim("a", list(gpus(0, 1)))
    verdict = replacement.judge(a_node(1, a=claim), TEAM)
    assert not verdict.replacements
    assert "claims of this node (a) name devices by number" in verdict.obstacle


def test_what_was_former_stays_former() -> None:
    """Over several rebinds; only `release_former` takes anything away."""
    claim = Claim("a", [gpu(1)], former=[gpu(0)])
    seen = a_node(0, 1, a=claim)
    patch = replacement.rebind_patch(seen, "a", "token", replacement.judge(seen, TEAM))
    assert [device["index"] for device in patch["spec"]["claims"]["a"]["former"]] == [0, 1]


def test_a_pod_is_told_what_its_claim_holds_and_keeps_a_record_of_what_it_had() -> None:
    """All that it ever had, since any of its containers may hold it."""
    claim = Claim("a", [gpu(3)], former=[gpu(0), gpu(1)])
    change = replacement.pod_changes(a_pod((gpu(1),), (gpu(0),)), a_node(a=claim), claim)
    assert change[vendors.NVIDIA.annotation] == "GPU-3"
    assert change[vendors.AMD.annotation] is None
    former = json.loads(change[contract.FORMER_DEVICES] or "")
    assert [device["uuid"] for device in former] == ["GPU-0", "GPU-1"]


def test_a_pod_that_knows_already_is_left_alone() -> None:
    """And so is one that has what the claim doesn't reserve."""
    claim = Claim("a", [gpu(3)], former=[gpu(0)])
    assert replacement.pod_changes(a_pod((gpu(3),), (gpu(0),)), a_node(a=claim), claim) == {}
    assert replacement.pod_changes(a_pod((gpu(1),)), a_node(a=claim), claim) == {}


def by_cdi(ledger: NodeDevices) -> NodeDevices:
    """The same node, whose devices are injected by CDI."""
    return replace(ledger, status=replace(ledger.status, handover=CDI))


def test_a_pod_that_got_its_devices_by_cdi_keeps_them() -> None:
    """A container that restarts gets what the sandbox's annotations named: to rewrite them would be a lie."""
    claim = Claim("a", [gpu(0), gpu(3)], former=[gpu(1)])
    pod, node = a_pod((gpu(0), gpu(1)), handover=CDI), by_cdi(a_node(a=claim))
    change = replacement.pod_changes(pod, node, claim)
    assert change.keys() == {contract.FORMER_DEVICES}
    assert [device["uuid"] for device in json.loads(change[contract.FORMER_DEVICES] or "")] == ["GPU-1"]
    assert not replacement.is_current(pod, node, claim)
    assert not replacement.is_settled(pod, node, claim)


def test_what_it_keeps_is_written_down_once_and_stays_reserved() -> None:
    """Also where the node is told devices by UUID since: it is the pod's sandbox that counts."""
    claim = Claim("a", [gpu(0), gpu(3)], former=[gpu(1)])
    pod = a_pod((gpu(0), gpu(1)), (gpu(1),), handover=CDI)
    for node in (by_cdi(a_node(a=claim)), a_node(a=claim)):
        assert replacement.pod_changes(pod, node, claim) == {}
        assert not replacement.is_current(pod, node, claim)
        assert replacement.is_settled(pod, node, claim)
        assert replacement.covers(node, claim, pod.received)
    assert replacement.still_held(claim, [pod]) == (gpu(1),)


def test_a_recreated_pod_is_told_in_the_nodes_words() -> None:
    """Only such a pod sees what a rebind gave."""
    claim = Claim("a", [gpu(0), gpu(3)], former=[gpu(1)])
    pod = a_pod((gpu(0), gpu(3)), handover=CDI)
    assert pod.metadata.annotations[vendors.NVIDIA.cdi_annotation].endswith(f",{CDI['nvidia']}=GPU-3")
    assert replacement.is_current(pod, by_cdi(a_node(a=claim)), claim)


def test_a_node_that_cant_hand_over_replaces_nothing() -> None:
    """The reason is the hand-over's, not that devices are few."""
    claim = Claim("a", [gpu(1)])
    seen = a_node(1, a=claim)
    withheld = [Withheld(GPU, "no specification", devices=[*gpus(0, 1, 2, 3)])]
    barred = replace(seen, status=replace(seen.status, handover={"nvidia": "none"}, withheld=withheld))
    assert replacement.judge(barred, TEAM).obstacle == "can't be given other devices of node n1: no specification"


def test_a_former_device_is_held_by_whoever_was_told_its_number_or_its_uuid() -> None:
    """Some pods were told before there was an agent."""
    claim = Claim("a", [gpu(3)], former=[gpu(0), gpu(1), gpu(2)])
    pods = [a_pod(gpus(0)), a_pod((gpu(3),), (gpu(1),))]
    assert replacement.still_held(claim, pods) == (gpu(0), gpu(1))
    assert not replacement.same(Device(GPU, 0, "GPU-a"), Device(GPU, 0, "GPU-b"))


@given(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3), min_size=1), st.sets(st.integers(0, 3)))
def test_a_verdict_never_takes_what_is_broken_or_another_s(sick: set[int], mine: set[int], theirs: set[int]) -> None:
    """And holds as many as before."""
    claim, other = Claim("a", [gpu(n) for n in mine]), Claim("b", [], former=[gpu(n) for n in theirs - mine])
    verdict = replacement.judge(a_node(*sick, a=claim, b=other), TEAM)
    devices = verdict.claims.get("a", claim).devices
    assert len(devices) == len(mine)
    assert {device.index for device in verdict.broken} == sick & mine
    if not verdict.obstacle:
        held = {device.index for device in devices}
        assert held.isdisjoint(sick | (theirs - mine))
        assert mine - sick <= held
