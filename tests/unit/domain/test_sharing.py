"""Shares are placed exactly: what brute force finds is found, and no device is ever over its size."""

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.objects.devices import Device, as_json
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.objects.shares import (
    DEVICE_COUNT,
    DIALECTS,
    FIRST,
    GPU_MEM,
    GPU_PERCENT,
    INIT,
    MAIN,
    SIDECAR,
    Need,
    Share,
    ShareRequest,
    share_of,
    share_request,
)
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.rooms import Room, capacity, units, used
from tests.unit.domain.objects import AMD, GPU

SIZES = st.sampled_from([0, 4, 10, 16])
"""MiB, so that the numbers are small; 0 is unknown."""


@st.composite
def a_room(draw: st.DrawFn) -> Room:
    size = draw(SIZES)
    free = draw(st.sampled_from([0, 30, 50, 80, 100])) * capacity(size) // 100
    return Room(draw(st.sampled_from([GPU, GPU, AMD])), size, free)


@st.composite
def a_request(draw: st.DrawFn) -> ShareRequest:
    """Up to four containers, each with parts as `share_request` makes them."""
    needs: list[Need] = []
    for number in range(draw(st.integers(1, 4))):
        role = draw(st.sampled_from([MAIN, MAIN, SIDECAR, INIT, FIRST]))
        count = draw(st.sampled_from([1, 1, 2, 3]))
        if draw(st.booleans()):
            needs += [Need(f"c{number}", memory_mib=draw(st.integers(1, 8)), role=role)] * count
        else:
            percent = draw(st.sampled_from([20, 30, 50, 70, 100, *([150, 200] if count == 1 else [])]))
            parts = [100] * (percent // 100) + [percent % 100] * bool(percent % 100)
            needs += [Need(f"c{number}", percent=each, role=role) for each in parts * count]
    return ShareRequest(tuple(needs), (GPU_MEM, GPU_PERCENT))


def part_of(need: Need | Share, size: int) -> Fraction | None:
    """Of the device."""
    if need.percent:
        return Fraction(need.percent, 100)
    return Fraction(need.memory_mib, size) if size else None


def peak(needs: Sequence[Need], size: int) -> Fraction | None:
    """What these take of a device at most, phase by phase; None where that can't be said."""
    parts = [(need, part_of(need, size)) for need in needs]
    if any(part is None for _, part in parts):
        return None
    phases = [[part for need, part in parts if need.role not in (INIT, FIRST)]]
    for name, role in {(need.container, need.role) for need in needs if need.role in (INIT, FIRST)}:
        mine = [part for need, part in parts if need.container == name]
        phases.append(mine + [part for need, part in parts if role == INIT and need.role == SIDECAR])
    return max(sum(filter(None, phase), Fraction(0)) for phase in phases)


def fits(needs: Sequence[Need], places: Sequence[int], rooms: Sequence[Room]) -> bool:
    """Whether these places are right: the oracle."""
    if len({rooms[place].resource for place in places}) > 1:
        return False
    if len({(need.container, place) for need, place in zip(needs, places, strict=True)}) < len(needs):
        return False  # two parts of a container on one device
    for position, room in enumerate(rooms):
        here = [need for need, place in zip(needs, places, strict=True) if place == position]
        most = peak(here, room.size)
        if here and (most is None or most > Fraction(room.free, room.capacity)):
            return False
    return True


@given(a_request(), st.lists(a_room(), min_size=1, max_size=3), st.sampled_from(["", "binpack", "spread"]))
def test_a_placement_is_found_whenever_there_is_one(share: ShareRequest, rooms: list[Room], strategy: str) -> None:
    """All of it or nothing, on devices of one resource, exactly counted."""
    parts = allocation.place(share, strategy, rooms)
    if parts is not None:
        assert sorted(part.need for part in parts) == sorted(share.needs)
        assert fits([part.need for part in parts], [part.place for part in parts], rooms)
        for container in {need.container for need in share.needs}:
            places = [part.place for part in parts if part.need.container == container]
            assert len(set(places)) == len(places), "each part of a container is of another device"
        assert allocation.share_shortage(share, rooms) is None
        return
    assert allocation.share_shortage(share, rooms) is not None
    if len(share.needs) <= 6:
        every = itertools.product(range(len(rooms)), repeat=len(share.needs))
        assert not any(fits(share.needs, places, rooms) for places in every)


@given(a_request(), SIZES)
def test_what_a_pod_uses_of_a_device_is_its_peak(share: ShareRequest, size: int) -> None:
    """Init containers beside sidecars, then the others; all of the device where that can't be said."""
    shares = [share_of(need, Device(GPU, 0)) for need in share.needs]
    most = peak(share.needs, size)
    assert used(shares, size) == (capacity(size) if most is None else most * capacity(size))
    assert used(shares, size) == used(share.needs, size)
    for each in shares:
        part, cost = part_of(each, size), units(each, size)
        assert (cost is None) == (part is None)
        assert cost is None or part == Fraction(cost, capacity(size))


@given(a_request(), st.lists(a_room(), min_size=1, max_size=3))
def test_as_many_are_counted_as_fit_one_after_the_other(share: ShareRequest, rooms: list[Room]) -> None:
    """No device gets over its size by them, and after them none fits."""
    number = allocation.how_many(share, rooms, 5)
    left = list(rooms)
    for _ in range(number):
        parts = allocation.place(share, "", left)
        assert parts
        for position in {part.place for part in parts}:
            cost = used([part.need for part in parts if part.place == position], left[position].size)
            left[position] = left[position].less(cost)
            assert left[position].free >= 0
    assert number == 5 or allocation.place(share, "", left) is None


def gib(*free: int, size: int = 16) -> list[Room]:
    """Devices with so many GiB free."""
    return [Room(GPU, size * 1024, each * 1024 * 100) for each in free]


def by_memory(*wanted: int) -> ShareRequest:
    return ShareRequest(tuple(Need(f"c{n}", memory_mib=each * 1024) for n, each in enumerate(wanted)), (GPU_MEM,))


@pytest.mark.parametrize(
    ("wanted", "strategy", "places"),
    [
        ((3,), "binpack", [1]),
        ((3,), "spread", [0]),
        ((8,), "binpack", [2]),
        ((3, 3), "binpack", [1, 2]),
        ((3, 3), "spread", [0, 0]),
        ((5, 3), "binpack", [2, 2]),
    ],
)
def test_the_tightest_device_is_taken_or_the_emptiest(
    wanted: tuple[int, ...], strategy: str, places: list[int]
) -> None:
    """A large part first."""
    parts = allocation.place(by_memory(*wanted), strategy, gib(16, 4, 8))
    assert parts is not None
    assert [part.place for part in parts] == places


def test_going_back_finds_what_the_best_fit_misses() -> None:
    """An init container needs two whole devices, so the sidecar has to leave both to it."""
    rooms = [Room(GPU, 0, 100), Room(GPU, 0, 100), Room(GPU, 0, 60)]
    init = [Need("i", percent=100, role=INIT), Need("i", percent=100, role=INIT)]
    share = ShareRequest((Need("m", percent=60), Need("s", percent=50, role=SIDECAR), *init), (GPU_PERCENT,))
    assert allocation.place(share, "", rooms) is not None


def test_a_search_ends() -> None:
    """However many parts there are that don't fit; equal situations are tried once."""
    many = ShareRequest(tuple(Need(f"c{n}", percent=30 + n % 7) for n in range(64)), (GPU_PERCENT,))
    rooms = [Room(GPU, 0, 100) for _ in range(16)]
    assert allocation.place(many, "", rooms) is None
    equal = ShareRequest(tuple(Need(f"c{n}", percent=34) for n in range(17)), (GPU_PERCENT,))
    assert allocation.place(equal, "", rooms[:8]) is None


def test_why_a_share_does_not_fit_is_said_in_its_own_words() -> None:
    """What it needs, and the most that one device has."""
    lacks = allocation.share_shortage(by_memory(8, 8), gib(4, 7))
    assert lacks is not None
    assert str(lacks) == "node(s) too full: the pod needs 2 x 8 GiB of a GPU; at most 7 of 16 GiB of one are free"
    unknown = allocation.share_shortage(by_memory(1), [Room(GPU, 0, 100)])
    assert unknown is not None
    assert unknown.kind is ReasonKind.MEMORY_UNKNOWN


QUANTITIES = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.from_regex(r"[+-]?[0-9.]{1,6}(e[0-9]{1,9}|[numkKMGTPE]i?)?", fullmatch=True),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none(), max_size=1),
    st.booleans(),
)


