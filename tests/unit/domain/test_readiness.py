"""The condition Ready, and the columns for people: what tools wait for, and what `kubectl get sdg -o wide` says."""

from msgspec.structs import replace

from deviceshare.domain.answers.group_status import desired_status
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus
from tests.unit.domain.test_gates import gated

NODE, HELD = a_node(), a_ledger(team=gpus(0, 1))
FULL = a_fleet(NODE, ledgers=(a_ledger(other=gpus(0, 1, 2)),))


def ready(group: Group, fleet: Fleet, *pods: Pod, home: Node | None = None) -> tuple[str, str, str, str]:
    """Status and reason of Ready, the word under WHY, and the message."""
    status = desired_status(group, fleet, home=home, pods=pods, now="")
    [condition] = [each for each in status.conditions if each.type == "Ready"]
    return condition.status, condition.reason, status.reason, condition.message


def test_a_bound_and_healthy_group_is_ready() -> None:
    """Without a word under WHY."""
    assert ready(a_group(node="n1"), a_fleet(NODE, ledgers=(HELD,)), home=NODE) == (
        "True",
        "Claimed",
        "",
        f"holds {GPU} 0,1 on node n1",
    )


def test_a_group_that_nobody_waits_for_is_ready() -> None:
    """`helm --wait` would never end else; nor while another system holds all of its pods back."""
    assert ready(a_group(), FULL)[:3] == ("True", "NoPods", "NoPods")
    assert ready(a_group(), FULL, gated(a_pod()))[:3] == ("True", "SchedulingGated", "SchedulingGated")


def test_a_group_that_pods_wait_for_is_not_ready() -> None:
    """With the same text as Bound."""
    status, reason, why, message = ready(a_group(), FULL, a_pod())
    assert (status, reason, why) == ("False", "Waiting", "Waiting")
    assert "other holds 0,1,2" in message
    assert ready(a_group(count=5), FULL, a_pod())[:3] == ("False", "NoNodeLargeEnough", "NoNodeLargeEnough")
    assert ready(a_group(count=0), FULL)[:3] == ("False", "InvalidSpec", "InvalidSpec")


def test_a_degraded_group_is_not_ready() -> None:
    """With the text of Healthy; what can't be read may be healthy or not."""
    fleet, group = a_fleet(NODE, ledgers=(HELD,)), a_group(node="n1")
    assert ready(group, fleet)[:3] == ("False", "NodeGone", "NodeGone")
    hidden = replace(NODE, metadata=replace(NODE.metadata, unreadable={"status.conditions": "is no list"}))
    assert ready(group, fleet, home=hidden)[:3] == ("Unknown", "Unreadable", "Unreadable")


def test_a_group_that_is_being_deleted_is_not_ready() -> None:
    """Also while its last pods use it."""
    group = a_group(node="n1")
    deleted = replace(group, metadata=replace(group.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    assert ready(deleted, a_fleet(NODE, ledgers=(HELD,)), home=NODE)[:3] == ("False", "GroupDeleting", "GroupDeleting")


def test_what_it_wants_and_has_is_one_line_each() -> None:
    """Maps print raw in columns."""
    one = desired_status(a_group(node="n1"), a_fleet(NODE, ledgers=(HELD,)), home=NODE, pods=(), now="")
    assert (one.wants, one.devices) == (f"{GPU}: 2", "0,1")
    ledger = a_ledger("n1", {GPU: 1, AMD: 1})
    both = a_group(node="n1", resources={GPU: 1, AMD: 1}, status={"selectedDevices": {GPU: "0", AMD: "0"}})
    two = desired_status(both, a_fleet(NODE, ledgers=(ledger,)), home=NODE, pods=(), now="")
    assert (two.wants, two.devices) == (f"{AMD}: 1, {GPU}: 1", f"{AMD} 0 and {GPU} 0")
