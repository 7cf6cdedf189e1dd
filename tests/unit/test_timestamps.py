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
