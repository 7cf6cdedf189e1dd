"""The claim protocol, explored exhaustively within small bounds; and what each of its rules is for.

`tox run -e model` explores larger bounds, too. docs/claims.md says what this covers and what it doesn't.
"""

import os
from dataclasses import replace

import pytest

from tests.model.bounds import LARGE, SMALL
from tests.model.explorer import Happening, explore
from tests.model.exploring import run
from tests.model.needs import NEEDED, NEEDED_BY_SHARES, UNPROVEN
from tests.model.rules import Rule

LONG = bool(os.environ.get("MODEL_LONG"))
EVERY = {**SMALL, **LARGE} if LONG else SMALL
SERVERS = pytest.mark.parametrize("compares", [True, False], ids=["versions-compared", "versions-ignored"])


@SERVERS
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.timeout(3600 if LONG else 1200)
def test_the_protocol_holds_and_can_settle(name: str, compares: bool) -> None:
    """No device of two groups, no group on two nodes; and wherever it stops, the leaders can put all in order."""
    found = run(replace(EVERY[name], compares=compares), progress=True)
    print(f"{name}, {compares=}: {found.states} states, {found.happenings} steps")
    assert not found.broken, str(found)


@pytest.mark.parametrize(
    ("rule", "name", "compares"), [*((rule, *where) for rule, where in NEEDED.items()), *NEEDED_BY_SHARES]
)
def test_something_breaks_without_the_rule(rule: Rule, name: str, compares: bool) -> None:
    """The model can fail, and the rule is there for a reason."""
    assert run(replace(SMALL[name], compares=compares, without=rule)).broken


def test_each_rule_is_needed_or_said_not_to_be() -> None:
    """Within these bounds; docs/claims.md names those that aren't."""
    assert NEEDED.keys() | UNPROVEN.keys() == set(Rule)
    assert not NEEDED.keys() & UNPROVEN.keys()


def counting(state: int) -> list[Happening[int]]:
    """Up to nine; back to zero only by somebody's hand; and ten is a dead end."""
    up = [Happening("up", True, state + 1)] if state < 10 else []
    return [*up, Happening("back", state != 10, 0)]


def test_the_explorer_finds_the_shortest_way_to_what_is_wrong() -> None:
    """So that a trace can be read."""
    found = explore(0, counting, lambda state: "three" if state == 3 else "")
    assert (found.broken, found.steps) == ("three", ("up", "up", "up"))


def test_the_explorer_finds_a_state_that_cannot_settle() -> None:
    """At ten, only a hand from outside helps."""
    found = explore(0, counting, lambda state: "", lambda state: state == 0)
    assert found.broken == "it can't settle any more"
    assert len(found.steps) == 10
