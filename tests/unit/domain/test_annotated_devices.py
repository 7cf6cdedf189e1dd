"""A node's owner says which devices groups get, and what can't be read is never guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.placement.shared_resources import MOST, Listed, read_annotated
from tests.unit.domain.objects import AMD, GPU


@pytest.mark.parametrize(
    ("value", "indices"),
    [("4", {0, 1, 2, 3}), ("0", set()), ("1-3", {1, 2, 3}), ("0,2", {0, 2}), ("1-3,5", {1, 2, 3, 5}), ("5-5", {5})],
)
def test_one_number_is_how_many_and_anything_else_is_which(value: str, indices: set[int]) -> None:
    """So that annotations from before lists mean what they meant."""
    assert read_annotated(f"{GPU}={value}").resources[GPU].indices == indices


def test_a_list_goes_on_until_the_next_resource() -> None:
    """A comma separates both devices and resources."""
    words = read_annotated(f" {GPU} = 1-3 , 5,{AMD}=2, huawei.com/Ascend910=0-1")
    assert not words.faults
    assert {r: sorted(listed.indices) for r, listed in words.resources.items()} == {
        GPU: [1, 2, 3, 5],
        AMD: [0, 1],
        "huawei.com/Ascend910": [0, 1],
    }


def test_devices_are_named_by_uuid_too() -> None:
    """Beside numbers, if need be."""
    listed = read_annotated(f"{GPU}=GPU-8a56-b,3-3,GPU-c").resources[GPU]
    assert listed == Listed(frozenset({3}), frozenset({"GPU-8a56-b", "GPU-c"}))


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("many", "wants a number of devices, a list such as 0,2-3, or UUIDs, not 'many'"),
        ("3-1", "the range 3-1 ends before it begins"),
        ("0-999999999", "no node has more than 1024"),
        ("999999999", "no node has more than 1024"),
        ("1-3+5", "not '1-3+5'"),
        ("-1", "not '-1'"),
        ("", "not ''"),
        (f"1,{GPU}=2", "named twice"),
        ("1,MIG-4", "not '1,MIG-4'"),
    ],
)
def test_what_cannot_be_read_is_named_and_means_no_device(value: str, fault: str) -> None:
    """However large the numbers in it are."""
    listed = read_annotated(f"{GPU}={value}").resources[GPU]
    assert fault in listed.fault
    assert not listed.indices
    assert not listed.uuids


@pytest.mark.parametrize("text", ["4", "1-3", f"{GPU}:4", "example.org/gpu=4", "nvidia.com/gpu.shared=4"])
def test_what_belongs_to_no_known_resource_is_a_fault_of_the_whole(text: str) -> None:
    """Its author meant something by it."""
    words = read_annotated(text)
    assert words.faults
    assert not words.resources


@given(st.sets(st.integers(0, MOST - 1), min_size=2))
def test_a_list_is_read_as_it_is_written(indices: set[int]) -> None:
    """In any order, one by one."""
    assert read_annotated(f"{GPU}={','.join(map(str, indices))}").resources[GPU].indices == indices


@given(st.text(alphabet="nvidia.com/gpu=0123456789,-GPU ", max_size=60))
def test_no_text_is_more_than_is_believed(text: str) -> None:
    """Whatever it is, it is read, and bounded."""
    assert all(len(listed.indices) <= MOST for listed in read_annotated(text).resources.values())
