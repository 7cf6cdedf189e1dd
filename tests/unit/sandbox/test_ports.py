"""Ports of several sandboxes on one machine."""

import os
import subprocess
import sys

import pytest

from deviceshare_sandbox import network

FIRST = 10_000 + os.getpid() % 2_000 * 4
"""Four ports from here on, which sandboxes don't use, nor others who run this test now."""
CHOOSE_THREE = f"""\
from deviceshare_sandbox import network
network._FIRST, network._LAST = {FIRST}, {FIRST + 4}
print(*network.free_ports(3), flush=True)
input()
"""


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody listens on it yet: neither to this process nor to another, until its owner has ended."""
    monkeypatch.setattr(network, "_FIRST", FIRST)
    monkeypatch.setattr(network, "_LAST", FIRST + 4)
    command = [sys.executable, "-c", CHOOSE_THREE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        mine = set(network.free_ports(1))
        with pytest.raises(OSError, match="no 1 ports are free"):
            network.free_ports(1)
        other.communicate("\n")
    assert len(theirs | mine) == 4
    assert set(network.free_ports(3)) == theirs
