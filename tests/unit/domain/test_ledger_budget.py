"""The budget of a ledger: claims are small, and those that a node's ledger takes end where release still has room."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.doctor import nodes
from deviceshare.doctor.findings import PROBLEM, WARNING
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices, claim_bytes
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.objects.shares import INIT, Request, Share, in_full, stored_once
from deviceshare.domain.placement import allocation, ledger_budget
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import share_annotations
from deviceshare.domain.placement.join_obstacles import Namespaces, pod_obstacle, request_of
from deviceshare.domain.placement.ledger_budget import BUDGET, FAIR, MAX_CLAIM
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.protocol import bind
from deviceshare.loops.protocol.bind import WantedClaim, claim_all
from tests.unit.domain.objects import GPU, a_group, a_node, a_share_pod, a_sharing_container, gpus
from tests.unit.loops.live import LiveCluster
from tests.unit.loops.virtual_time import in_virtual_time

UID = "d2719f4e-8a53-4c1b-9d60-0123456789ab"
UUIDS = [f"GPU-{n:08x}-8a53-4c1b-9d60-0123456789ab" for n in range(16)]
HARDWARE = Hardware(devices=[Part(GPU, n, uuid, memory_mib=80 << 10) for n, uuid in enumerate(UUIDS)])
ETCD_LIMIT = 1_572_864
"""Bytes of one request, by default (etcd's `--max-request-bytes`)."""


def a_ledger(claims: Mapping[str, Claim], node: str = "n1") -> NodeDevices:
    """Of 16 GPUs, reported by an agent."""
    status = LedgerStatus(list(gpus(*range(16))), hardware=HARDWARE)
    return NodeDevices(ObjectMeta(name=node, resource_version="7"), LedgerSpec(dict(claims)), status)


def a_claim(pod: str, *shares: Share) -> Claim:
    return Claim(pod=pod, shares=list(shares))


def a_share(device: int, percent: int = 1, container: str = "main", role: str = "") -> Share:
    return Share(container, GPU, device, UUIDS[device], percent=percent, role=role)


def a_large_claim(namespace: str, name: str) -> Claim:
    """Of nearly as many bytes as one may have."""
    return a_claim(f"{namespace}/{name:{'x'}<20}", *(a_share(n, 1, f"container-{n}") for n in range(9)))


def a_pod(inits: Mapping[str, int], mains: Mapping[str, int], *, name: str = "s", namespace: str = "ns") -> Pod:
    """Its containers by name, and the percents that they ask for."""

    def containers(asked: Mapping[str, int]) -> list[dict[str, Any]]:
        return [a_sharing_container(each, {"deviceshare.io/gpu-percent": n}) for each, n in asked.items()]

    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": UID, "labels": {"deviceshare.io/group": ""}},
        "spec": {"containers": containers(mains), "initContainers": containers(inits)},
    }
    return msgspec.convert(body, Pod)


def chosen(pod: Pod) -> Claim:
    """What the pod gets on the empty node."""
    fleet = Fleet()
    fleet.set_ledger("n1", a_ledger({}))
    shares = allocation.choose_shares(pod.share, "binpack", fleet.rooms("n1"))
    assert shares is not None
    return ledger.share_claim_of(pod.sharer, shares)


def filled(namespaces: Iterable[str]) -> dict[str, Claim]:
    """Claims of these namespaces in turn, until no more are taken of any."""
    claims: dict[str, Claim] = {}
    waiting = list(namespaces)
    while waiting:
        for namespace in list(waiting):
            uid = f"{UID[:-6]}{len(claims):06}"
            claim = a_large_claim(namespace, str(len(claims)))
            if ledger_budget.obstacle(a_ledger(claims), uid, claim):
                waiting.remove(namespace)
            else:
                claims[uid] = claim
    return claims


ONE = filled(["a"])
TWO = filled(["a", "b"])