class Limited(NamedTuple):
    """A container, as far as it asks for a share."""

    name: str
    limits: Mapping[str, Any]
    restart_policy: str | None = None


@given(st.lists(st.dictionaries(st.sampled_from([*DIALECTS, DEVICE_COUNT, "cpu"]), QUANTITIES, max_size=3), max_size=3))
def test_whatever_somebody_writes_is_a_share_or_has_a_fault(limits: list[dict[str, Any]]) -> None:
    """Nothing raises; a fault names the field; without one every part is within a device's bounds."""
    share = share_request([Limited(f"c{number}", each) for number, each in enumerate(limits)])
    assert not (share.needs and share.faults)
    assert all(fault.startswith(("spec.containers[", "the pod asks")) for fault in share.faults)
    for need in share.needs:
        assert 0 < need.percent <= 100 or 0 < need.memory_mib <= 1 << 30
        assert bool(need.percent) != bool(need.memory_mib)
    stored = as_json(share_of(need, Device(GPU, 1, "GPU-1")) for need in share.needs)
    read = msgspec.json.decode(msgspec.json.encode(stored), type=list[Share])
    assert read == sorted(share_of(need, Device(GPU, 1, "GPU-1")) for need in share.needs)


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"deviceshare.io/gpu-mem": "4", DEVICE_COUNT: "2"}, "2 x 4 GiB of a GPU"),
        ({"deviceshare.io/gpu-percent": "100", DEVICE_COUNT: "2"}, "2 whole GPUs"),
        ({"deviceshare.io/gpu-mem-mib": "3000", DEVICE_COUNT: "3"}, "3 x 2.9 GiB of a GPU"),
        ({"aliyun.com/gpu-mem": "9", DEVICE_COUNT: "2"}, "2 x 4.5 GiB of a GPU"),
        ({"aliyun.com/gpu-mem": "1", DEVICE_COUNT: "3"}, "3 x 0.3 GiB of a GPU"),
        ({"deviceshare.io/gpu-mem": "4", DEVICE_COUNT: "0"}, "4 GiB of a GPU"),
    ],
)
def test_the_same_part_of_several_devices(limits: dict[str, str], wanted: str) -> None:
    """ACK's is divided among them."""
    share = share_request([Limited("main", limits)])
    assert (share.faults, share.wanted) == ((), wanted)


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ({"deviceshare.io/gpu-percent": "150", DEVICE_COUNT: "2"}, "150 are more than one device, on each of 2"),
        ({"deviceshare.io/gpu-mem": "1", DEVICE_COUNT: "65"}, "65 (deviceshare.io/gpu-count) is not a number of dev"),
        ({"deviceshare.io/gpu-mem": "1", DEVICE_COUNT: "1500m"}, "1500m (deviceshare.io/gpu-count) is not a number"),
        ({"deviceshare.io/gpu-mem-mib": "5000000"}, "5000000 MiB are more than any device has; it counts MiB, not b"),
    ],
)
def test_a_wrong_number_of_devices_is_named(limits: dict[str, str], fault: str) -> None:
    [said] = share_request([Limited("main", limits)]).faults
    assert fault in said


def test_an_init_container_counts_beside_the_sidecars_that_run_then() -> None:
    """Kubernetes starts init containers in their order: one before every sidecar has the device for itself."""
    first, sidecar, second = ({GPU_PERCENT: percent} for percent in ("60", "20", "50"))
    main = [Limited("main", {GPU_PERCENT: "30"})]
    early = share_request(main, [Limited("i", first), Limited("s", sidecar, "Always")])
    assert used(early.needs, 0) == 60
    late = share_request(main, [Limited("s", sidecar, "Always"), Limited("i", second)])
    assert used(late.needs, 0) == 70
