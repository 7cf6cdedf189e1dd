"""Which of a node's devices groups get, which they don't, and that nobody gets one twice."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.explanation import Case, explain_group, verdicts
from deviceshare.domain.answers.group_status import desired_status
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.hardware import NO_HARDWARE, Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.allocation import Assumption, available, choose
from deviceshare.domain.placement.device_states import device_states, held_by
from deviceshare.domain.placement.inventory import KEPT_OUT, Offer, take
from deviceshare.domain.placement.replacement import judge
from deviceshare.loops.protocol.bind import joinable
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, a_pod, free_on, gpus

A910, A310 = "huawei.com/Ascend910", "huawei.com/Ascend310P"
PARTS = [Part(GPU, index, f"GPU-{index}") for index in range(4)]
AGENT = Hardware(devices=PARTS)


def annotated(text: str, devices: Mapping[str, int] | None = None) -> Node:
    node = a_node(devices=devices)
    return replace(node, metadata=replace(node.metadata, annotations={contract.INVENTORY_ANNOTATION: text}))


def booked(offer: Offer, hardware: Hardware = NO_HARDWARE, **claims: Devices) -> NodeDevices:
    """The ledger as the leader writes it."""
    status = LedgerStatus(devices=list(offer.devices), withheld=list(offer.withheld), hardware=hardware)
    return replace(a_ledger("n1", None, releasing=(), **claims), status=status)


def withheld(offer: Offer) -> dict[str, str]:
    return {each.named: each.reason for each in offer.withheld}


def test_the_owner_keeps_a_display_out_by_number() -> None:
    """What the device plugin or the agent tells besides is known, and nobody's."""
    without_agent = take(annotated(f"{GPU}=1-3"), NO_HARDWARE)
    assert without_agent.devices == gpus(1, 2, 3)
    assert withheld(without_agent) == {f"{GPU} 0": KEPT_OUT}
    assert free_on(booked(without_agent)) == gpus(1, 2, 3)
    with_agent = booked(take(annotated(f"{GPU}=1-3"), AGENT), AGENT)
    assert free_on(with_agent) == tuple(part.device for part in PARTS[1:])
    assert with_agent.kept_out == {PARTS[0].device: KEPT_OUT}


def test_a_device_kept_out_by_uuid_stays_out_whatever_its_number_is() -> None:
    """A reboot renumbers; until the leader has written that, the ledger still says so."""
    offer = take(annotated(f"{GPU}=GPU-1,GPU-2"), AGENT)
    assert withheld(offer) == {f"{GPU} 0,3": KEPT_OUT}
    turned = Hardware(devices=[replace(part, index=3 - part.index) for part in PARTS])
    swapped = Hardware(devices=[replace(part, uuid=f"GPU-{(part.index + 2) % 4}") for part in PARTS])
    for hardware in (AGENT, turned, swapped):
        seen = booked(offer, hardware)
        assert {device.uuid for device in free_on(seen)} == {"GPU-1", "GPU-2"}
        assert {device.uuid for device in seen.kept_out} == {"GPU-0", "GPU-3"}


def test_what_amds_plugin_finds_unhealthy_stays_withheld_where_an_agent_reports() -> None:
    """Until somebody says which may be used, by their unique IDs: the agent hears of no faults of theirs."""
    hardware = Hardware(devices=[Part(AMD, index, f"0x{index + 10:x}") for index in range(2)])
    assert [each.uuid for each in take(a_node(devices={AMD: 2}), hardware).devices] == ["", ""]
    node = a_node(devices={AMD: 1})
    sick = replace(node, status=replace(node.status, capacity={AMD: "2"}))
    offer = take(sick, hardware)
    assert offer.devices == () and "unhealthy, unknown which" in offer.withheld[0].reason
    named = replace(sick, metadata=annotated(f"{AMD}=0xb").metadata)
    assert take(named, hardware).devices == (hardware.devices[1].device,)


@pytest.mark.parametrize(
    ("text", "hardware", "fault"),
    [
        (f"{GPU}=GPU-1", NO_HARDWARE, "only deviceshare's agent knows UUIDs"),
        (f"{GPU}=GPU-9", AGENT, "the node has no GPU-9"),
        (f"{GPU}=many", NO_HARDWARE, "not 'many'"),
        (f"{GPU}=many", AGENT, "not 'many'"),
        ("gpu=1-3", NO_HARDWARE, "unknown resource 'gpu'"),
        ("1-3", AGENT, "unknown resource '1-3'"),
        (f"{GPU}=1-3,{GPU}=1-2", NO_HARDWARE, "named twice"),
    ],
)
def test_an_annotation_that_cannot_be_read_keeps_everything_out(text: str, hardware: Hardware, fault: str) -> None:
    """Somebody wanted to keep a device out: nobody knows which."""
    offer = take(annotated(text), hardware)
    assert offer.devices == ()
    assert fault in offer.faults[0].text
    (reason,) = withheld(offer).values()
    assert fault in reason


