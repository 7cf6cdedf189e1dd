"""Programs that take turns on this machine: by the script, as a container may have it, and by `deviceshare turn`.

The witness is independent: each program writes a line with the kernel's clock ten times a second while it runs.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from deviceshare.cli.turn import START
from deviceshare_sandbox import debian
from deviceshare_sandbox.debian import fetch_busybox
from deviceshare_sandbox.network import free_ports
from deviceshare_sandbox.reports import Progress

T = TypeVar("T")

EVERY_KIND: Final = ("dash-curl", "dash-wget", "busybox", "deviceshare")
KINDS: Final = EVERY_KIND if os.environ.get("TURNS") == "all" else ("dash-curl", "deviceshare")
"""With TURNS=all, which takes fifteen minutes, every kind of client in every case; the real node's are of busybox."""
BUDGET: Final = float(os.environ.get("TURN_BUDGET", "20"))
"""Seconds within which the queue goes on; a program's own start is part of them. The goal is 2 (TURN_BUDGET=2), on a
machine that does nothing else: a busy one is no reason for a failure. A queue that waits for a lease takes 30."""
PATIENCE: Final = 120.0
"""Seconds within which what is to happen happens on any machine."""
_NEEDED: Final = ("sleep", "mkfifo", "rm", "setsid", "env", "cat")
LINE: Final = 'read -r up rest </proc/uptime; echo "$0 $up" >>"$WITNESS"; sleep 0.1;'
"""In a shell program: writes a line under its name."""
WORK: Final = (
    f'while [ -e "$HELD/$0" ]; do {LINE} done; i=0; while [ $i -lt "$1" ]; do {LINE} i=$((i + 1)); done;'
    ' echo >"$HELD/$0.ended"'
)
"""A shell program that writes lines while it is held, then as many as its argument says, and that it has ended."""


class SeenRun(NamedTuple):
    """What the witness saw of one program; times by the kernel's clock."""

    name: str
    first: float
    last: float
    lines: int


