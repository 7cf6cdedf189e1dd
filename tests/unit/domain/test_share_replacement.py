"""Which devices replace the broken ones of which pods have shares, and what these pods are told."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import Group, GroupMeta
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pod_spec import PodSpec
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import (
    INIT,
    MEMORY_LIMIT,
    PERCENT,
    SIDECAR,
    Share,
    container_annotation,
    current,
    devices_of_container,
    need_of,
    stored_once,
)
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.handover import container_annotations, share_annotations
from deviceshare.domain.placement.replacement import Replacement, judge, pod_changes, rebind_patch
from deviceshare.domain.placement.rooms import used
from tests.unit.domain.objects import GPU
from tests.unit.domain.test_ledger import applied

GIB = 1024
TEAM = Group(GroupMeta(uid="g"))


def part(number: int, percent: int = 0, *, mib: int = 0, container: str = "main", role: str = "") -> Share:
    return Share(container, GPU, number, f"GPU-{number}", mib, percent, role)


def a_node(*broken: int, sizes: tuple[int, ...] = (16, 16, 16, 16), **claims: Claim) -> NodeDevices:
    """Its GPUs by their GiB."""
    parts = [
        Part(GPU, n, f"GPU-{n}", unhealthy="Xid 79" if n in broken else "", memory_mib=size * GIB)
        for n, size in enumerate(sizes)
    ]
    have = [Device(GPU, n) for n in range(len(sizes))]
    return NodeDevices(
        ObjectMeta(name="n1", resource_version="7"),
        LedgerSpec(dict(claims)),
        LedgerStatus(have, hardware=Hardware(devices=parts)),
    )


def a_claim(*shares: Share, within: str = "", pod: str = "ns/p") -> Claim:
    return Claim(pod=pod, shares=sorted(shares), within=within)


def a_pod(ledger: NodeDevices, uid: str = "p", **annotations: str) -> Pod:
    """The pod of a claim, told what it has."""
    meta = ObjectMeta(name=uid, namespace="ns", uid=uid, labels={contract.GROUP: ""})
    pod = Pod(meta, PodSpec(node_name="n1"))
    told = share_annotations(pod, ledger, ledger.claims[uid].shares) | {contract.POD_UID: uid} | annotations
    return replace(pod, metadata=replace(meta, annotations=told))


def places(claim: Claim) -> list[tuple[str, int, bool]]:
    return sorted((share.container, share.index, share.former) for share in claim.shares)


def test_only_the_parts_of_broken_devices_move_and_keep_their_amounts() -> None:
    """Into the least room that suffices; what they replace is on record."""
    p = a_claim(part(0, 50), part(1, mib=4 * GIB, container="side"))
    ledger = a_node(0, p=p, q=a_claim(part(2, 30), pod="ns/q"))
    verdict = judge(ledger, a_pod(ledger))
    assert (verdict.broken, verdict.replacements) == ((Device(GPU, 0, "GPU-0"),), (Device(GPU, 2, "GPU-2"),))
    moved = verdict.claims["p"]
    assert places(moved) == [("main", 0, True), ("main", 2, False), ("side", 1, False)]
    assert {(share.percent, share.memory_mib) for share in moved.shares} == {(50, 0), (0, 4 * GIB)}
    after = applied(ledger, rebind_patch(ledger, "p", "token", verdict))
    assert after.claims["p"] == replace(moved, rebound="token")
    assert after.claims["q"] == ledger.claims["q"]


def test_a_percentage_of_another_size_has_another_limit_and_no_stale_one_stays() -> None:
    """Everything that the Binding wrote is written anew, at once."""
    before = a_node(0, sizes=(16, 32), p=a_claim(part(0, 50)))
    pod = a_pod(before)
    after = applied(before, rebind_patch(before, "p", "token", judge(before, pod)))
    change = pod_changes(pod, after, after.claims["p"])
    limit = container_annotation(MEMORY_LIMIT, "main")
    assert (pod.metadata.annotations[limit], change[limit]) == (str(8 * GIB), str(16 * GIB))
    assert change[devices_of_container(vendors.NVIDIA, "main")] == "GPU-1"
    assert change[container_annotation(PERCENT, "main")] == "50"
    unknown = replace(after, status=replace(after.status, hardware=Hardware()))
    assert pod_changes(pod, unknown, unknown.claims["p"])[limit] is None, "its memory isn't known any more"
    told = {key: text for key, text in change.items() if text is not None}
    now = replace(pod, metadata=replace(pod.metadata, annotations={**pod.metadata.annotations, **told}))
    assert pod_changes(now, after, after.claims["p"]) == {}
    assert now.shares == tuple(after.claims["p"].shares)


def test_a_pod_with_parts_that_its_claim_does_not_have_is_left_alone() -> None:
    """Nobody knows how it came by them; it is reported."""
    ledger = a_node(p=a_claim(part(0, 50)))
    pod = a_pod(ledger)
    other = a_node(p=a_claim(part(1, 50)))
    assert pod_changes(pod, other, other.claims["p"]) == {}


def test_of_a_pod_injected_by_cdi_the_record_alone_is_written() -> None:
    """Its containers keep what its sandbox was created with."""
    ledger = a_node(p=a_claim(part(1, 50), replace(part(0, 50), former=True)))
    old = a_node(p=a_claim(part(0, 50)))
    pod = a_pod(old, **{"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=GPU-0"})
    assert pod.sealed
    assert pod_changes(pod, ledger, ledger.claims["p"]).keys() == {contract.SHARES}


def test_a_claim_of_too_many_parts_is_not_written() -> None:
    """Each rebind leaves a former part; a claim takes a kilobyte at most."""
    had = [replace(part(0, 1, container=f"container-{n}", role=SIDECAR), former=True) for n in range(24)]
    ledger = a_node(1, p=a_claim(part(1, 5), *had))
    assert "too many former parts" in judge(ledger, a_pod(ledger)).obstacle


def test_all_that_a_binding_writes_for_containers_is_known_by_name() -> None:
    """Else a rebind would leave a former limit behind."""
    ledger = a_node(p=a_claim(part(0, 50)))
    cdi = replace(ledger, status=replace(ledger.status, handover={"nvidia": vendors.NVIDIA.kinds[0]}))
    for each in (ledger, cdi):
        written = share_annotations(a_pod(ledger), each, each.claims["p"].shares)
        assert written.keys() - container_annotations(["main"]) == {contract.SHARES}


def test_parts_that_fit_only_apart_move_apart() -> None:
    """The device that takes the broken one's place is smaller; the group's other device has room."""
    group = Claim("team", [Device(GPU, 0, "GPU-0"), Device(GPU, 1, "GPU-1")])
    claims = {
        "p": a_claim(part(0, mib=10 * GIB), within="g"),
        "q": a_claim(part(0, mib=6 * GIB), within="g", pod="ns/q"),
    }
    ledger = a_node(0, sizes=(16, 12, 8), g=group, **claims)
    verdict = judge(ledger, TEAM)
    assert {uid: places(claim) for uid, claim in verdict.claims.items()} == {
        "g": [],
        "p": [("main", 0, True), ("main", 1, False)],
        "q": [("main", 0, True), ("main", 2, False)],
    }
    tight = a_node(0, sizes=(16, 8, 8), g=group, **claims)
    verdict = judge(tight, TEAM)
    assert verdict.obstacle.startswith(f"has pod ns/p with 10 GiB of {GPU}, which fits on none")
    assert (verdict.replacements, verdict.claims) == ((), {})


@pytest.mark.parametrize("strategy", ["binpack", "spread"])
def test_the_pods_strategy_counts(strategy: str) -> None:
    """As when it was bound."""
    ledger = a_node(0, p=a_claim(part(0, 20)), q=a_claim(part(1, 50), pod="ns/q"), r=a_claim(part(3, 10), pod="ns/r"))
    [found] = judge(ledger, a_pod(ledger, **{contract.STRATEGY: strategy})).replacements
    assert found.index == (1 if strategy == "binpack" else 2)


Found = tuple[int, dict[str, int], str]
"""The number of a device, an amount, and a container's role."""
AMOUNT = st.sampled_from([{"percent": 10}, {"percent": 60}, {"mib": 3 * GIB}, {"mib": 9 * GIB}])
ROLE = st.sampled_from(["", "", INIT])
SHARES = st.lists(st.tuples(st.integers(0, 3), AMOUNT, ROLE), min_size=1, max_size=3)
SIZES = st.tuples(*[st.sampled_from([8, 16, 24])] * 4)