def test_a_fault_leaves_the_rest_of_the_annotation_alone() -> None:
    """Each resource for itself."""
    offer = take(annotated(f"{GPU}=2,{AMD}=x,example.org/gpu=1"), NO_HARDWARE)
    assert offer.devices == gpus(0, 1)
    assert len(offer.faults) == 2


LISTS = st.sets(st.integers(0, 5), min_size=2).map(lambda chosen: f"{GPU}={','.join(map(str, sorted(chosen)))}")
UUIDS = st.sets(st.integers(0, 5), min_size=1).map(lambda n: f"{GPU}={','.join(f'GPU-{i}' for i in sorted(n))}")


@given(LISTS | UUIDS | st.integers(0, 6).map(lambda n: f"{GPU}={n}"), st.booleans(), st.sets(st.integers(0, 5)))
def test_what_is_kept_out_is_given_to_nobody_and_what_is_held_stays_held(
    text: str, agent: bool, held: set[int]
) -> None:
    """Before and after; every device is offered or kept out, never both."""
    hardware = Hardware(devices=[Part(GPU, index, f"GPU-{index}") for index in range(6)]) if agent else NO_HARDWARE
    offer = take(annotated(text, {GPU: 6}), hardware)
    seen = booked(offer, hardware, old=tuple(Device(GPU, n, f"GPU-{n}" * agent) for n in sorted(held)))
    offered, kept_out = {d.index for d in seen.devices}, {d.index for d in seen.kept_out}
    assert offered | kept_out == set(range(6))
    assert not offered & kept_out
    assert {device.index for device in free_on(seen)} == offered - held
    assert {device.index for device in seen.held(seen.claims["uid-of-old"])} == held
    assert not any(state.lost for state in held_by(device_states(seen), "uid-of-old"))


def test_a_group_that_holds_what_is_kept_out_goes_on_and_may_move_off_it() -> None:
    """Pods join it; a rebind gives it another device."""
    node = annotated(f"{GPU}=1-3")
    seen = booked(take(node, NO_HARDWARE), team=gpus(0))
    group, fleet = a_group(count=1, node="n1"), a_fleet(node, ledgers=(seen,))
    assert fleet.filter(group.request, ["n1"]).fits == ["n1"]
    assert joinable(seen, group.holder, "") == gpus(0)
    assert desired_status(group, fleet, home=node, pods=(), now="").phase == "Bound"
    assert judge(seen, group).claims["uid-of-team"].devices == [*gpus(1)]


def test_who_waits_reads_why_devices_are_withheld() -> None:
    """In the filter's reason, the condition and explain."""
    node = a_node(devices={GPU: 16, "nvidia.com/gpu.shared": 0})
    node = replace(node, metadata=replace(node.metadata, labels={**node.metadata.labels, f"{GPU}.count": "4"}))
    fleet = a_fleet(node, ledgers=(booked(take(node, NO_HARDWARE)),))
    group = a_group(count=2)
    reason = fleet.filter(group.request, ["n1"]).reasons["n1"]
    assert reason.kind is ReasonKind.DEVICES_WITHHELD
    assert reason.text == f"the node offers no {GPU} to groups: its labels ({GPU}.count=4) contradict 16 allocatable"
    assert "kubectl annotate node NODE deviceshare.io/devices=nvidia.com/gpu=" in reason.cure
    said = explain_group(Case(fleet, group, None, [a_pod()]))
    assert str(reason) in said.message
    assert [verdict.why for verdict in verdicts(fleet, group.request)] == [reason]


def test_a_bound_group_is_told_why_its_devices_may_not_be_there() -> None:
    """They are not lost: nobody knows."""
    node = a_node(devices={GPU: 28})
    labels = {**node.metadata.labels, f"{GPU}.product": "A100-MIG-1g.5gb"}
    node = replace(node, metadata=replace(node.metadata, labels=labels))
    group, fleet = a_group(node="n1"), a_fleet(node, ledgers=(booked(take(node, NO_HARDWARE), team=gpus(0, 1)),))
    healthy = desired_status(group, fleet, home=node, pods=(), now="").conditions[1]
    assert (healthy.reason, "split by MIG" in healthy.message) == ("DevicesUnknown", True)
    assert "split by MIG" in fleet.filter(group.request, ["n1"]).reasons["n1"].text


