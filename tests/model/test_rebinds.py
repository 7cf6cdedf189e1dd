"""Rebind, explored exhaustively within small bounds; and what its rules are for.

`tox run -e model` explores two rebinds in a row, which takes minutes.
"""

import os

import pytest

from tests.model.rebinds import RebindBounds, RebindRule, run_rebinds

LONG = bool(os.environ.get("MODEL_LONG"))
REBINDS = 2 if LONG else 1
SHOWN = (RebindRule.FORMER, RebindRule.UPDATE_AFTER) if LONG else (RebindRule.FORMER,)
"""The others are yet to be shown to be needed."""


@pytest.mark.parametrize("compares", [True, False], ids=["versions-compared", "versions-ignored"])
@pytest.mark.timeout(3600 if LONG else 1200)
def test_no_other_holder_gets_a_device_that_a_live_pod_may_hold(compares: bool) -> None:
    """While claims move, pods are bound, updated and end, and former devices are released by two leaders."""
    found = run_rebinds(RebindBounds(compares=compares, rebinds=REBINDS))
    print(f"rebind, {compares=}: {found.states} states, {found.happenings} steps")
    assert not found.broken, str(found)


@pytest.mark.parametrize("rule", SHOWN, ids=lambda rule: rule.name)
def test_something_breaks_without_the_rule_of_rebind(rule: RebindRule) -> None:
    """The model can fail, and the rule is there for a reason."""
    assert run_rebinds(RebindBounds(without=rule)).broken
