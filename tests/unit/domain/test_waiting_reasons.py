"""Reasons that are kept are those that a look at the whole cluster gives, and a change costs what it changes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.shapes import Shape
from tests.unit.domain.objects import a_fleet, a_group, a_ledger, a_node, gpus

NAMES = ("n1", "n2", "n3", "n4", "n5", "n6", "n7")
GROUPS = (
    a_group("one", 1),
    a_group("two", 2),
    a_group("four", 4),
    a_group("nine", 9),
    a_group("west", 2, nodeSelector={"zone": "west"}),
    a_group("east", 4, nodeSelector={"zone": "east"}),
)


class Change(NamedTuple):
    """Of one node: its objects, of which either may be missing, and how many of its devices a bind takes."""

    name: str
    node: Node | None
    ledger: NodeDevices | None
    assumed: int


@st.composite
def changes(draw: st.DrawFn) -> Change:
    name = draw(st.sampled_from(NAMES))
    node = a_node(name, shared=draw(st.booleans()), zone=draw(st.sampled_from(["", "west", "east"])))
    held = {holder: gpus(index) for index, holder in enumerate(draw(st.lists(st.sampled_from("abc"), unique=True)))}
    if name == NAMES[0] and draw(st.booleans()):  # where a group's claims are on two nodes, the newest counts
        held["two"] = gpus(3)
    ledger = a_ledger(name, None, releasing=(), **held)
    there = draw(st.sampled_from(["both", "both", "node", "ledger", "neither"]))
    has_node, has_ledger = there in ("both", "node"), there in ("both", "ledger")
    return Change(name, node if has_node else None, ledger if has_ledger else None, draw(st.integers(0, 2)))


def apply(fleet: Fleet, change: Change) -> None:
    fleet.set_node(change.name, change.node)
    fleet.set_ledger(change.name, change.ledger)
    fleet.forget(f"bind-{change.name}")
    if change.assumed:
        fleet.assume(f"bind-{change.name}", Assumption(change.name, gpus(*range(change.assumed))))


def made_of(changed: Iterable[Change]) -> Fleet:
    fleet = Fleet()
    for change in changed:
        apply(fleet, change)
    return fleet


@settings(max_examples=40, deadline=None)
@given(st.lists(changes(), max_size=20))
def test_a_kept_reason_is_that_of_a_fleet_made_from_scratch(history: list[Change]) -> None:
    """After each change, for groups that want different things; so is where a group's next pod fits."""
    fleet, newest = Fleet(), dict[str, Change]()
    reasons = WaitingReasons(fleet)
    for change in history:
        apply(fleet, change)
        newest[change.name] = change
        fresh = made_of(newest.values())
        for group in GROUPS:
            assert reasons.of(group.request) == WaitingReasons(fresh).of(group.request)
            fits = set(fleet.fitting(group.request))
            assert fits == set(fresh.filter(group.request, sorted(newest)).fits)
            assert not fits or reasons.may_fit(group)


def waiting(number: int) -> list[Group]:
    """So many groups, which want one of four things."""
    zones: list[dict[str, Any]] = [{}, {"nodeSelector": {"zone": "west"}}]
    return [a_group(f"group-{each}", 3 + each % 2, **zones[each // 2 % 2]) for each in range(number)]


def obstacles_looked_for(nodes: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a situation is judged for the reasons of all groups, after one device was claimed."""
    names = [f"n{number:04}" for number in range(nodes)]
    kept = [a_node(name, zone="west" if index % 2 else "") for index, name in enumerate(names)]
    fleet = a_fleet(
        *kept, ledgers=tuple(a_ledger(name, a=gpus(*range(2 + index % 3))) for index, name in enumerate(names))
    )
    reasons, many, judged = WaitingReasons(fleet), waiting(groups), 0
    for group in many:
        reasons.of(group.request)
    judge = Shape.obstacle_to

    def counting(shape: Shape, *args: Any) -> Any:
        nonlocal judged
        judged += 1
        return judge(shape, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Shape, "obstacle_to", counting)
        fleet.set_ledger(names[1], a_ledger(names[1], a=gpus(0, 1, 2), b=gpus(3)))
        for group in many:
            reasons.of(group.request)
    return judged


def test_a_change_costs_the_same_however_many_nodes_and_groups_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is in how many situations nodes are, and how many different things groups want."""
    few, many = obstacles_looked_for(12, 8, monkeypatch), obstacles_looked_for(240, 160, monkeypatch)
    assert 0 < few == many <= 4 * 4


def test_a_change_of_a_node_that_no_text_names_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds what there is nobody's concern, and no situation is judged again."""
    names = [f"n{number:02}" for number in range(20)]
    fleet = a_fleet(*map(a_node, names), ledgers=tuple(a_ledger(name, a=gpus(0, 1, 2)) for name in names))
    reasons, group = WaitingReasons(fleet), a_group()
    before = reasons.of(group.request)
    fleet.set_ledger(names[-1], a_ledger(names[-1], b=gpus(0, 1, 2)))
    assert reasons.of(group.request) is before
    fleet.set_ledger(names[0], a_ledger(names[0], b=gpus(0, 1, 2)))
    assert "b holds" in str(reasons.of(group.request))


def test_reasons_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes groups could fill the memory."""
    monkeypatch.setattr("deviceshare.domain.answers.waiting.KEPT", 3)
    reasons = WaitingReasons(a_fleet(a_node(), ledgers=(a_ledger(),)))
    for count in range(5, 15):
        assert f"waiting for {count} " in str(reasons.of(a_group(count=count).request))
    assert len(reasons._kept) <= 3
