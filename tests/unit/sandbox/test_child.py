"""One child process, over several lives."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceshare_sandbox.components import Component
from deviceshare_sandbox.processes import Child, Prober
from deviceshare_sandbox.reports import SandboxError

SLEEP = ["sleep", "600"]


class Always(Prober):
    """Finds every process as well as it was told."""

    def __init__(self, *, healthy: bool) -> None:
        self._healthy = healthy

    async def healthy(self, url: str) -> bool:
        return self._healthy


async def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 what is awaited happens in other processes
            await asyncio.sleep(0.01)


def child(tmp_path: Path, *command: str) -> Child:
    """A child that logs into the test's directory."""
    return Child(Component("sleeper", list(command), "http://127.0.0.1:1/healthz"), tmp_path)


def gone(pid: int) -> bool:
    """Whether no such process exists any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_killed_process_is_started_again(tmp_path: Path) -> None:
    """As a kubelet would."""
    sleeper = child(tmp_path, *SLEEP)
    await sleeper.start()
    keeper = asyncio.create_task(sleeper.keep_alive())
    first = sleeper.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: sleeper.pid != first and sleeper.alive)
    assert sleeper.restarts == 1
    assert "SIGKILL" in sleeper.message
    keeper.cancel()
    await asyncio.wait({keeper})
    await sleeper.stop()
    assert gone(sleeper.pid)


async def test_a_process_finds_its_configuration(tmp_path: Path) -> None:
    """Written before it starts, also into a directory that isn't there yet; what is changed there, at its restart."""
    config = tmp_path / "config" / "file.yaml"
    reader = Child(Component("reader", ["cat", str(config)], "", {config: "key: value\n"}), tmp_path)
    await reader.start()
    await until(lambda: not reader.alive)
    config.write_text("key: another\n")
    await reader.start()
    await until(lambda: not reader.alive)
    assert (tmp_path / "reader.log").read_text() == "key: value\nkey: another\n"


async def test_a_process_that_ends_before_it_is_ready_is_quoted(tmp_path: Path) -> None:
    """The reason stands in its log, which nobody should have to look for."""
    broken = child(tmp_path, "sh", "-c", "echo no such flag >&2; exit 3")
    await broken.start()
    with pytest.raises(SandboxError, match=r"(?s)exited with status 3 before it was ready.*no such flag"):
        await broken.wait_healthy(Always(healthy=False), 120)


async def test_a_process_that_never_becomes_ready_is_given_up(tmp_path: Path) -> None:
    """Every wait has an end."""
    sleeper = child(tmp_path, *SLEEP)
    await sleeper.start()
    with pytest.raises(SandboxError, match="wasn't ready"):
        await sleeper.wait_healthy(Always(healthy=False), 0.1)
    await sleeper.stop()


async def test_a_missing_executable_is_an_error(tmp_path: Path) -> None:
    """It may have been removed from the cache meanwhile."""
    with pytest.raises(SandboxError, match="can't be started"):
        await child(tmp_path, "/nonexistent/etcd").start()


async def test_stopping_ends_what_the_process_started_itself(tmp_path: Path) -> None:
    """It may have helpers of its own."""
    pids = tmp_path / "pids"
    parent = child(tmp_path, "sh", "-c", f"sleep 600 & echo $! > {pids}; wait")
    await parent.start()
    await until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    await parent.stop()
    assert not parent.alive
    await until(lambda: gone(int(pids.read_text())) or zombie(int(pids.read_text())))


def zombie(pid: int) -> bool:
    """Whether it has ended, and only waits for its parent to ask: in a container nobody may ever do so."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_child_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A kill -9 of the supervisor leaves nothing behind."""
    pids = tmp_path / "pids"
    script = f"""
import asyncio, pathlib
from deviceshare_sandbox.processes import Child
from deviceshare_sandbox.components import Component
async def main():
    sleeper = Child(Component("sleeper", {SLEEP!r}, ""), pathlib.Path({str(tmp_path)!r}))
    await sleeper.start()
    pathlib.Path({str(pids)!r}).write_text(f"{{sleeper.pid}}\\n")
    await asyncio.sleep(600)
asyncio.run(main())
"""
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    await until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    sleeper = int(pids.read_text())
    assert not gone(sleeper)
    supervisor.kill()
    await supervisor.wait()
    await until(lambda: gone(sleeper) or zombie(sleeper))