def size(claims: Mapping[str, Claim]) -> int:
    return sum(claim_bytes(uid, claim) for uid, claim in claims.items())


def stored(seen: NodeDevices) -> dict[str, Any]:
    """The ledger as the API server has it, with its claims alone."""
    spec = ledger.claims_patch(seen, seen.claims)["spec"]
    written: dict[str, Any] = merge_patch(ledger.new_ledger("n1"), {"spec": spec})
    return written


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    after = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        after[key] = merge_patch(after.get(key), value)
    return {key: value for key, value in after.items() if value is not None}


# Claims are small.


def test_a_usual_claim_takes_250_bytes() -> None:
    """One container, one device by UUID; names of usual length."""
    assert claim_bytes(UID, a_claim("team-research/notebook-7d4b9c6f58-x2x5k", a_share(3, 25, "notebook"))) <= 250


def test_init_containers_that_coincide_are_stored_once() -> None:
    """They run one after the other: 63 of them were 9,500 bytes. Each still gets its annotations."""
    pod = a_pod({f"{'long' * 12}-{n:02}": 1 for n in range(63)}, {"main": 1})
    claim = chosen(pod)
    assert len(claim.shares) == 64
    assert claim_bytes(UID, claim) < 400
    read = msgspec.convert(stored(a_ledger({UID: claim}))["spec"], LedgerSpec).claims[UID]
    assert len(read.shares) == 2
    assert in_full(read.shares, pod.share) == tuple(sorted(claim.shares))
    assert share_annotations(pod, a_ledger({}), read.shares) == share_annotations(pod, a_ledger({}), claim.shares)


def test_init_containers_on_different_devices_are_stored_one_by_one() -> None:
    """So it can be in an older claim; nobody could say later which of them had which."""
    apart = [a_share(n % 2, 1, f"init-{n}", INIT) for n in range(3)]
    assert stored_once(apart) == tuple(sorted(apart))


def test_an_older_claim_is_read_and_written_anew_in_the_short_form() -> None:
    """A merge patch keeps what it doesn't name, so the long form is taken away by name."""
    old = a_claim("ns/s", *(a_share(0, 1, f"c{n}") for n in range(5)))
    document = stored(a_ledger({}))
    document["spec"]["claims"][UID] = {"pod": "ns/s", "shares": msgspec.to_builtins(old.shares)}
    read = msgspec.convert(document, NodeDevices)
    assert read.claims[UID] == old
    after = merge_patch(document, ledger.claims_patch(read, {UID: replace(old, rebound="again")}))
    assert after["spec"]["claims"][UID].keys() == {"pod", "parts", "rebound"}
    assert msgspec.convert(after, NodeDevices).claims[UID].shares == old.shares
    fewer = merge_patch(after, ledger.claims_patch(a_ledger({UID: old}), {UID: a_claim("ns/s", a_share(0))}))
    assert fewer["spec"]["claims"][UID].keys() == {"pod", "shares", "rebound"}


NAMES = st.integers(1, 12).map(lambda length: "n" * length)
CONTAINERS = st.dictionaries(
    st.builds(lambda number, length: f"c{number}-{'n' * length}", st.integers(0, 99), st.integers(0, 55)),
    st.sampled_from([1, 2, 100, 150, 300]),
    max_size=6,
)


@given(CONTAINERS, CONTAINERS, NAMES, NAMES)
def test_a_claim_that_is_allowed_takes_a_kilobyte(
    inits: dict[str, int], mains: dict[str, int], name: str, namespace: str
) -> None:
    """What it will take is known before its devices are."""
    pod = a_pod(inits, mains, name=name * 20, namespace=namespace * 5)
    if not pod.share.needs or ledger_budget.oversize(pod.sharer, pod.share):
        return
    if allocation.choose_shares(pod.share, "binpack", _rooms()) is not None:
        assert claim_bytes(UID, chosen(pod)) <= MAX_CLAIM


def _rooms() -> Any:
    fleet = Fleet()
    fleet.set_ledger("n1", a_ledger({}))
    return fleet.rooms("n1")


