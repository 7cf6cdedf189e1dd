"""What the node agents' reports change in placement and in what people are told."""

import msgspec
from msgspec.structs import replace

from deviceshare.domain.answers.group_status import desired_status
from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import NVLINK, Allocation, Hardware, Link, Part
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.inventory import take
from deviceshare.domain.placement.join_obstacles import REBOOTED
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, gpus

PARTS = [Part(GPU, index, f"GPU-{index}") for index in range(4)]
BROKEN = [replace(PARTS[0], unhealthy="Xid 79: fallen off the bus"), *PARTS[1:]]


def reported(ledger: NodeDevices, **report: object) -> NodeDevices:
    """The ledger after its node's agent wrote; four healthy GPUs unless told otherwise."""
    hardware = replace(Hardware(devices=PARTS), **report)
    return replace(ledger, status=replace(ledger.status, hardware=hardware))


def test_a_node_with_plugin_pods_is_offered_once_the_agent_tells_their_devices() -> None:
    """And only the others are free; a pod that the agent hasn't seen yet makes it opaque again."""
    allocations = [Allocation("shop/web", "web", GPU, [0])]
    fleet = a_fleet(a_node(), ledgers=(reported(a_ledger(), allocations=allocations),))
    fleet.set_plugin_pods("n1", {"web": frozenset({GPU})})
    assert fleet.filter(a_group(count=3).request, ["n1"]).fits == ["n1"]
    assert "3 of 4 free" in fleet.filter(a_group(count=4).request, ["n1"]).reasons["n1"].text
    assert "0 is allocated to pod shop/web by the device plugin" in str(
        WaitingReasons(fleet).of(a_group(count=4).request)
    )
    fleet.set_plugin_pods("n1", {"web": frozenset({GPU}), "new": frozenset({GPU})})
    assert fleet.filter(a_group().request, ["n1"]).reasons["n1"].kind is ReasonKind.DEVICES_OPAQUE


def test_a_rebooted_node_is_not_offered_before_its_agent_reported() -> None:
    """Claims without UUIDs would be taken for other devices."""
    node = replace(a_node(), status=msgspec.convert({"nodeInfo": {"bootID": "second"}}, type(Node().status)))
    fleet = a_fleet(node, ledgers=(reported(a_ledger(), boot_id="first"),))
    assert fleet.filter(a_group().request, ["n1"]).reasons == {"n1": REBOOTED}
    fleet.set_ledger("n1", reported(a_ledger(), boot_id="second"))
    assert fleet.filter(a_group().request, ["n1"]).fits == ["n1"]


def test_no_pod_joins_a_group_on_an_unhealthy_device() -> None:
    """It is told how the group gets another one, and so is the group."""
    fleet = a_fleet(a_node(), ledgers=(reported(a_ledger(team=(PARTS[0].device,)), devices=BROKEN),))
    group = a_group(count=1, node="n1")
    reason = fleet.filter(group.request, ["n1"]).reasons["n1"]
    assert (reason.kind, reason.cure) == (ReasonKind.DEVICES_UNHEALTHY, "deviceshare rebind team")
    assert "unhealthy (Xid 79" in reason.text
    status = desired_status(group, fleet, home=a_node(), pods=(), now="2026-01-01T00:00:00Z")
    assert (status.phase, status.conditions[1].reason) == ("Degraded", "DevicesUnhealthy")


def test_who_waits_hears_of_unhealthy_devices() -> None:
    """They would have been enough."""
    fleet = a_fleet(a_node(), ledgers=(reported(a_ledger(), devices=BROKEN),))
    assert "n1: 3 of 4 free (0 is unhealthy: Xid 79: fallen off the bus)" in str(
        WaitingReasons(fleet).of(a_group(count=4).request)
    )


def test_a_group_hears_that_the_device_plugin_gave_its_device_away() -> None:
    """deviceshare can't keep it from doing so, but it doesn't keep quiet."""
    ledger = reported(a_ledger(team=(PARTS[0].device,)), allocations=[Allocation("shop/web", "u", GPU, [0])])
    group = a_group(count=1, node="n1")
    status = desired_status(group, a_fleet(a_node(), ledgers=(ledger,)), home=a_node(), pods=(), now="")
    assert status.conditions[1].reason == "DevicesGivenAway"
    assert "nvidia.com/gpu 0 to pod shop/web" in status.conditions[1].message


def test_a_group_hears_that_nothing_keeps_its_device_from_the_device_plugin() -> None:
    """Its placeholder is gone, or it was bound before there was one."""
    keeper = Allocation("system/keeper", "k", GPU, [1], placeholder=True)
    ledger = reported(a_ledger(team=(PARTS[0].device,)), allocations=[keeper], placeholders=True)
    fleet = a_fleet(a_node(), ledgers=(ledger,))
    status = desired_status(a_group(count=1, node="n1"), fleet, home=a_node(), pods=(), now="")
    assert (status.phase, status.conditions[1].reason) == ("Degraded", "DevicesNotReserved")
    assert "no placeholder pod on node n1 has nvidia.com/gpu 0" in status.conditions[1].message
    waits = str(WaitingReasons(fleet).of(a_group("other", count=2).request))
    assert "1 of 4 free (team holds 0, of which 0 is left to the device plugin; 2 is left to" in waits


def test_a_group_whose_devices_a_placeholder_keeps_is_well() -> None:
    """The placeholder is a pod that the device plugin gave them to, and nobody's rival."""
    keeper = Allocation("system/keeper", "k", GPU, [0], placeholder=True)
    ledger = reported(a_ledger(team=(PARTS[0].device,)), allocations=[keeper], placeholders=True)
    fleet = a_fleet(a_node(), ledgers=(ledger,))
    fleet.set_plugin_pods("n1", {"k": frozenset({GPU})})
    group = a_group(count=1, node="n1")
    assert desired_status(group, fleet, home=a_node(), pods=(), now="").phase == "Bound"
    assert fleet.filter(group.request, ["n1"]).fits == ["n1"]


def test_the_status_shows_present_numbers() -> None:
    """selectedDevices are numbers, and those change at a reboot."""
    turned = [replace(part, index=3 - part.index) for part in PARTS]
    ledger = reported(a_ledger(team=(PARTS[0].device,)), devices=turned)
    group = a_group(count=1, node="n1")
    status = desired_status(group, a_fleet(a_node(), ledgers=(ledger,)), home=a_node(), pods=(), now="")
    assert status.selected_devices == {GPU: "3"}
    assert status.phase == "Bound"


def test_a_node_offers_what_its_agent_sees_where_nobody_else_tells() -> None:
    """The owner's annotation comes first, the device plugin's count last."""
    lost = [*PARTS[:3], replace(PARTS[3], lost=True)]
    assert take(a_node(devices={}), Hardware(devices=lost)).devices == gpus(0, 1, 2)
    assert take(a_node(devices={GPU: 2, AMD: 1}), Hardware(devices=PARTS)).devices == (
        Device(AMD, 0),
        *gpus(0, 1, 2, 3),
    )
    owned = replace(
        a_node(devices={}), metadata=replace(a_node().metadata, annotations={"deviceshare.io/devices": f"{GPU}=1"})
    )
    assert take(owned, Hardware(devices=PARTS)).devices == gpus(0)


def test_links_are_told_by_the_agent() -> None:
    """And reach the allocator."""
    links = [Link(GPU, 1, 2, NVLINK, 4)]
    assert a_fleet(a_node(), ledgers=(reported(a_ledger(), links=links),)).available("n1").links == links
