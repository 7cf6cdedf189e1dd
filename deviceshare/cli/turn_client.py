"""A client for turns (agent/pods_api/turns.py has the protocol): runs a program while it has the turn.

The process that becomes CMD exists before the turn is asked for, since the agent looks at it: it waits for a word on a
pipe. If this process is killed, the kernel kills CMD (PR_SET_PDEATHSIG, prctl(2)).
"""

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct

from deviceshare.cli.output import say
from deviceshare.domain.turns.lease import KILL, RETRY, SILENCE

TIMED_OUT: Final = 124
REFUSED: Final = 125
FORWARDED: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_SECONDS: Final = 0.2
_RELEASE_SECONDS: Final = 1.0
_RELEASE_ATTEMPTS: Final = 3
_DEATH_SIGNAL: Final = 1
_BECOME: Final = f"""
import ctypes, os, signal, sys
parent, fd = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl({_DEATH_SIGNAL}, int(signal.SIGKILL))
if os.getppid() != parent or os.read(fd, 2) != b"go":
    os._exit({REFUSED})
os.close(fd)
for number in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(number, signal.SIG_DFL)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.stderr.write(f"turn: {{sys.argv[3]}}: {{error.strerror}}\\n")
    os._exit(127 if isinstance(error, FileNotFoundError) else 126)
"""


class TurnWish(Struct, frozen=True):
    """What the user asks for; times in seconds."""

    priority: int
    timeout: int | None
    slice: int
    signal: signal.Signals


class TurnClient:
    """One turn of one program."""

    def __init__(self, agent: str, wish: TurnWish, command: Sequence[str]) -> None:
        self._url = (agent if "://" in agent else f"http://{agent}").rstrip("/") + "/turn"
        self._wish = wish
        self._command = command
        self._token = str(uuid.uuid4())
        self._arrival = _now()
        self._held = False
        self._deadline = 0.0
        """When CMD has to have ended, or its client to have heard again, while the turn is held."""
        self._yielded = False
        self._told = ""
        self._status: int | None = None
        """The exit status, where it isn't CMD's."""

    async def run(self) -> int:
        """The exit status."""
        reading, self._go = os.pipe()
        terminal = os.isatty(0)
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), str(reading), *self._command),
                pass_fds=[reading],
                start_new_session=not terminal,
            )
        finally:
            os.close(reading)
        self._own_group = not terminal
        self._forward_signals(terminal=terminal)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            tasks = [
                asyncio.create_task(self._keep(session), name="hold the turn"),
                asyncio.create_task(self._watch(), name="watch the lease"),
            ]
            try:
                code = await process.wait()
                await self._sweep()
                await self._release(session)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        os.close(self._go)
        return self._status if self._status is not None else code if code >= 0 else 128 - code

    def _forward_signals(self, *, terminal: bool) -> None:
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            # What a terminal sends, it sends to CMD as well.
            by_terminal = terminal and number in (signal.SIGINT, signal.SIGQUIT)
            loop.add_signal_handler(number, lambda: None) if by_terminal else loop.add_signal_handler(
                number, self._signal, number
            )

    def _signal(self, number: signal.Signals, *, group: bool = False) -> None:
        with suppress(ProcessLookupError):
            if group and self._own_group:
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)

    async def _keep(self, session: aiohttp.ClientSession) -> None:
        while True:
            # ValueError: what answers is no agent, as a proxy on the way.
            with suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
                await self._listen(session)
            await asyncio.sleep(RETRY)

    async def _listen(self, session: aiohttp.ClientSession) -> None:
        asked = _now()
        query = {
            "token": self._token,
            "pid": str(self._process.pid),
            "started": str(_started(self._process.pid)),
            "priority": str(self._wish.priority),
            "slice": str(self._wish.slice),
            "waited": str(int(asked - self._arrival)),
            "held": str(int(self._held)),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE, sock_read=SILENCE)
        async with session.get(self._url, params=query, timeout=timeout) as response:
            async for line in response.content:
                word, _, rest = line.decode(errors="replace").strip().partition(" ")
                self._hear(asked, word, rest)

    def _hear(self, asked: float, word: str, rest: str) -> None:
        match word:
            case "wait":
                self._tell(rest.partition(" ")[2])
            case "turn":
                age, lease = (int(number) / 1000 for number in rest.split()[:2])
                # Never later than the moment at which the agent sent this (domain/turns/lease.py).
                self._deadline = max(self._deadline, asked + age + lease)
                # A client that was stopped may hear so late that another has the turn.
                if not self._held and _now() < self._deadline:
                    self._held = True
                    os.write(self._go, b"go")
            case "yield" if self._held and not self._yielded:
                self._yielded = True
                self._tell(f"others wait, and the slice is over: sending {self._wish.signal.name} to CMD")
                self._signal(self._wish.signal)
            case "gone" | "refused" if not self._held:
                self._give_up(REFUSED, rest)
            case "gone":
                self._tell(f"{rest}; ending CMD")
                self._deadline = 0.0
            case "yield" | "refused":
                pass
            case _:
                self._tell(f"the agent answered: {word} {rest}")

    async def _watch(self) -> None:
        while not (self._held and _now() >= self._deadline):
            waited = _now() - self._arrival
            if not self._held and self._wish.timeout is not None and waited >= self._wish.timeout:
                self._give_up(TIMED_OUT, f"gave up after waiting {self._wish.timeout} s for the turn")
            await asyncio.sleep(_LOOK_SECONDS)
        self._tell("lost the turn: ending CMD")
        self._signal(signal.SIGTERM, group=True)
        self._signal(signal.SIGCONT, group=True)
        await asyncio.sleep(KILL)
        self._signal(signal.SIGKILL, group=True)

    def _give_up(self, status: int, text: str) -> None:
        """CMD hasn't been started, and won't be."""
        if self._status is None:
            self._status = status
            self._tell(text)
        self._signal(signal.SIGKILL)

    async def _sweep(self) -> None:
        """What CMD left running in its own process group ends with it."""
        if not self._own_group:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not _runs(self._process.pid):
                return
            self._signal(number, group=True)
            for _ in range(int(KILL / _LOOK_SECONDS)):
                if not _runs(self._process.pid):
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def _release(self, session: aiohttp.ClientSession) -> None:
        timeout = aiohttp.ClientTimeout(total=_RELEASE_SECONDS)
        for _ in range(_RELEASE_ATTEMPTS):
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.get(f"{self._url}/over", params={"token": self._token}, timeout=timeout) as answer:
                    if answer.ok:
                        return
            await asyncio.sleep(_LOOK_SECONDS)

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            say(f"turn: {text}", err=True)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _started(pid: int) -> int:
    """When the process started, in clock ticks since the node booted; 0 where it has ended."""
    fields = _stat(Path(f"/proc/{pid}"))
    return int(fields[19]) if fields else 0


def _runs(group: int) -> bool:
    """Whether anything in the process group still runs; the dead that nobody reaped don't."""
    stats = map(_stat, Path("/proc").glob("[0-9]*"))
    return any(fields[2] == str(group) and fields[0] not in ("Z", "X") for fields in stats if fields)


def _stat(process: Path) -> list[str]:
    """The fields of /proc/PID/stat from the third on (proc_pid_stat(5)); none where it has ended."""
    try:
        return (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