def test_a_pod_with_a_claim_too_large_fits_nowhere() -> None:
    """It is told so at once, by filter; 16 whole devices in one container are no such pod."""
    refused = pod_obstacle(a_pod({}, {f"{'long' * 12}-{n}": 1 for n in range(16)}), None, Namespaces())
    assert refused is not None
    assert refused.kind is ReasonKind.INVALID_SPEC
    assert "1024 bytes" in refused.text
    assert ledger_budget.oversize(a_share_pod().sharer, a_pod({}, {"main": 1600}).share) is None


# Their sum has an end.


def test_1600_shares_of_one_namespace_fit_on_16_devices() -> None:
    """Of 250 bytes each."""
    claims = {
        f"{UID[:-4]}{n:04}": a_claim(f"team-research-{'x' * 20}/notebook-{n:04}-{'y' * 18}", a_share(n % 16))
        for n in range(1600)
    }
    assert 249 <= size(claims) / 1600 <= 250
    assert ledger_budget.obstacle(a_ledger(claims), UID, a_claim("b/p", a_share(0))) is None


@pytest.mark.parametrize(("claims", "namespaces"), [(ONE, 1), (TWO, 2)])
def test_a_namespace_leaves_room_to_the_next(claims: dict[str, Claim], namespaces: int) -> None:
    """Each has at most four times what is left: four fifths alone, four ninths of two."""
    each = BUDGET * FAIR // (FAIR * namespaces + 1)
    assert each * namespaces - 2 * namespaces * MAX_CLAIM <= size(claims) <= each * namespaces
    full = a_ledger(claims)
    one_more = ledger_budget.obstacle(full, UID, a_large_claim("a", "more"))
    assert one_more is not None
    assert one_more.kind is ReasonKind.LEDGER_FULL
    assert ledger_budget.obstacle(full, UID, a_large_claim("newcomer", "p")) is None


def test_filter_sends_a_pod_past_a_full_ledger() -> None:
    """The owner of what fills it is sent on; another namespace's pod isn't. What is there already stays."""
    fleet = Fleet()
    for node, claims in (("n1", ONE), ("n2", {})):
        fleet.set_node(node, a_node(node))
        fleet.set_ledger(node, a_ledger(claims, node))
    mine, other = (a_request(namespace) for namespace in ("a", "b"))
    found = fleet.filter(mine, ["n1", "n2"])
    assert found.fits == ["n2"]
    assert found.reasons["n1"].kind is ReasonKind.LEDGER_FULL
    assert fleet.filter(other, ["n1", "n2"]).fits == ["n1", "n2"], "kept by what the pods ask for"
    assert fleet.filter(mine, ["n1", "n2"]).fits == ["n2"]
    assert list(fleet.fitting(mine)) == ["n2"]
    fleet.set_ledger("n1", a_ledger({}))
    assert fleet.filter(mine, ["n1"]).fits == ["n1"]


def test_a_pod_that_joins_its_group_with_a_share_is_told_so_too() -> None:
    """Its group can't go elsewhere: the pod waits until its namespace has ended some of the others."""
    team = Claim("team", list(gpus(15)))
    fleet, group = Fleet(), a_group("team", 1, node="n1")
    fleet.set_node("n1", a_node())
    for claims, kind in ((ONE, ReasonKind.LEDGER_FULL), ({}, None)):
        fleet.set_ledger("n1", a_ledger({**claims, group.uid: team}))
        wanted = request_of(replace(a_share_pod(group="team", percent=10), metadata=MEMBER), group)
        assert wanted is not None
        found = fleet.filter(wanted, ["n1"]).reasons.get("n1")
        assert (found and found.kind) == kind


MEMBER = ObjectMeta(name="s", namespace="a", uid=UID, annotations={"deviceshare.io/group": "team"})