def a_claim_of(found: list[Found], name: str, within: str = "") -> Claim:
    shares = [
        Share(f"c{n}", GPU, number, f"GPU-{number}", amount.get("mib", 0), amount.get("percent", 0), role)
        for n, (number, amount, role) in enumerate(found)
    ]
    return a_claim(*stored_once(shares), within=within, pod=f"ns/{name}")


def over(ledger: NodeDevices) -> set[int]:
    """The devices of which more is claimed than they have."""
    return {
        state.device.index
        for state in device_states(ledger)
        if sum(used(each.shares, state.memory_mib) for each in state.sharers) > state.whole.capacity
    }


def check(before: NodeDevices, uid: str, verdict: Replacement, sick: set[int]) -> None:
    """No device is over its size that wasn't, nobody else's claim changes, and each pod keeps its amounts."""
    after = applied(before, rebind_patch(before, uid, "token", verdict))
    assert over(after) <= over(before)
    for each, claim in before.claims.items():
        now = after.claims[each]
        if each != uid and each not in verdict.claims:
            assert now == claim
        assert sorted(map(need_of, current(now.shares))) == sorted(map(need_of, current(claim.shares)))
        assert {(s.container, s.index) for s in claim.shares} <= {(s.container, s.index) for s in now.shares}
        if each in verdict.claims and not verdict.obstacle:
            assert sick.isdisjoint(share.index for share in current(now.shares) if each == uid)
    if verdict.obstacle:
        assert all(now.shares == before.claims[each].shares for each, now in after.claims.items())


