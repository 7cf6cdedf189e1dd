"""`deviceshare turn`: inside a container, waits for the turn of its pod's group, then runs a program."""

import asyncio
import os
import re
import shutil
import signal
import sys
from typing import Any

import click

from deviceshare.domain import contract
from deviceshare.domain.turns.bid import HIGHEST_PRIORITY, LONGEST_SLICE

FAILED = 125
NOT_FOUND = 127
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[int]):
    """Whole seconds, written as 90, 90s, 10m, 2h or 1d."""

    name = "D"

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", str(value))
        seconds = int(found[1]) * _UNITS[found[2]] if found else -1
        if not 0 <= seconds <= self._most:
            self.fail(
                f"{str(value)!r} is not a time such as 90, 90s, 10m, 2h or 1d, of {self._most} s at most", param, ctx
            )
        return seconds


class SignalName(click.ParamType[signal.Signals]):
    """A signal's name, with or without SIG."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> signal.Signals:
        try:
            return signal.Signals["SIG" + str(value).removeprefix("SIG")]
        except KeyError:
            self.fail(f"there is no signal {value!r}; TERM and USR1 are two", param, ctx)


@click.command(
    short_help="Inside a container: run a program when it is its turn.",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="""\b
Examples:
  deviceshare turn -- python train.py                 when no other program of the group has the turn
  deviceshare turn --priority 10 --timeout 30m -- CMD   before those of lower priority; not after half an hour
  deviceshare turn --slice 1h --signal USR1 -- CMD      after an hour CMD is asked to end, if others wait
Without deviceshare in the image:
  curl -fsS $DEVICESHARE_AGENT/turn.sh | sh -s -- -- python train.py
\b
Exit codes: CMD's; 124 timed out, 125 refused or failed, 126 or 127 CMD can't be run.""",
)
@click.option(
    "--priority",
    type=click.IntRange(-HIGHEST_PRIORITY, HIGHEST_PRIORITY),
    default=0,
    show_default=True,
    help="Higher ones are next, then older ones.",
)
@click.option("--timeout", type=Duration(LONGEST_SLICE * 52), help="Give up after waiting so long.")
@click.option(
    "--slice", "slice_", type=Duration(LONGEST_SLICE), default=0, help="Then CMD is asked to end if others wait."
)
@click.option("--signal", "signal_", type=SignalName(), default="TERM", show_default=True, help="How it is asked.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD [ARGUMENT]...")
def turn(priority: int, timeout: int | None, slice_: int, signal_: signal.Signals, command: tuple[str, ...]) -> None:
    """Wait until no other program of this pod's group has the turn, then run CMD. The turn ends when CMD ends.

    The agent of the node gives the turns: docs/turns.md. CMD gets the signals that this command gets.
    """
    agent = os.environ.get(contract.AGENT_VARIABLE)
    if not agent:
        raise TurnFailed(f"{contract.AGENT_VARIABLE} is not set: it is in containers of pods that deviceshare injected")
    if shutil.which(command[0]) is None:
        raise NoSuchProgram(f"{command[0]}: not found")
    from deviceshare.cli.turn_client import TurnClient, TurnWish  # noqa: PLC0415 - the others don't need aiohttp

    wish = TurnWish(priority=priority, timeout=timeout, slice=slice_, signal=signal_)
    sys.exit(asyncio.run(TurnClient(agent, wish, command).run()))


class TurnFailed(click.ClickException):
    """CMD was not run."""

    exit_code = FAILED


class NoSuchProgram(TurnFailed):
    """There is no CMD."""

    exit_code = NOT_FOUND