def a_request(namespace: str) -> Request:
    found = request_of(a_pod({}, {"main": 1}, namespace=namespace), None)
    assert found is not None
    return found


def test_a_full_ledger_is_emptied_claim_by_claim() -> None:
    """Every claim bears a mark at the same time, and the whole is still far from what etcd refuses."""
    document = {**stored(a_ledger(TWO)), "metadata": {"name": "n1", "resourceVersion": "7"}}
    for uid in TWO:
        seen = msgspec.convert(document, NodeDevices) if uid == next(iter(TWO)) else a_ledger(TWO)
        document = merge_patch(document, ledger.mark_patch(seen, uid, "2026-11-24T00:00:00.000000Z", "0" * 16))
    assert len(msgspec.json.encode(document)) < ETCD_LIMIT // 2
    for uid in TWO:
        document = merge_patch(document, ledger.drop_patch(a_ledger(TWO), uid))
    assert document["spec"]["claims"] == {}


def test_a_ledger_that_an_older_version_filled_to_the_brim_is_emptied_too() -> None:
    """A mark makes it smaller: 63 init containers with long names, stored one by one until now."""
    long = [a_share(0, 1, f"{'long' * 14}-{n:02}", INIT) for n in range(63)]
    claims = {f"{UID[:-4]}{n:04}": a_claim(f"ns/p{n}", *long) for n in range(120)}
    document = stored(a_ledger({}))
    document["spec"]["claims"] = {
        uid: {"pod": claim.pod, "shares": msgspec.to_builtins(claim.shares)} for uid, claim in claims.items()
    }
    before = len(msgspec.json.encode(document))
    assert before > ETCD_LIMIT * 9 // 10
    for uid in claims:
        document = merge_patch(document, ledger.mark_patch(a_ledger(claims), uid, "2026-11-24T00:00:00.000000Z"))
        before, longer = len(msgspec.json.encode(document)), before
        assert before < longer
    assert before < BUDGET // 4
    assert all(claim.releasing for claim in msgspec.convert(document, NodeDevices).claims.values())


def test_a_claim_is_looked_at_only_where_ledgers_are_nearly_full() -> None:
    """So that filter costs nothing more on all other nodes."""
    assert ledger_budget.crowding(a_ledger(dict(list(ONE.items())[: len(ONE) // 2]))) is None
    crowded = ledger_budget.crowding(a_ledger(ONE))
    assert crowded is not None
    assert (crowded.used, crowded.namespaces) == (size(ONE), (("a", size(ONE)),))


def test_the_doctor_names_a_ledger_that_is_nearly_full_and_who_filled_it() -> None:
    """Over the budget it can be from an older version alone."""
    over = {f"{uid}{n}": claim for uid, claim in ONE.items() for n in range(2)}
    marks = []
    for claims in ({}, ONE, over):
        found = [*nodes.judge_inventory([a_node()], {"n1": a_ledger(claims)})]
        marks.append([each.mark for each in found if "the ledger of n1" in each.what])
        assert all("(a has " in each.cure for each in found if "the ledger of n1" in each.what)
    assert marks == [[], [WARNING], [PROBLEM]]


@in_virtual_time
async def test_a_bind_that_filter_let_through_is_refused_at_a_full_ledger() -> None:
    """Others filled it meanwhile. Of two that are claimed together, the one with room gets it."""
    cluster = LiveCluster()
    status = msgspec.to_builtins(a_ledger({}).status)
    cluster.put(NODE_DEVICES, {"metadata": {"name": "n1"}, "spec": stored(a_ledger(ONE))["spec"], "status": status})
    mine, other = (bind.wanted_share(a_request(namespace)) for namespace in ("a", "b"))
    found = await claim_all(cluster, [mine, WantedClaim("uid-of-other", other.choose)], "n1")
    assert found.refused[UID].kind is ReasonKind.LEDGER_FULL
    assert found.refused.keys() == {UID}
    assert found.ledger.claims["uid-of-other"].pod == "b/s"
