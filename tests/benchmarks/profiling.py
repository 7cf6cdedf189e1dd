"""Profiles of the processes of a control plane, taken while pods are created and bound.

The API server's own (https://pkg.go.dev/net/http/pprof), and the processor time of Python programs (sampled.py).
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from deviceshare.kube.connection import Connection
from deviceshare_sandbox.components import Component
from tests.benchmarks import sampled
from tests.benchmarks.control_plane import send

_SAMPLED: Final = ("deviceshare", "extender")
_SECONDS: Final = 5
"""Of the API server's profile, which can't be ended early."""


def to_be_sampled(component: Component, name: Path | None) -> Component:
    """The component so that `profile` can sample it by this name, if it is a Python program."""
    if name is None or component.command[1:2] != ["-m"]:
        return component
    python, _, module, *arguments = component.command
    file = f"{name}.{component.name}.folded"
    return replace(component, command=[python, "-m", sampled.__name__, file, module, *arguments])


@contextlib.asynccontextmanager
async def profile(pids: Mapping[str, int], connection: Connection, name: Path | None) -> AsyncIterator[None]:
    """Profiles the block into files that begin with `name`; does nothing without one."""
    if name is None:
        yield
        return
    name.parent.mkdir(parents=True, exist_ok=True)
    fetching = asyncio.create_task(
        send(connection, "GET", f"/debug/pprof/profile?seconds={_SECONDS}"), name="profile the API server"
    )
    python = [pids[each] for each in _SAMPLED if each in pids]
    for pid in python:
        os.kill(pid, signal.SIGUSR1)
    try:
        yield
    finally:
        for pid in python:
            os.kill(pid, signal.SIGUSR2)
        _write(Path(f"{name}.kube-apiserver.pprof"), await fetching)


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)
