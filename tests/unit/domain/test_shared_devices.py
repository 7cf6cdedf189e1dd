"""Shared devices: what the ledger says, whatever became of them since, and what the fleet answers."""

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Device, devices_of
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import Request, Share
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.domain.placement.device_states import DeviceState, Health, Use, device_states
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import share_annotations
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.domain.placement.rooms import mib
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_node, a_pod, a_share_pod, gpus

GIB = 1024


def shared(pod: str, *shares: Share, within: str = "", **more: Any) -> dict[str, Claim]:
    """A pod's claim."""
    return {f"uid-of-{pod}": Claim(pod=f"ns/{pod}", shares=list(shares), within=within, **more)}


def part(index: int = 0, *, gib: int = 0, percent: int = 0, uuid: str = "", container: str = "main") -> Share:
    return Share(container, GPU, index, uuid, gib * GIB, percent)


def whole(name: str, *indices: int, **more: Any) -> dict[str, Claim]:
    """A group's claim."""
    return {f"uid-of-{name}": Claim(name, list(gpus(*indices)), **more)}


def seen(claims: dict[str, Claim], *, gib: int = 16, count: int = 2, **status: Any) -> NodeDevices:
    """A ledger of devices of so much memory."""
    told = LedgerStatus(**{"devices": list(devices_of({GPU: count})), "memory_mib": {GPU: gib * GIB}, **status})
    return NodeDevices(ObjectMeta(name="n1", resource_version="7"), LedgerSpec(claims), told)


def first(claims: dict[str, Claim], **more: Any) -> DeviceState:
    """The state of device 0."""
    return device_states(seen(claims, **more))[0]


SICK = Hardware(devices=[Part(GPU, 0, "GPU-a", unhealthy="Xid 79"), Part(GPU, 1, "GPU-b")])
GONE = Hardware(devices=[Part(GPU, 0, "GPU-a", lost=True), Part(GPU, 1, "GPU-b")])
TABLE: list[tuple[str, DeviceState, Use, bool, int]] = [
    ("nobody's", first({}), Use.FREE, True, 16),
    ("a part is taken", first(shared("p", part(gib=6))), Use.SHARED, False, 10),
    ("two parts", first(shared("p", part(gib=6)) | shared("q", part(percent=25))), Use.SHARED, False, 6),
    ("by one pod twice", first(shared("p", part(gib=6), part(gib=6, container="b"))), Use.SHARED, False, 4),
    ("it is being released", first(shared("p", part(gib=6), releasing="now")), Use.SHARED, False, 10),
    ("for shares only", first({}, for_shares=list(gpus(0))), Use.FREE, False, 16),
    ("for groups only", first({}, for_groups=list(gpus(0))), Use.FREE, True, 0),
    ("for groups since", first(shared("p", part(gib=6)), for_groups=list(gpus(0))), Use.SHARED, False, 0),
    ("a group has it", first(whole("a", 0)), Use.HELD, False, 0),
    ("and a pod in it", first(whole("a", 0) | shared("p", part(gib=6), within="uid-of-a")), Use.HELD, False, 0),
    ("whose group has no claim any more", first(shared("p", part(gib=6), within="uid-of-a")), Use.SHARED, False, 10),
    (
        "of a device that the group doesn't hold",
        first(whole("a", 1) | shared("p", part(gib=6), within="uid-of-a")),
        Use.SHARED,
        False,
        10,
    ),
    (
        "of a device that was replaced",
        first(whole("a", 1, former=list(gpus(0))) | shared("p", part(gib=6), within="uid-of-a")),
        Use.FORMER,
        False,
        0,
    ),
    ("the memory is unknown", first(shared("p", part(gib=6)), memory_mib={}), Use.SHARED, False, 0),
    ("the card is smaller now", first(shared("p", part(gib=6)), gib=4), Use.SHARED, False, -2),
    ("it is unhealthy", first(shared("p", part(gib=6)), hardware=SICK), Use.SHARED, False, 0),
    ("it is lost", first(shared("p", part(gib=6)), hardware=GONE), Use.SHARED, False, 0),
]


