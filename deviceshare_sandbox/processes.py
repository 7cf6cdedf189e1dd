"""Child processes, restarted when they die.

Each is the leader of its own process group, so a terminal's Ctrl-C reaches none of them, and the supervisor ends them
in order. Should the supervisor itself be killed, the kernel kills them.
"""

import asyncio
import contextlib
import os
import signal
import ssl
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from deviceshare_sandbox.components import Component
from deviceshare_sandbox.reports import SandboxError, tail
from deviceshare_sandbox.syscalls import die_with_parent

log = structlog.get_logger(__name__)


_PROBE_SECONDS = 3.0


class Prober:
    """Probes plain HTTP, and HTTPS with a certificate that the sandbox's own authority signed."""

    def __init__(self, authority: Path) -> None:
        self._tls = ssl.create_default_context(cafile=str(authority))

    async def healthy(self, url: str) -> bool:
        """Whether `url` answers 200 within three seconds."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return await self._status(url) == b"200"
        except (OSError, ValueError):  # TimeoutError and ssl.SSLError are OSErrors; ValueError: it speaks no HTTP
            return False

    async def _status(self, url: str) -> bytes:
        parts = urlsplit(url)
        tls = self._tls if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=tls)
        try:
            writer.write(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
            _, status, _ = (await reader.readline()).split(b" ", 2)
            return status
        finally:
            # Not close(), which for TLS waits for the other side's close_notify: it may be dead.
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


_FIRST_DELAY = 0.5
_LONGEST_DELAY = 10.0
_STEADY_SECONDS = 10.0
"""A process that ran this long didn't fail at its start; the delay of its restart begins at the shortest again."""
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.1


class Child:
    """One component's process, over all restarts."""

    def __init__(self, component: Component, logs: Path) -> None:
        self.component = component
        self.restarts = 0
        self.message = ""
        """Why it isn't running, or what was wrong lately."""
        self._log = logs / f"{component.name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._born = 0.0

    @property
    def pid(self) -> int:
        """0 before the first start."""
        return self._process.pid if self._process else 0

    @property
    def alive(self) -> bool:
        """Whether it runs now; nothing is said about its health."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts it once; raises SandboxError when the executable can't be run.

        Its configuration is written before its first life only: what somebody changes there is read in the next.
        """
        if self._process is None:
            for path, text in self.component.files.items():
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
        with self._log.open("ab") as log_file:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.component.command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    start_new_session=True,
                    preexec_fn=partial(die_with_parent, signal.SIGKILL),
                )
            except OSError as error:
                raise SandboxError(f"{self.component.name} can't be started: {error}") from error
        self._born = time.monotonic()

    async def wait_healthy(self, prober: Prober, timeout: float) -> None:
        """Returns once its probe answers; raises SandboxError when it ends before, or after `timeout` seconds."""
        name = self.component.name
        try:
            async with asyncio.timeout(timeout):
                while not await prober.healthy(self.component.probe):
                    if not self.alive:
                        raise SandboxError(f"{name} {self._exit_reason()} before it was ready; {self._log_end()}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            problem = f"{name} wasn't ready after {timeout:.0f} s ({self.component.probe}); {self._log_end()}"
            raise SandboxError(problem) from None

    async def keep_alive(self) -> None:
        """Restarts it whenever it dies, as a kubelet would, with a delay that grows while it dies at its start."""
        delay = _FIRST_DELAY
        while True:
            assert self._process is not None
            await self._process.wait()
            lived = time.monotonic() - self._born
            delay = _FIRST_DELAY if lived > _STEADY_SECONDS else delay
            self.message = f"{self._exit_reason()} after {lived:.0f} s"
            log.warning("Process died", name=self.component.name, why=self.message, restartIn=delay, log=str(self._log))
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST_DELAY)
            self.restarts += 1
            await self.start()

    async def stop(self) -> None:
        """Ends it and whatever it started: by SIGTERM, and after ten seconds by SIGKILL."""
        if self._process is None or not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            log.warning("Killed a process that didn't stop", name=self.component.name, pid=self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()

    def _exit_reason(self) -> str:
        code = self._process.returncode if self._process else None
        if code is None:
            return "is running"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    def _log_end(self) -> str:
        return f"the end of {self._log}:\n{tail(self._log)}"
