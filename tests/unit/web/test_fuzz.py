"""A share of what `tox run -e fuzz` sends, to a running deviceshare and its agent."""

from tests.fuzz import campaign


def test_nothing_that_a_stranger_sends_is_a_fault_of_ours() -> None:
    """No 5xx but 503, no traceback, no end of a process, no memory and no file that stays."""
    report = campaign.run(2_500, seed=2026)

    assert report.faults == []
    assert set(report.inputs) == {"webhook", "extender", "probe", "ui", "agent", "pods", "decoders"}
    assert report.statuses["pods"].keys() >= {"200", "403", "404"}
    assert all(counted.keys() - {"none"} for counted in report.statuses.values())