@given(SHARES, SHARES, SHARES, st.sets(st.integers(0, 3)), SIZES)
def test_no_device_is_ever_over_its_size_by_a_rebind_of_a_share(
    p: list[Found], q: list[Found], r: list[Found], sick: set[int], sizes: tuple[int, ...]
) -> None:
    """Whatever the others have, and how large the devices are."""
    claims = {name: a_claim_of(found, name) for name, found in (("p", p), ("q", q), ("r", r))}
    ledger = a_node(*sick, sizes=sizes, **claims)
    check(ledger, "p", judge(ledger, a_pod(ledger)), sick)


@given(st.tuples(SHARES, SHARES, SHARES), st.sets(st.integers(0, 3)), SIZES, st.sets(st.integers(0, 3), min_size=1))
def test_nor_by_one_of_a_group_with_parts_of_its_devices(
    found: tuple[list[Found], list[Found], list[Found]], sick: set[int], sizes: tuple[int, ...], held: set[int]
) -> None:
    """All that its pods have of its broken devices moves with these, or nothing does."""
    mine = sorted(held)
    inside = [[(mine[n % len(mine)], amount, role) for n, amount, role in each] for each in found[:2]]
    outside = [each for each in found[2] if each[0] not in held]
    claims = {"g": Claim("team", [Device(GPU, n, f"GPU-{n}") for n in mine])}
    claims |= {name: a_claim_of(found, name, "g") for name, found in zip("pq", inside, strict=True)}
    claims |= {"r": a_claim_of(outside, "r")} if outside else {}
    ledger = a_node(*sick, sizes=sizes, **claims)
    verdict = judge(ledger, TEAM)
    check(ledger, "g", verdict, sick)
    if verdict.replacements:
        after = applied(ledger, rebind_patch(ledger, "g", "token", verdict))
        now = {device.index for device in after.claims["g"].whole}
        assert {share.index for name in "pq" for share in current(after.claims[name].shares)} <= now


def test_a_share_of_a_claim_is_read_back_as_it_was_written() -> None:
    """A former one says so, and others say nothing of it."""
    parts = [part(1, 50), replace(part(0, 50), former=True)]
    stored = [msgspec.to_builtins(each) for each in parts]
    assert [each.get("former", False) for each in stored] == [False, True]
    assert "former" not in stored[0]
