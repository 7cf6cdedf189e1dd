"""A group's status as it should be, and the least patch that makes it so."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.answers.group_status import desired_status, status_patch, transitions
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, Group, GroupStatus
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z"
NODE = a_node()
HELD = a_ledger(team=gpus(0, 1))
GROUP = a_group(node="n1")


def status_of(
    group: Group, fleet: Fleet, *, home: Node | None = NODE, pods: tuple[Pod, ...] = (), now: str = NOW
) -> GroupStatus:
    return desired_status(group, fleet, home=home, pods=pods, now=now)


def condition(status: GroupStatus, type_: str) -> tuple[str, str]:
    found = next(each for each in status.conditions if each.type == type_)
    return found.status, found.reason


def message(status: GroupStatus, type_: str) -> str:
    return next(each.message for each in status.conditions if each.type == type_)


def with_status(group: Group, status: GroupStatus) -> Group:
    return msgspec.structs.replace(group, status=status)


def test_a_bound_group_tells_what_its_claim_holds() -> None:
    """The claim, not what the status said before."""
    group = a_group(node="n1", status={"selectedDevices": {GPU: "7", AMD: "0"}})
    users = tuple(a_pod(name, node="n1", devices=gpus(0, 1)) for name in ("b", "a"))
    status = status_of(group, a_fleet(NODE, ledgers=(HELD,), pods=users), pods=users)
    assert (status.phase, status.selected_devices) == (BOUND, {GPU: "0,1"})
    assert (status.allocated_pods, status.pod_count) == (["ns/a", "ns/b"], 2)
    assert condition(status, "Bound") == ("True", "Claimed")
    assert message(status, "Bound") == "holds nvidia.com/gpu 0,1 on node n1"
    assert condition(status, "Healthy") == ("True", "AsClaimed")
    assert status.observed_generation == 3


def test_an_unbound_group_holds_nothing() -> None:
    """What an earlier status said is cleared."""
    group = a_group(status={"selectedDevices": {GPU: "0"}, "allocatedPods": ["ns/gone"]})
    status = status_of(group, a_fleet(NODE, ledgers=(a_ledger(),)), home=None)
    assert (status.phase, status.selected_devices, status.allocated_pods) == (PENDING, {}, [])
    assert condition(status, "Bound") == ("False", "NoPods")
    assert condition(status, "Healthy") == ("Unknown", "NotBound")


def test_what_keeps_a_group_from_being_bound() -> None:
    """One reason each, the worst first."""
    full = a_fleet(NODE, ledgers=(a_ledger(other=gpus(0, 1, 2)),))
    waits = status_of(a_group(), full, home=None, pods=(a_pod(),))
    assert condition(waits, "Bound") == ("False", "Waiting")
    assert "other holds 0,1,2" in message(waits, "Bound")
    slipped = status_of(a_group(), full, home=None, pods=(a_pod(injected=False),))
    assert "did not inject" in message(slipped, "Bound")
    one_of_both = status_of(a_group(), full, home=None, pods=(a_pod(injected=False), a_pod("q")))
    assert "other holds 0,1,2" in message(one_of_both, "Bound")
    invalid = status_of(a_group(count=0), full, home=None, pods=(a_pod(),))
    assert condition(invalid, "Bound") == ("False", "InvalidSpec")
    wiped = status_of(a_group(), a_fleet(NODE, pods=(a_pod(node="n1"),)), home=None)
    assert condition(wiped, "Bound") == ("False", "Repairing")
    torn = (a_pod(node="n1"), a_pod("q", node="n2"))
    assert "several nodes (n1 and n2)" in message(status_of(a_group(), a_fleet(pods=torn), home=None), "Bound")


def test_a_finished_pod_asks_for_nothing() -> None:
    """The group has none that waits."""
    done = msgspec.structs.replace(a_pod(), status=msgspec.structs.replace(a_pod().status, phase="Succeeded"))
    status = status_of(a_group(), a_fleet(NODE, ledgers=(a_ledger(),)), home=None, pods=(done,))
    assert condition(status, "Bound") == ("False", "NoPods")


@pytest.mark.parametrize(
    ("home", "ledger", "reason"),
    [
        (None, HELD, "NodeGone"),
        (a_node(shared=False), HELD, "NodeNotShared"),
        (a_node(ready=False), HELD, "NodeNotReady"),
        (NODE, a_ledger(other=gpus(0)), "ClaimMissing"),
        (NODE, None, "ClaimMissing"),
        (a_node(devices={GPU: 1}), HELD, "DevicesLost"),
        (a_node(devices={}), HELD, "DevicesLost"),
    ],
)
def test_what_degrades_a_bound_group(home: Node | None, ledger: Any, reason: str) -> None:
    """It keeps its node and its devices, and the message says what to do."""
    group = a_group(node="n1", status={"selectedDevices": {GPU: "0,1"}})
    status = status_of(group, a_fleet(ledgers=(ledger,) if ledger else ()), home=home)
    assert (status.phase, status.node_name, status.selected_devices) == (DEGRADED, "n1", {GPU: "0,1"})
    assert condition(status, "Healthy") == ("False", reason)
    assert condition(status, "Bound") == ("True", "Claimed")
    assert "kubectl delete sdg team" in message(status, "Healthy")


def test_a_transition_has_a_time_and_other_words_have_not() -> None:
    """lastTransitionTime changes with the status of a condition only."""
    fleet = a_fleet(NODE, ledgers=(HELD,))
    first = status_of(GROUP, fleet, now=NOW)
    again = status_of(with_status(GROUP, first), fleet, now=LATER)
    assert again == first
    gone = status_of(with_status(GROUP, first), fleet, home=None, now=LATER)
    times = {each.type: each.last_transition_time for each in gone.conditions}
    assert times == {"Bound": NOW, "Healthy": LATER, "Ready": LATER}
    sick = status_of(with_status(GROUP, gone), fleet, home=a_node(ready=False), now="2026-01-02T00:00:00Z")
    assert next(each for each in sick.conditions if each.type == "Healthy").last_transition_time == LATER
    assert [each.reason for each in transitions(gone, sick)] == ["NodeNotReady"] * 2
    assert transitions(first, again) == []


def test_a_status_that_is_right_needs_no_patch() -> None:
    """Also after a round through JSON, as the API server stores it."""
    status = status_of(GROUP, a_fleet(NODE, ledgers=(HELD,)))
    stored = msgspec.json.decode(msgspec.json.encode(status), type=GroupStatus)
    assert status_patch(stored, status) == {}


def test_the_count_is_written_even_where_it_is_nought() -> None:
    """The column would be empty otherwise."""
    status = status_of(a_group(), a_fleet(), home=None)
    assert status_patch(a_group().status, status)["podCount"] == 0


def test_a_resource_that_is_not_held_any_more_is_taken_out() -> None:
    """A merge patch keeps what it does not name."""
    old = GroupStatus(selected_devices={GPU: "0", AMD: "1"})
    assert status_patch(old, GroupStatus(selected_devices={GPU: "2"}))["selectedDevices"] == {GPU: "2", AMD: None}


STATUSES = st.builds(
    GroupStatus,
    phase=st.sampled_from(["", PENDING, BOUND]),
    node_name=st.just("n1"),
    selected_devices=st.dictionaries(st.sampled_from([GPU, AMD]), st.sampled_from(["0", "0,1"])),
    allocated_pods=st.lists(st.sampled_from(["ns/a", "ns/b"]), max_size=2),
    pod_count=st.none() | st.integers(0, 2),
    fence=st.just(4),
)


@given(STATUSES, STATUSES)
def test_the_patch_makes_the_one_into_the_other(old: GroupStatus, new: GroupStatus) -> None:
    """And never names the node or the fence, which others decide."""
    patch = status_patch(old, new)
    assert not patch.keys() & {"nodeName", "fence"}
    merged = msgspec.to_builtins(old)
    for field, value in patch.items():
        if field == "selectedDevices":
            both = merged[field] | value
            merged[field] = {resource: indices for resource, indices in both.items() if indices is not None}
        else:
            merged[field] = value
    assert msgspec.convert(merged, GroupStatus) == new
