"""Durations, the settings of a group's life, and since when a group is idle."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain.answers.group_status import idle_since, release_reason
from deviceshare.domain.objects.groups import AFTER_LAST_POD, NEVER, REFUSE, GroupLife
from deviceshare.domain.objects.quantities import seconds_of, spelled
from tests.unit.domain.objects import a_group

NOW = "2026-11-22T12:00:00Z"


@given(st.integers(0, 10**8))
def test_a_duration_is_read_as_it_is_spelled(seconds: int) -> None:
    """In hours, minutes and seconds, without parts that are zero."""
    assert seconds_of(spelled(seconds)) == seconds
    assert str(release_reason(90 * 60)).startswith("released after 1h30m without pods")


@pytest.mark.parametrize("text", ["", "h", "1", "1m1h", "1.5h", "1d", "-1s", "1h 1m", "123456h", NEVER])
def test_anything_else_is_no_duration(text: str) -> None:
    """Neither is never."""
    assert seconds_of(text) is None


def test_a_groups_own_word_counts_before_the_setting() -> None:
    """What can't be read keeps the devices."""
    strict, kind = GroupLife("1h", REFUSE), GroupLife(NEVER, AFTER_LAST_POD)

    assert [strict.release_seconds(text) for text in ("", "10s", NEVER, "0s", "soon")] == [3600, 10, None, None, None]
    assert kind.release_seconds("") is None
    assert [kind.outlives_deletion(text) for text in ("", REFUSE, AFTER_LAST_POD)] == [True, False, True]
    assert [strict.outlives_deletion(text) for text in ("", REFUSE, AFTER_LAST_POD)] == [False, False, True]


@pytest.mark.parametrize(
    ("written", "since"),
    [
        ("2026-11-22T11:00:00Z", "2026-11-22T11:00:00Z"),
        ("2026-11-22T12:00:00+01:00", "2026-11-22T12:00:00+01:00"),
        ("2026-11-22T12:00:01Z", NOW),
        ("2026-11-22T11:00:00", NOW),
        ("yesterday", NOW),
        ("", NOW),
    ],
)
def test_a_time_that_is_past_stays(written: str, since: str) -> None:
    """Any other starts again; used and unbound groups have none."""
    group = a_group(node="n1", status={"idleSince": written})

    assert idle_since(group, NOW, used=False) == since
    assert idle_since(group, NOW, used=True) == ""
    assert idle_since(a_group(status={"idleSince": written}), NOW, used=False) == ""
