"""Times as Kubernetes writes them."""

import re
from datetime import UTC, datetime

from deviceshare import timestamps


def test_times_are_rfc_3339_in_utc() -> None:
    """metav1.Time has whole seconds, metav1.MicroTime exactly six digits; zeros stay."""
    moment = datetime(2026, 1, 2, 3, 4, 5, 60, UTC)
    assert timestamps.timestamp(moment) == "2026-01-02T03:04:05Z"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", timestamps.now())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", timestamps.micro_now())
    assert abs((datetime.fromisoformat(timestamps.micro_now()) - datetime.now(UTC)).total_seconds()) < 60


def test_the_age_of_what_is_no_time_is_not_known() -> None:
    """Others may have written anything; without a time zone it is no moment."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert timestamps.seconds_since("2026-01-02T03:04:00Z", now) == 5
    assert timestamps.seconds_since("2026-01-02T04:04:10+01:00", now) == -5
    for text in ("", "yesterday", "2026-01-02T03:04:00", "2026-01-02", "0000-00-00T00:00:00Z", "\x1b[2J"):
        assert timestamps.seconds_since(text, now) is None
