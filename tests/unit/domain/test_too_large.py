"""What no node could ever meet is told from what only has to be waited for."""

from deviceshare.domain.answers.waiting import WaitingReasons, too_large
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import AMD, GPU, a_fleet, a_group, a_ledger, a_node, gpus


def said(fleet: Fleet, group: Group) -> str:
    """Why waiting is in vain, or ""."""
    found = too_large(fleet, group.request)
    return found.text if found else ""


def test_devices_that_others_hold_are_waited_for() -> None:
    """They may be released; so may those that the node lost, or that are withheld."""
    full = a_fleet(a_node(), ledgers=(a_ledger(other=gpus(0, 1, 2, 3)),))
    assert said(full, a_group(count=4)) == ""
    assert said(full, a_group(count=5)) == f"no shared node has more than 4 {GPU}"
    lost = a_fleet(a_node(), ledgers=(a_ledger("n1", {GPU: 3}, other=gpus(3)),))
    assert said(lost, a_group(count=4)) == ""


def test_only_shared_nodes_that_the_selector_matches_count() -> None:
    """Of others no device can be had."""
    large = {GPU: 8}
    nodes = (a_node("n1", zone="west"), a_node("n2", large), a_node("n3", {GPU: 16}, shared=False))
    fleet = a_fleet(*nodes, ledgers=(a_ledger("n1"), a_ledger("n2", large), a_ledger("n3", {GPU: 16})))
    assert said(fleet, a_group(count=9)) == f"no shared node has more than 8 {GPU}"
    west = a_group(count=8, nodeSelector={"zone": "west"})
    assert said(fleet, west) == f"no shared node that matches its nodeSelector has more than 4 {GPU}"
    assert said(fleet, a_group(count=8)) == ""
    fleet.set_node("n2", None)
    assert said(fleet, a_group(count=8)) == f"no shared node has more than 4 {GPU}"


def test_several_resources_have_to_be_on_one_node() -> None:
    """All come from one node, or none."""
    fleet = a_fleet(a_node("n1"), a_node("n2", {AMD: 2}), ledgers=(a_ledger("n1"), a_ledger("n2", {AMD: 2})))
    assert said(fleet, a_group(resources={GPU: 1, AMD: 1})) == f"no shared node has 1 {AMD} and 1 {GPU} together"
    assert said(fleet, a_group(resources={GPU: 1, AMD: 3})) == f"no shared node has more than 2 {AMD}"
    assert said(fleet, a_group(resources={"huawei.com/Ascend910": 1})) == "no shared node has any huawei.com/Ascend910"


def test_nothing_is_concluded_from_what_is_not_known_yet() -> None:
    """A ledger is created closed, and closed again while a device plugin restarts."""
    assert said(a_fleet(a_node()), a_group(count=5)) == ""
    assert said(a_fleet(a_node(), ledgers=(a_ledger("n1", {}),)), a_group(count=5)) == ""
    assert said(a_fleet(), a_group(count=5)) == ""
    none = a_fleet(a_node("n1", {}), ledgers=(a_ledger("n1", {}),))
    assert said(none, a_group(count=5)) == f"no shared node has any {GPU}"


def test_those_with_more_free_devices_are_named_first() -> None:
    """They need the least to become free."""
    names = [f"n{number}" for number in range(8)]
    ledgers = [a_ledger(name, a=gpus(0, 1, 2, 3)) for name in names[:-2]]
    ledgers += [a_ledger("n6", a=gpus(0, 1, 2)), a_ledger("n7", a=gpus(0, 1))]
    text = str(WaitingReasons(a_fleet(*map(a_node, names), ledgers=tuple(ledgers))).of(a_group(count=3).request))
    assert "has free; n7: 2 of 4 free (a holds 0,1); n6: 1 of 4 free (a holds 0,1,2); n0: 0 of 4 free" in text
    assert text.endswith("and 3 more nodes")


def test_the_nodes_that_fit_are_named() -> None:
    """So that the next look is at the right node."""
    fleet = a_fleet(a_node(), a_node("n2"), ledgers=(a_ledger(a=gpus(0, 1, 2)), a_ledger("n2")))
    assert str(WaitingReasons(fleet).of(a_group().request)).startswith(
        f"1 shared node has 2 {GPU} free (n2): see what else"
    )
