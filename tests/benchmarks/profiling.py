"""Profiles of the processes of a control plane, taken while pods are created and bound.

The API server's own (https://pkg.go.dev/net/http/pprof), and of Python programs what py-spy samples
(https://github.com/benfred/py-spy), native code included.
"""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from deviceshare.kube.connection import Connection
from tests.benchmarks.control_plane import send

_PYTHON: Final = ("deviceshare", "extender")
_SECONDS: Final = 5
"""Of the API server's profile, which can't be ended early."""


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
    sampling = [await _sample(pids[each], f"{name}.{each}.folded") for each in _PYTHON if each in pids] if _SPY else []
    await asyncio.sleep(1)  # py-spy needs a moment to begin
    try:
        yield
    finally:
        for process in sampling:
            process.send_signal(signal.SIGINT)
            await process.wait()
        _write(Path(f"{name}.kube-apiserver.pprof"), await fetching)


def _write(file: Path, content: bytes) -> None:
    file.write_bytes(content)


async def _sample(pid: int, file: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        _SPY,
        *("record", "--pid", str(pid), "--format", "raw", "--rate", "200", "--nonblocking", "--output", file),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )


_SPY: Final = shutil.which("py-spy") or ""
