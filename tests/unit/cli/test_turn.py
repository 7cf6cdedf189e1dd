"""`deviceshare turn` before it becomes a shell; tests/turns runs it with an agent."""

import os
import subprocess
import sys

from click.testing import CliRunner

from deviceshare.cli.main import main


def test_help_has_examples() -> None:
    """Also for images without deviceshare."""
    result = CliRunner().invoke(main, ["turn", "--help"])
    assert result.exit_code == 0
    assert "deviceshare turn --slice 1h" in result.output
    assert "turn.sh | sh -s" in result.output


def test_without_a_command_it_says_what_is_missing() -> None:
    """Wrong use is 2, as everywhere."""
    result = CliRunner().invoke(main, ["turn", "--priority", "1"])
    assert (result.exit_code, "Missing argument" in result.output) == (2, True)


def test_without_a_shell_nothing_runs() -> None:
    """As in images that have nothing but their program."""
    command = [sys.executable, "-m", "deviceshare", "turn", "--", "true"]
    done = subprocess.run(command, env={**os.environ, "PATH": "/none"}, capture_output=True, text=True, check=False)
    assert (done.returncode, "no sh in this image" in done.stderr) == (125, True), done.stderr