@pytest.mark.parametrize(("state", "use", "free", "room"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_device_with_shares(state: DeviceState, use: Use, free: bool, room: int) -> None:
    """Who may have it: a group or not, and how many GiB of it are left for shares."""
    assert (state.device.index, state.use, state.free) == (0, use, free)
    left = state.room.free if state.room.free < 0 else mib(state.room.free, state.room.size)
    assert (left // GIB if left > 0 else room) == room
    assert (left > 0) == (room > 0)


def test_health_is_told_beside_the_use() -> None:
    """A pod's part of a broken device is still its part."""
    assert first(shared("p", part(gib=6)), hardware=SICK).health is Health.UNHEALTHY
    assert first(shared("p", part(gib=6)), hardware=GONE).health is Health.LOST


def test_parts_within_a_group_are_counted_within_it() -> None:
    """What is left for the next pod of the group; a stranger gets nothing."""
    here = seen(whole("a", 0) | shared("p", part(gib=6), within="uid-of-a"))
    [(device, room)] = allocation.rooms(device_states(here), "uid-of-a")
    assert (device.index, mib(room.free, room.size)) == (0, 10 * GIB)
    assert [device.index for device, _ in allocation.rooms(device_states(here))] == [1]


def test_a_part_stays_with_its_device_when_that_is_numbered_anew() -> None:
    """By the UUID where the claim has it; by the number, where an agent came later."""
    turned = Hardware(devices=[Part(GPU, 0, "GPU-b"), Part(GPU, 1, "GPU-a")])
    named = device_states(seen(shared("p", part(0, gib=6, uuid="GPU-a")), hardware=turned))
    assert [(state.device.uuid, bool(state.sharers)) for state in named] == [("GPU-b", False), ("GPU-a", True)]
    numbered = device_states(seen(shared("p", part(0, gib=6)), hardware=turned))
    assert [(state.device.uuid, bool(state.sharers)) for state in numbered] == [("GPU-b", True), ("GPU-a", False)]


SHARES = st.builds(
    lambda index, percent, name: part(index, percent=percent, container=name),
    st.integers(0, 1),
    st.integers(1, 100),
    st.sampled_from("abcd"),
)
SEVERAL = st.lists(SHARES, min_size=1, max_size=4, unique_by=lambda share: (share.container, share.index))


@given(st.dictionaries(st.sampled_from("pqr"), SEVERAL, max_size=3), st.booleans())
def test_a_claim_of_shares_is_read_as_it_was_written(pods: dict[str, list[Share]], nested: bool) -> None:
    """Several in one write; each alone says all of it."""
    claims = {
        f"uid-of-{name}": ledger.share_claim_of(a_pod(name).sharer, sorted(shares), "g" if nested else "")
        for name, shares in pods.items()
    }
    patch = ledger.claims_patch(seen({}), claims)
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert msgspec.convert(patch["spec"], LedgerSpec).claims == claims
    for uid, claim in claims.items():
        assert ledger.claims_patch(seen({}), {uid: claim})["spec"]["claims"][uid] == patch["spec"]["claims"][uid]
        assert claim.holder(uid) == a_pod(claim.pod.removeprefix("ns/")).sharer


# The fleet.

PARTS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([20, 40, 60])), max_size=3)


@given(PARTS, PARTS, st.sampled_from([20, 40, 60, 80, 100]), st.sampled_from(["", "held", "assumed"]), st.booleans())
def test_filter_agrees_with_looking_at_every_part(
    claimed: list[tuple[int, int]], assumed: list[tuple[int, int]], wanted: int, group: str, nested: bool
) -> None:
    """Claims, binds under way, a group that has device 0, and a pod within that group or without."""
    fleet = Fleet()
    fleet.set_node("n1", a_node())
    inside = "uid-of-a" if nested and group == "held" else ""
    claims = {k: v for n, (i, p) in enumerate(claimed) for k, v in shared(f"p{n}", part(i, percent=p)).items()}
    if group == "held":
        claims = {uid: claim for uid, claim in claims.items() if claim.shares[0].index == 1}
        claims |= whole("a", 0)
    fleet.set_ledger("n1", seen(claims))
    for number, (index, percent) in enumerate(assumed):
        within = inside if index == 0 else ""
        if inside or not (group and index == 0):
            fleet.assume(f"bind-{number}", Assumption("n1", shares=(part(index, percent=percent),), within=within))
    if group == "assumed":
        fleet.assume("bind-a", Assumption("n1", gpus(0)))
    left = [Fraction(1), Fraction(1)]
    for claim in claims.values():
        if claim.shares and not (inside and claim.shares[0].index == 0):
            left[claim.shares[0].index] -= Fraction(claim.shares[0].percent, 100)
    for number, (index, percent) in enumerate(assumed):
        if fleet.assumed(f"bind-{number}"):
            left[index] -= Fraction(percent, 100)
    mine = [left[0]] if inside else [left[1]] if group else left
    pod = a_share_pod("new", group="a" if inside else "", percent=wanted)
    request = request_of(pod, a_group("a", 1, node="n1") if inside else None)
    assert request is not None
    fits = any(Fraction(wanted, 100) <= room for room in mine)
    assert bool(fleet.filter(request, ["n1"]).fits) == fits
    assert fleet.how_many(request, ["n1"], 10) == sum(max(int(room / Fraction(wanted, 100)), 0) for room in mine)


def a_request(**wanted: Any) -> Request:
    pod = a_share_pod("new", **wanted)
    found = request_of(pod, a_group("a", 1) if pod.group else None)
    assert found is not None
    return found


def test_a_group_that_is_bound_nowhere_is_sent_where_its_pods_share_fits() -> None:
    """On as many devices as it gets, and on the smallest of these: once it has them it keeps them."""
    fleet = a_fleet(a_node(), ledgers=(seen({}, for_groups=list(gpus(0, 1))),))
    assert fleet.filter(a_request(group="a", gib=16), ["n1"]).fits == ["n1"]
    assert fleet.filter(a_request(group="a", gib=17), ["n1"]).fits == []
    assert fleet.filter(a_request(group="a", percent=150), ["n1"]).fits == [], "the group gets one device"
    cards = Hardware(devices=[Part(GPU, 0, "GPU-a", memory_mib=16 * GIB), Part(GPU, 1, "GPU-b", memory_mib=80 * GIB)])
    fleet = a_fleet(a_node(), ledgers=(seen({}, hardware=cards),))
    assert fleet.filter(a_request(group="a", gib=20), ["n1"]).fits == []
    assert fleet.filter(a_request(gib=20), ["n1"]).fits == ["n1"]


def test_a_pod_goes_elsewhere_when_the_node_of_a_claim_that_was_left_behind_is_no_good() -> None:
    """Cordoned, gone, or its device is broken; a group is held to its claim."""
    left = shared("new", part(gib=6))
    other = replace(seen({}), metadata=ObjectMeta(name="n2"))
    fleet = a_fleet(a_node(), a_node("n2"), ledgers=(seen(left), other))
    assert fleet.filter(a_request(gib=6), ["n1", "n2"]).fits == ["n1"]
    assert fleet.filter(a_request(gib=6), ["n2"]).fits == ["n2"]
    fleet.set_ledger("n1", seen(left, hardware=SICK))
    answer = fleet.filter(a_request(gib=6), ["n1", "n2"])
    assert (answer.fits, list(answer.reasons)) == (["n2"], ["n1"])
    for name in ("n1", "n2"):
        fleet.set_node(name, a_node(name, shared=False))
    assert set(fleet.filter(a_request(gib=6), ["n1", "n2"]).reasons) == {"n1", "n2"}, "each has its reason, be it one"
    fleet.set_node("n2", a_node("n2"))
    fleet.set_node("n1", None)
    assert fleet.filter(a_request(gib=6), ["n1", "n2"]).fits == ["n2"]
    fleet.set_living("uid-of-new", "ns/new", "n1")
    assert fleet.filter(a_request(gib=6), ["n1", "n2"]).fits == []


# The hand-over.


@pytest.mark.parametrize("gib", [2, 4, 20])
def test_a_frameworks_pool_and_what_it_takes_besides_fit_into_the_share(gib: int) -> None:
    """PyTorch took 610 MiB beside its pool on an H100 of 80 GB (docs/reliability.md)."""
    wanted = part(gib=gib)
    here = seen(shared("p", wanted), gib=80)
    told = share_annotations(a_share_pod("p", gib=gib), here, [wanted])["deviceshare.io/heap-fraction.main"]
    assert Fraction(told) * 80 * GIB + 610 <= gib * GIB


@given(st.integers(1, 100), st.integers(1, 300), st.booleans(), st.integers(0, 8))
def test_no_framework_is_told_more_than_the_share(percent: int, gib: int, by_memory: bool, taken: int) -> None:
    """Rounded down, exactly; where the memory became unknown nobody is told a fraction of it."""
    wanted = part(gib=min(taken + 1, gib)) if by_memory else part(percent=percent)
    pod = a_share_pod("p", gib=wanted.memory_mib // GIB, percent=wanted.percent)
    here = seen(shared("p", wanted), gib=gib)
    told = {key.partition(".main")[0]: value for key, value in share_annotations(pod, here, [wanted]).items()}
    exact = Fraction(percent, 100) if not by_memory else Fraction(wanted.memory_mib, gib * GIB)
    step = Fraction(1, 10_000)
    assert exact - step < Fraction(told["deviceshare.io/memory-fraction"]) <= max(exact, step)
    assert exact - Fraction(1, 100) < Fraction(int(told["deviceshare.io/percent"]), 100) <= exact
    assert exact * gib * GIB - 1 < int(told["deviceshare.io/memory-limit-mib"]) <= exact * gib * GIB
    if exact < 1:
        assert Fraction(told["deviceshare.io/heap-fraction"]) <= max(exact, step)
        assert told["deviceshare.io/pytorch-alloc-conf"].endswith(told["deviceshare.io/heap-fraction"])
    else:
        assert "deviceshare.io/heap-fraction" not in told
    unknown = share_annotations(pod, seen(shared("p", wanted), memory_mib={}), [wanted])
    assert ("deviceshare.io/memory-fraction.main" in unknown) == (not by_memory)
    assert ("deviceshare.io/memory-limit-mib.main" in unknown) == by_memory


CARD_A, CARD_B = Device(GPU, 0, "GPU-a"), Device(GPU, 0, "GPU-b")
BOTH = Hardware(devices=[Part(GPU, 0, "GPU-a"), Part(GPU, 1, "GPU-b")])
CONTRADICTIONS: list[tuple[str, DeviceState, str]] = [
    ("two groups", first(whole("a", 0) | whole("b", 0)), "a b"),
    ("one is being released", first(whole("a", 0, releasing="now") | whole("b", 0)), "a b"),
    ("one had it before", first(whole("a", 1, former=list(gpus(0))) | whole("b", 0)), "a b"),
    ("one has it and had it", first(whole("a", 0, former=list(gpus(0)))), ""),
    ("a number that means a UUID", first(whole("a", 0) | {"uid-of-b": Claim("b", [CARD_A])}, hardware=BOTH), "a b"),
    ("a number that means another", first(whole("a", 1) | {"uid-of-b": Claim("b", [CARD_A])}, hardware=BOTH), ""),
    ("a number that may", first(whole("a", 0) | {"uid-of-b": Claim("b", [CARD_A])}), "a b"),
    ("two UUIDs by one number", first({"uid-of-a": Claim("a", [CARD_A]), "uid-of-b": Claim("b", [CARD_B])}), ""),
    ("a group and a share", first(whole("a", 0) | shared("p", part(gib=1))), "a ns/p"),
    ("a group and its share", first(whole("a", 0) | shared("p", part(gib=1), within="uid-of-a")), ""),
    ("another's share", first(whole("a", 0) | whole("b", 1) | shared("p", part(gib=1), within="uid-of-b")), "a ns/p"),
    ("a number of the share's", first(shared("p", part(gib=9), former=[CARD_B]) | shared("q", part(gib=7))), ""),
    ("shares that fit", first(shared("p", part(gib=9)) | shared("q", part(gib=7))), ""),
    ("shares that don't", first(shared("p", part(gib=9)) | shared("q", part(gib=8))), "ns/p ns/q"),
    ("of one pod", first(shared("p", part(gib=17))), ""),
    ("of unknown memory", first(shared("p", part(gib=9)) | shared("q", part(gib=8)), memory_mib={}), ""),
    (
        "within the group",
        first(
            whole("a", 0)
            | shared("p", part(percent=60), within="uid-of-a")
            | shared("q", part(percent=60), within="uid-of-a")
        ),
        "ns/p ns/q",
    ),
]


@pytest.mark.parametrize(
    ("state", "twice"), [row[1:] for row in CONTRADICTIONS], ids=[row[0] for row in CONTRADICTIONS]
)
def test_claims_that_contradict_each_other_are_found(state: DeviceState, twice: str) -> None:
    """Whatever the cause; nobody new gets anything of such a device, and a rebind replaces it."""
    assert " ".join(sorted(holder.name for holder in state.claimed_twice)) == twice
    assert bool(state.barriers.get(Use.UNUSABLE, "").startswith("claimed by each of")) == bool(twice)
    assert not (twice and (state.dependable or state.shareable or state.free))
