"""`deviceshare doctor`: flags that contradict each other."""

from click.testing import CliRunner

from deviceshare.cli.main import main


def test_who_wants_nothing_made_cant_have_a_canary_open_a_gpu() -> None:
    """Rather than that one of the flags is ignored."""
    done = CliRunner().invoke(main, ["doctor", "--gpu", "--no-canary"])
    assert (done.exit_code, "leave one of them out" in done.output) == (2, True)
