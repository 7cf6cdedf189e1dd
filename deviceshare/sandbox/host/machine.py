"""The machine that a real node runs on: how it is found while it runs, and how commands are run on it."""

import sys
from pathlib import Path
from typing import Final

import msgspec

from deviceshare.sandbox.host import cgroups, mount_points, network
from deviceshare.sandbox.state import Layout

RUNTIME_SOCKET: Final = "/run/containerd/containerd.sock"
"""Seen from within; from outside there is no such file."""


class Machine(msgspec.Struct):
    """The running one, as it is written down for those who want in."""

    pid: int
    """Its first process, by the id that this machine knows it by."""
    network: int
    """The inode of its network: tells it from a process that was later given the same id."""


def record(layout: Layout) -> Path:
    """Where the running machine is written down."""
    return layout.data / "machine.json"


def clean(layout: Layout) -> None:
    """Takes away what a machine that was killed left on this one: empty directories, and empty control groups.

    While another sandbox's runs, nothing: the control groups are one set, as the addresses are.
    """
    if not network.taken():
        cgroups.remove()
        mount_points.remove(layout)


def booting(layout: Layout, ip: str) -> list[str]:
    """The words to put before the command that the machine is for; `ip` is iproute2's program."""
    return [sys.executable, "-m", "deviceshare.sandbox.host.boot", str(layout.directory), ip]


def entering(layout: Layout) -> list[str]:
    """The words to put before a command that shall run on the machine."""
    return [sys.executable, "-m", "deviceshare.sandbox.host.enter", str(layout.directory)]