def test_unhealthy_devices_that_nobody_can_name_leave_holders_alone() -> None:
    """Nobody new gets any."""
    body = msgspec.to_builtins(a_node(devices={GPU: 3}))
    body["status"]["capacity"] = {GPU: "4"}
    node = msgspec.convert(body, Node)
    seen = booked(take(node, NO_HARDWARE), team=gpus(2, 3))
    group, fleet = a_group(node="n1"), a_fleet(node, ledgers=(seen,))
    assert free_on(seen) == ()
    assert (
        "1 of its 4 nvidia.com/gpu are unhealthy" in fleet.filter(a_group("other").request, ["n1"]).reasons["n1"].text
    )
    assert fleet.filter(group.request, ["n1"]).fits == ["n1"]
    assert desired_status(group, fleet, home=node, pods=(), now="").phase == "Bound"


def test_resources_behind_one_variable_are_offered_only_if_they_can_be_told_apart() -> None:
    """Both count from 0; the owner can say which are which."""
    both = {A910: 4, A310: 4}
    unsaid = take(a_node(devices=both), NO_HARDWARE)
    assert unsaid.devices == ()
    assert all("share ASCEND_VISIBLE_DEVICES" in reason for reason in withheld(unsaid).values())
    assert take(annotated(f"{A910}=4,{A310}=4", both), NO_HARDWARE).devices == ()
    assert take(annotated(f"{A910}=0-3,{A310}=3-6", both), NO_HARDWARE).devices == ()
    apart = take(annotated(f"{A910}=0-3,{A310}=4-7", both), NO_HARDWARE)
    assert [str(device) for device in apart.devices] == [f"{A310} {n}" for n in range(4, 8)] + [
        f"{A910} {n}" for n in range(4)
    ]
    assert not any(each.devices for each in apart.withheld)
    one = take(annotated(f"{A910}=4", both), NO_HARDWARE)
    assert {device.resource for device in one.devices} == {A910}
    virtual = take(a_node(devices={A910: 7, f"{A910}-2c": 4}), NO_HARDWARE)
    assert virtual.devices == ()
    assert len(take(a_node(devices={A910: 4, GPU: 4}), NO_HARDWARE).devices) == 8


STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([A910, A310, f"{A910}-2c"]), st.integers(1, 3)), max_size=12
)
HAVE = st.sets(st.builds(Device, st.sampled_from([A910, A310, f"{A910}-2c"]), st.integers(0, 3)))


@given(HAVE, STEPS)
def test_no_device_is_claimed_twice_under_two_names(have: set[Device], steps: list[tuple[int, str, int]]) -> None:
    """Whatever the ledger says that the node has: an older leader may have written it."""
    seen = replace(a_ledger(devices={}), status=LedgerStatus(devices=sorted(have)))
    for holder, resource, count in steps:
        claims = dict(seen.claims)
        chosen = choose(a_group(resources={resource: count}).request, available(seen))
        if claims.pop(f"uid-{holder}", None) is None and chosen:
            claims[f"uid-{holder}"] = Claim(f"group-{holder}", list(chosen))
        seen = replace(seen, spec=replace(seen.spec, claims=claims))
        held = [device.index for claim in seen.claims.values() for device in claim.devices]
        assert len(held) == len(set(held))


def test_a_bind_under_way_takes_the_device_under_every_name() -> None:
    """The assumption in memory, too; and pods that a plugin serves."""
    have = {A910: 2, A310: 2}
    fleet = a_fleet(a_node(devices=have), ledgers=(a_ledger(devices=have),))
    fleet.assume("uid", Assumption("n1", (Device(A910, 0),)))
    assert fleet.free("n1") == (Device(A310, 1), Device(A910, 1))
    fleet.set_plugin_pods("n1", {"p": frozenset({A310})})
    assert fleet.filter(a_group(resources={A910: 1}).request, ["n1"]).reasons["n1"].kind is ReasonKind.DEVICES_OPAQUE


@pytest.mark.parametrize("resource", ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/gpumem"])
def test_pods_with_a_part_of_a_gpu_make_their_node_opaque(resource: str) -> None:
    """Nobody knows of which."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    fleet.set_plugin_pods("n1", {"p": frozenset({resource})})
    assert fleet.filter(a_group().request, ["n1"]).reasons["n1"].kind is ReasonKind.DEVICES_OPAQUE
    fleet.set_plugin_pods("n1", {"p": frozenset({"amd.com/cpx_nps4"})})
    assert fleet.filter(a_group().request, ["n1"]).fits == ["n1"]


def test_a_mig_pod_is_on_the_gpu_that_the_agent_shows_as_split() -> None:
    """The others are as free as they were."""
    hardware = Hardware(devices=[replace(PARTS[0], mig=True), *PARTS[1:]], allocations=[])
    fleet = a_fleet(a_node(), ledgers=(booked(take(a_node(), hardware), hardware),))
    fleet.set_plugin_pods("n1", {"p": frozenset({"nvidia.com/mig-1g.5gb"})})
    assert fleet.filter(a_group(count=3).request, ["n1"]).fits == ["n1"]
