"""The ledger: what is free, and patches that change one claim and nothing else."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.answers.ledger_status import summary, with_summary
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.shares import Holder, Share
from deviceshare.domain.placement.holdings import Holding, reconcile_holdings
from tests.unit.domain.objects import GPU, a_group, a_ledger, a_pod, free_on, gpus

A, B = a_group("a").holder, a_group("b").holder


def applied(before: NodeDevices, patch: dict[str, Any]) -> NodeDevices:
    """The ledger after a merge patch (RFC 7386)."""

    def merge(target: Any, change: Any) -> Any:
        if not isinstance(change, dict):
            return change
        merged = dict(target) if isinstance(target, dict) else {}
        for key, value in change.items():
            merged.pop(key, None)
            if value is not None:
                merged[key] = merge(target.get(key) if isinstance(target, dict) else None, value)
        return merged

    return msgspec.convert(merge(msgspec.to_builtins(before), patch), NodeDevices)


def test_what_is_claimed_is_not_free() -> None:
    """Marked or not."""
    seen = a_ledger(a=gpus(0), b=gpus(2), releasing=("b",))
    assert free_on(seen) == gpus(1, 3)
    assert seen.claimed() == set(gpus(0, 2))


def test_each_patch_changes_one_claim_and_carries_the_version() -> None:
    """Of two writers one loses; the other's claims stay as they are. The summary is that of the claims written."""
    seen = a_ledger(a=gpus(0), b=gpus(1))
    patches = {
        "claim": ledger.claims_patch(seen, {"uid-of-c": ledger.claim_of(a_group("c").holder, gpus(2, 3))}),
        "mark": ledger.mark_patch(seen, "uid-of-a", "2026-01-01T00:00:00Z"),
        "drop": ledger.drop_patch(seen, "uid-of-a"),
    }
    assert all(patch["metadata"] == {"resourceVersion": "7"} for patch in patches.values())
    claimed, marked, dropped = (applied(seen, patch) for patch in patches.values())
    assert claimed.claims.keys() == {"uid-of-a", "uid-of-b", "uid-of-c"}
    assert (claimed.claims["uid-of-c"].group, tuple(claimed.claims["uid-of-c"].devices)) == ("c", gpus(2, 3))
    assert marked.claims["uid-of-a"].releasing
    assert marked.claims["uid-of-a"].devices == list(gpus(0))
    assert dropped.claims.keys() == {"uid-of-b"}
    unmarked = applied(marked, ledger.unmark_patch(marked, "uid-of-a"))
    assert unmarked.claims == seen.claims
    assert all(each.claims["uid-of-b"] == seen.claims["uid-of-b"] for each in (claimed, marked, dropped))
    patches["former"] = ledger.former_patch(seen, "uid-of-a", gpus(2))
    for patch in patches.values():
        written = applied(seen, with_summary(seen, patch))
        assert written.claims == applied(seen, patch).claims == ledger.patched(seen, patch).claims
        assert written.spec.summary == summary(written) != summary(seen)
    unmarked = applied(marked, with_summary(marked, ledger.unmark_patch(marked, "uid-of-a")))
    assert unmarked.spec.summary == summary(seen)


def test_a_groups_claim_is_written_as_older_replicas_read_it() -> None:
    """Both write the same ledgers while an upgrade is under way; the key is the UID, the rest is for people."""
    seen, holder = a_ledger(), a_group("c").holder
    claim = replace(ledger.claim_of(holder, gpus(0), former=gpus(1)), rebound="now")
    patch = ledger.claims_patch(seen, {holder.uid: claim})
    stored = {"group": "c", "devices": [{"resource": GPU, "index": 0}], "former": [{"resource": GPU, "index": 1}]}
    assert patch["spec"]["claims"] == {"uid-of-c": {**stored, "rebound": "now"}}
    [(uid, read)] = applied(seen, patch).claims.items()
    assert (read, read.holder(uid), str(read.holder(uid))) == (claim, holder, "group c")


DEVICE_SETS = st.sets(st.builds(Device, st.just(GPU), st.integers(0, 4)), max_size=3).map(
    lambda held: tuple(sorted(held))
)


BY_NUMBER = NodeDevices().present
"""As in a ledger that is gone: it has no UUIDs."""


def holds(holder: Holder, devices: Devices, former: Devices = ()) -> Holding:
    """What a group has."""
    return Holding(holder, ledger.claim_of(holder, devices, former))


WHOLE = st.builds(holds, st.sampled_from([A, B, a_group("c").holder]), DEVICE_SETS, DEVICE_SETS)
SHARED = st.builds(
    lambda name, number, within: a_holding(name, Share("main", GPU, number, percent=30), within=within),
    st.sampled_from(["p", "q"]),
    st.integers(0, 4),
    st.sampled_from(["", A.uid, B.uid]),
)
HOLDINGS = st.lists(WHOLE | SHARED, max_size=8)


def a_holding(pod: str, *shares: Share, within: str = "") -> Holding:
    """What a pod has."""
    return Holding(a_pod(pod).sharer, ledger.share_claim_of(a_pod(pod).sharer, shares, within))


