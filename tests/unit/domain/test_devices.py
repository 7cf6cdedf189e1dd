"""How devices are written down, and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device, devices_of, parse_selected, selected, visible

RESOURCES = st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910"])
DEVICES = st.sets(st.builds(Device, RESOURCES, st.integers(0, 2000)))


@given(DEVICES)
def test_what_is_selected_can_be_read_back(devices: set[Device]) -> None:
    """In order, and whatever the order it came in."""
    assert parse_selected(selected(devices)) == tuple(sorted(devices))


@given(DEVICES)
def test_indices_are_listed_as_numbers_not_as_text(devices: set[Device]) -> None:
    """10 comes after 9."""
    for text in selected(devices).values():
        numbers = [int(number) for number in text.split(",")]
        assert numbers == sorted(numbers)


def test_an_inventory_is_counted_from_zero() -> None:
    """As the vendors do."""
    assert list(map(str, devices_of({"b": 1, "a": 2}))) == ["a 0", "a 1", "b 0"]


@pytest.mark.parametrize("text", ["", "a", "0,", "0,,1", "-1", "0 ,1", "1.5", "0-3"])
def test_what_is_no_list_of_indices_is_refused_by_resource(text: str) -> None:
    """Somebody edited it by hand."""
    with pytest.raises(ValueError, match=r"nvidia.com/gpu: .* is not a list of device indices"):
        parse_selected({"nvidia.com/gpu": text})


@given(DEVICES)
def test_each_vendor_is_told_of_its_own_devices_only(devices: set[Device]) -> None:
    """Whom nothing is for isn't told anything, so its variable stays empty."""
    told = visible(devices, {})
    for vendor in vendors.VENDORS:
        indices = [str(d.index) for d in sorted(devices) if vendors.vendor_of(d.resource) is vendor]
        assert told.get(vendor.annotation) == (",".join(indices) or None)


def test_a_resource_of_nobody_is_not_shown() -> None:
    """There is no variable for it."""
    assert visible([Device("example.org/gpu", 0)], {}) == {}
