"""The machine that a real node runs on: how it is found while it runs, and how commands are run on it."""

import sys
from pathlib import Path
from typing import Final

import msgspec

from deviceshare_sandbox.host import directories, network
from deviceshare_sandbox.state import Layout

RUNTIME_SOCKET: Final = "/run/containerd/containerd.sock"
"""Seen from within; from outside there is no such file."""


class Machine(msgspec.Struct):
    """The running machine, as it is recorded for the commands that enter it."""

    pid: int
    """The id that its first process has on this host."""
    network: int
    """The inode of its network: distinguishes it from a process that has the same id later."""


def record(layout: Layout) -> Path:
    """Where the running machine is recorded."""
    return layout.data / "machine.json"


def clean(layout: Layout) -> None:
    """Removes what a machine that was killed left on this one: empty directories, and empty control groups.

    Does nothing while another sandbox's runs: there is one set of control groups, as of addresses.
    """
    if not network.taken():
        directories.remove_groups()
        directories.remove_mount_points(layout)


def booting(layout: Layout, ip: str) -> list[str]:
    """The prefix of the command that the machine is for; `ip` is iproute2's program."""
    return [sys.executable, "-m", "deviceshare_sandbox.host.boot", str(layout.directory), ip]


def entering(layout: Layout) -> list[str]:
    """The prefix of a command that is to run on the machine."""
    return [sys.executable, "-m", "deviceshare_sandbox.host.enter", str(layout.directory)]