@given(HOLDINGS)
def test_evidence_that_contradicts_never_gives_a_device_two_owners(evidence: list[Holding]) -> None:
    """What is left out is told; what is kept was evidenced; the first evidence always counts."""
    kept, disputed = reconcile_holdings(evidence, BY_NUMBER)
    owners: dict[Device, set[str]] = {}
    for holding in kept:
        for device in (*holding.claim.devices, *holding.claim.replaced):
            owners.setdefault(device, set()).add(
                holding.claim.within or ("pods" if holding.claim.shares else holding.holder.uid)
            )
    assert all(len(each) == 1 for each in owners.values()), "one group with its pods, or pods without one"
    assert len({holding.holder.uid for holding in kept}) == len(kept)
    for uid in {holding.holder.uid for holding in evidence}:
        accepted = [h for h in evidence if h.holder.uid == uid and h not in disputed]
        joined = [h for h in kept if h.holder.uid == uid]
        if any(h.claim.shares for h in accepted):
            alike = [h for h in accepted if h.claim.within == accepted[0].claim.within]
            assert _all_devices(joined) == _all_devices(alike), "what a pod may have stays reserved"
            assert [h.claim.devices for h in joined] == [alike[0].claim.devices], "nothing says that it was replaced"
            continue
        assert _all_devices(joined) == _all_devices(accepted)
        assert [h.claim.devices for h in joined] in ([], *([h.claim.devices] for h in accepted)), (
            "they are somebody's, not mixed"
        )
    if evidence:
        assert evidence[0] not in disputed


@given(HOLDINGS, HOLDINGS)
def test_evidence_against_any_claim_is_disputed_whether_or_not_that_is(
    claimed: list[Holding], evidence: list[Holding]
) -> None:
    """The claim stays in the ledger until a person decides."""
    _, disputed = reconcile_holdings(evidence, BY_NUMBER, claimed)
    for each in evidence:
        against = [claim for claim in claimed if reconcile_holdings([claim, each], BY_NUMBER)[1]]
        assert not against or each in disputed


def test_evidence_for_one_device_under_two_names_is_disputed() -> None:
    """`huawei.com/Ascend910` 0 and `huawei.com/Ascend310P` 0 are one device to a container."""
    one = holds(A, (Device("huawei.com/Ascend910", 0),))
    other = holds(B, (Device("huawei.com/Ascend310P", 0), Device("huawei.com/Ascend310P", 1)))
    assert reconcile_holdings([one, other], BY_NUMBER) == ([one], [other])


def _all_devices(holdings: list[Holding]) -> set[Device]:
    return {device for holding in holdings for device in (*holding.claim.devices, *holding.claim.replaced)}


def test_a_rebind_under_way_leaves_the_devices_that_nobody_gave_up() -> None:
    """A pod that was told of the new ones has the old ones as former; one that wasn't told yet is behind."""
    behind, ahead = holds(A, gpus(0, 1)), holds(A, gpus(0, 2), former=gpus(1))
    for evidence in ([behind, ahead], [ahead, behind]):
        assert reconcile_holdings(evidence, BY_NUMBER) == ([holds(A, gpus(0, 2), former=gpus(1))], [])


def test_a_rebind_of_a_share_under_way_leaves_the_parts_that_nobody_gave_up() -> None:
    """Whichever evidence comes first; the others are on record as former ones."""
    old, new = Share("main", GPU, 0, percent=30), Share("main", GPU, 1, percent=30)
    both = tuple(sorted((new, replace(old, former=True))))
    behind, ahead = a_holding("p", old), a_holding("p", *both)
    for evidence in ([behind, ahead], [ahead, behind]):
        assert reconcile_holdings(evidence, BY_NUMBER) == ([ahead], [])
    assert ahead.claim.shares == list(both)


def test_nothing_is_free_beside_a_claim_by_uuid_while_no_agent_reports() -> None:
    """A recreated ledger knows only the UUIDs in the annotations of pods, and any number may mean one of them."""
    seen = a_ledger(a=(Device(GPU, 1, "GPU-1"),))
    assert free_on(seen) == ()
    assert "claims of this node (a) name devices by UUID, and no agent has reported yet" in summary(seen).reasons


@pytest.mark.parametrize("known", [False, True], ids=["no agent reports", "an agent reports"])
def test_cards_that_had_one_number_in_different_boots_are_two(known: bool) -> None:
    """Each is its holder's, whether or not hardware is known; a number may be either's, so it is disputed."""
    parts = [Part(GPU, 0, "GPU-b"), Part(GPU, 1, "GPU-a")] if known else []
    seen = NodeDevices(status=LedgerStatus(hardware=Hardware(devices=parts)))
    before, after = (holds(a_group(name).holder, (Device(GPU, 0, f"GPU-{name}"),)) for name in "ab")
    by_number, again = holds(a_group("c").holder, gpus(0)), holds(a_group("d").holder, (Device(GPU, 3, "GPU-a"),))
    kept, disputed = reconcile_holdings([before, after, by_number, again], seen.present)
    assert (kept, disputed) == ([before, after], [by_number, again])