class Rig:
    """An agent, and clients of one kind."""

    def __init__(self, kind: str, directory: Path, *, blind: bool = False) -> None:
        self.kind = kind
        self._directory = directory
        self._blind = ["blind"] if blind else []
        [self._port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}"
        self._records = directory / "records"
        self._records.mkdir()
        self._witness = directory / "witness"
        self._witness.touch()
        self._held = directory / "held"
        self._held.mkdir()
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.script = directory / "turn.sh"
        self._agent: subprocess.Popen[bytes] | None = None
        self._programs: list[subprocess.Popen[bytes]] = []
        self.environment = {
            "PATH": str(self._tools()),
            "DEVICESHARE_AGENT": self.url,
            "WITNESS": str(self._witness),
            "HELD": str(self._held),
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), *sys.path))),
        }

    def start_agent(self) -> None:
        """It answers when this returns."""
        command = [sys.executable, "-m", "tests.turns.restartable_agent", str(self._port), str(self._records)]
        with (self._directory / "agent.log").open("ab") as log:
            self._agent = subprocess.Popen([*command, *self._blind], env=self.environment, stdout=log, stderr=log)
        self.script.write_bytes(eventually(self._fetch))

    def kill_agent(self) -> None:
        """kill -9"""
        assert self._agent is not None
        self._agent.kill()
        self._agent.wait(PATIENCE)

    def end(self) -> None:
        """Kills all that is left."""
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) != os.getpid() and self.url.encode() in read_process(process, "environ"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)
        for program in [*self._programs, *([self._agent] if self._agent else [])]:
            program.wait(PATIENCE)
            if program.stdout:
                program.stdout.close()

    def take_turn(self, *command: str, flags: str = "") -> "subprocess.Popen[bytes]":
        """Starts a client for the command."""
        wish = [*flags.split(), "--", *command]
        errors = self.errors.open("ab")
        with errors, self.script.open("rb") as script:
            if self.kind == "deviceshare":
                start, given = [sys.executable, "-m", "deviceshare", "turn", *wish], subprocess.DEVNULL
            else:
                start, given = ["sh", "-s", "--", *wish], script.fileno()
            started = subprocess.Popen(
                start,
                executable=shutil.which(start[0], path=self.environment["PATH"]),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self.environment,
            )
        self._programs.append(started)
        return started

    def work(self, name: str, lines: int, flags: str = "", *, held: bool = False) -> "subprocess.Popen[bytes]":
        """Starts a program that writes so many lines while it has the turn; where it is held, from `let_go` on."""
        if held:
            (self._held / name).touch()
        return self.take_turn("sh", "-c", WORK, name, str(lines), flags=flags)

    def let_go(self, name: str) -> None:
        """The program that is held goes on to its end."""
        (self._held / name).unlink()

    def ended(self, name: str) -> bool:
        """Whether the program came to its end by itself."""
        return (self._held / f"{name}.ended").exists()

    @property
    def errors(self) -> Path:
        """What all clients said on standard error."""
        return self._directory / "errors"

    def parts(self, client: "subprocess.Popen[bytes]") -> dict[str, list[int]]:
        """The processes of a client: `cmd`, `client` (curl, wget) and `shells`, the watchers."""
        found: dict[str, list[int]] = {"cmd": [], "client": [], "shells": []}
        for process in Path("/proc").glob("[0-9]*"):
            line = read_process(process, "cmdline")
            pid = int(process.name)
            if f"pid={client.pid}&".encode() in line:
                found["client"].append(pid)
            elif pid == client.pid:
                found["cmd"].append(pid)
            elif line == self._line(client):
                found["shells"].append(pid)
        return found

    def runs(self) -> dict[str, SeenRun]:
        """What the witness saw so far. Never were two at once: no program's line stands between two of another's."""
        seen: dict[str, list[float]] = {}
        order: list[str] = []
        for line in self._witness.read_text().splitlines():
            name, _, up = line.partition(" ")
            seen.setdefault(name, []).append(float(up))
            if not order or order[-1] != name:
                order.append(name)
        assert len(order) == len(set(order)), f"two had the turn at once: {order}"
        return {name: SeenRun(name, min(times), max(times), len(times)) for name, times in seen.items()}

    def _line(self, client: "subprocess.Popen[bytes]") -> bytes:
        """The command line of its shells."""
        assert isinstance(client.args, list)
        words = client.args
        if self.kind == "deviceshare":
            words = ["sh", "-c", START, "turn", *words[words.index("turn") + 1 :]]
        return b"".join(str(each).encode() + b"\0" for each in words)

    def _fetch(self) -> bytes | None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/turn.sh", timeout=5) as answer:
            text: bytes = answer.read()
            return text
        return None

    def _tools(self) -> Path:
        """A directory with nothing but what such a container has."""
        tools = self._directory / "bin"
        tools.mkdir()
        shell, _, client = self.kind.replace("deviceshare", "dash-curl").partition("-")
        busybox = fetch_busybox(Progress()) if shell == "busybox" else None
        for name in _NEEDED:
            (tools / name).symlink_to(busybox or _found(name))
        (tools / "sh").symlink_to(busybox or _found("dash"))
        for name in ("wget",) if busybox else (client,) if client else ():
            (tools / name).symlink_to(busybox or _found(name))
        return tools


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        debian.install([name], Progress())
        path = shutil.which(name)
    assert path, f"{name} is not on PATH"
    return path


def read_process(process: Path, name: str) -> bytes:
    """What /proc says of it; nothing where it has ended."""
    with contextlib.suppress(OSError):
        return (process / name).read_bytes()
    return b""


def eventually(look: Callable[[], T | None]) -> T:
    """Looks until there is something."""
    deadline = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < deadline, f"after {PATIENCE:.0f} s still {seen!r}"
        time.sleep(0.05)
    return seen


@contextlib.contextmanager
def rig(kind: str, directory: Path, *, blind: bool = False) -> Iterator[Rig]:
    """Its agent answers; nothing is left of it afterwards."""
    made = Rig(kind, directory, blind=blind)
    try:
        made.start_agent()
        yield made
    finally:
        made.end()
