"""Devices that serve shares only, or groups only, and that a wrong word serves nobody."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.contract import GROUP_DEVICES, INVENTORY_ANNOTATION, SHARE_DEVICES
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import NO_HARDWARE, Hardware, Part
from deviceshare.domain.placement.inventory import Offer, take
from tests.unit.domain.objects import AMD, GPU, a_node, gpus

PARTS = [Part(GPU, index, f"GPU-{index}") for index in range(4)]
AGENT = Hardware(devices=PARTS)


def offer(
    annotations: Mapping[str, str], hardware: Hardware = NO_HARDWARE, devices: Mapping[str, int] | None = None
) -> Offer:
    node = a_node(devices=devices)
    return take(replace(node, metadata=replace(node.metadata, annotations=dict(annotations))), hardware)


def test_the_owner_says_what_serves_whom_and_the_rest_serves_either() -> None:
    """By number: all are offered."""
    found = offer({SHARE_DEVICES: f"{GPU}=0-1", GROUP_DEVICES: f"{GPU}=3-3"})
    assert found == Offer(gpus(0, 1, 2, 3), for_shares=gpus(0, 1), for_groups=gpus(3))
    assert offer({SHARE_DEVICES: "", GROUP_DEVICES: " , "}) == Offer(gpus(0, 1, 2, 3))


def test_a_uuid_is_the_same_device_under_another_number() -> None:
    """Also while it is lost: it stays what it was when it comes back."""
    lost = Hardware(devices=[replace(PARTS[0], lost=True), *PARTS[1:]])
    for hardware in (AGENT, lost):
        found = offer({SHARE_DEVICES: f"{GPU}=GPU-0,GPU-1,3"}, hardware)
        assert {device.uuid or device.index for device in found.for_shares} == {"GPU-0", "GPU-1", 3}
        assert not found.faults


@pytest.mark.parametrize(
    ("annotations", "hardware", "fault"),
    [
        ({SHARE_DEVICES: f"{GPU}=x"}, NO_HARDWARE, f"{SHARE_DEVICES}: {GPU} wants a number of devices"),
        ({GROUP_DEVICES: f"{GPU}=3-1"}, AGENT, f"{GROUP_DEVICES}: {GPU}: the range 3-1 ends before it begins"),
        ({SHARE_DEVICES: f"{GPU}=GPU-0"}, NO_HARDWARE, "only deviceshare's agent knows UUIDs"),
        ({SHARE_DEVICES: f"{GPU}=GPU-9"}, AGENT, "the node has no GPU-9"),
        ({SHARE_DEVICES: "gpu=0-1"}, NO_HARDWARE, f"{SHARE_DEVICES}: unknown resource 'gpu'"),
        ({SHARE_DEVICES: "0-1"}, NO_HARDWARE, "unknown resource '0-1'"),
        ({SHARE_DEVICES: f"{GPU}=9999"}, NO_HARDWARE, "no node has more than 1024"),
        ({SHARE_DEVICES: f"{GPU}=0-1", GROUP_DEVICES: f"{GPU}=1-2"}, NO_HARDWARE, f"{GPU} 1 are in {GROUP_DEVICES}"),
        ({SHARE_DEVICES: f"{GPU}=0-1", GROUP_DEVICES: f"{GPU}=GPU-1"}, AGENT, f"are in {GROUP_DEVICES}, too"),
        ({SHARE_DEVICES: f"{GPU}=GPU-1", GROUP_DEVICES: f"{GPU}=0-1"}, AGENT, f"are in {GROUP_DEVICES}, too"),
        ({GROUP_DEVICES: ",".join(f"huawei.com/Ascend{n}=1024" for n in range(99))}, AGENT, "more than 8 resources"),
    ],
)
def test_while_the_owners_word_is_unclear_nobody_new_gets_a_device(
    annotations: Mapping[str, str], hardware: Hardware, fault: str
) -> None:
    """With the reason and the cure; who holds one keeps it."""
    found = offer(annotations, hardware)
    assert (found.devices, found.for_shares, found.for_groups) == ((), (), ())
    [withheld] = found.withheld
    assert [device.index for device in withheld.devices] == [0, 1, 2, 3]
    assert fault in withheld.reason and fault in str(found.faults[0])
    assert withheld.cure.startswith("correct it (kubectl annotate node NODE --overwrite deviceshare.io/")
    assert found.untold == ()


def test_another_vendor_is_not_concerned() -> None:
    """Unless nobody knows whose devices were meant."""
    both = {GPU: 2, AMD: 2}
    found = offer({SHARE_DEVICES: f"{GPU}=x"}, devices=both)
    assert {device.resource for device in found.devices} == {AMD}
    unclear = offer({SHARE_DEVICES: f"{GPU}=1,gpu=1"}, devices=both)
    assert {device.resource for device in unclear.devices} == {GPU} and unclear.for_shares == gpus(0)
    assert len(offer({SHARE_DEVICES: f"{GPU}=0-0", GROUP_DEVICES: f"{AMD}=0-0"}, devices=both).devices) == 4


def test_devices_of_which_there_are_no_shares_can_not_be_kept_for_them() -> None:
    """They would serve nobody, unnoticed."""
    ascend = "huawei.com/Ascend910"
    found = offer({SHARE_DEVICES: f"{ascend}=0-1"}, devices={ascend: 4})
    assert f"{ascend}: shares are parts of {AMD} and {GPU} only" in str(found.faults[0])
    kept = offer({GROUP_DEVICES: f"{ascend}=0-1"}, devices={ascend: 4})
    assert kept.for_groups == (Device(ascend, 0), Device(ascend, 1)) and not kept.faults


def test_what_is_kept_out_stays_out() -> None:
    """The inventory comes first; its own faults are told besides."""
    found = offer({INVENTORY_ANNOTATION: f"{GPU}=1-3", SHARE_DEVICES: f"{GPU}=0-1"})
    assert found.devices == gpus(1, 2, 3) and found.for_shares == gpus(0, 1)
    broken = offer({INVENTORY_ANNOTATION: f"{GPU}=x", SHARE_DEVICES: f"{AMD}=x"}, devices={GPU: 1, AMD: 1})
    assert {fault.annotation for fault in broken.faults} == {INVENTORY_ANNOTATION, SHARE_DEVICES}
    assert broken.devices == ()


WORDS = st.lists(
    st.sampled_from([f"{GPU}=0-1", f"{GPU}=GPU-1", "GPU-9", "2", "x", f"{AMD}=1", "gpu=1", f"{GPU}=GPU-3", ""])
    | st.text(),
    max_size=4,
).map(",".join)


@given(WORDS, WORDS, st.sampled_from([NO_HARDWARE, AGENT]))
def test_no_text_makes_a_device_serve_two_kinds_or_go_unnoticed(share: str, group: str, hardware: Hardware) -> None:
    """Whatever is wrong is told, and what is offered is clear."""
    found = offer({SHARE_DEVICES: share, GROUP_DEVICES: group}, hardware)
    numbers = [{device.index for device in each} for each in (found.for_shares, found.for_groups)]
    assert not numbers[0] & numbers[1]
    assert found.faults or len(found.devices) == 4
    assert len(found.devices) in (0, 4) and bool(found.withheld) == (not found.devices)
