"""`deviceshare turn`: inside a container, waits for the turn of its pod's group, then runs a program."""

import os
import signal
from typing import Final

import click

from deviceshare.domain.turns.turn_client import script

START: Final = 'script=$DEVICESHARE_TURN; unset DEVICESHARE_TURN; eval "$script"'
"""What the shell runs: by the environment, so that lists of processes don't show the whole script."""


@click.command(
    short_help="Inside a container: run a program when it is its turn.",
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  deviceshare turn -- python train.py                 when no other program of the group has the turn
  deviceshare turn --priority 10 --timeout 30m -- CMD   before those of lower priority; not after half an hour
  deviceshare turn --slice 1h --signal USR1 -- CMD      after an hour CMD is asked to end, if others wait
Without deviceshare in the image:
  curl -fsS $DEVICESHARE_AGENT/turn.sh | sh -s -- -- python train.py

\b
D is in seconds, or with a unit: 90, 90s, 10m, 2h, 1d. Takes curl or wget.
Exit codes: CMD's; 124 timed out, 125 refused or failed, 126 or 127 CMD can't be run.""",
)
@click.option("--priority", metavar="N", help="Higher ones are next, then older ones; -1000 to 1000.  [default: 0]")
@click.option("--timeout", metavar="D", help="Give up after waiting so long.")
@click.option("--slice", metavar="D", help="Then CMD is asked to end if others wait.")
@click.option("--signal", metavar="NAME", help="How it is asked.  [default: TERM]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGUMENT]...")
def turn(command: tuple[str, ...], **flags: str | None) -> None:
    """Wait until no other program of this pod's group has the turn, then run CMD. The turn ends when CMD ends.

    The agent of the node gives the turns: docs/turns.md. This process becomes CMD.
    """
    words = [word for name, value in flags.items() if value is not None for word in (f"--{name}", value)]
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    arguments = ["sh", "-c", START, "turn", *words, "--", *command]
    try:
        os.execvpe("sh", arguments, {**os.environ, "DEVICESHARE_TURN": script()})  # noqa: S606, S607 - it becomes CMD
    except FileNotFoundError:
        raise TurnFailed("There is no sh in this image, which runs turns.") from None


class TurnFailed(click.ClickException):
    """CMD was not run."""

    exit_code = 125
