"""The processes of turns, read from /proc in a thread: whether any is left of a turn.

/proc/PID/stat, /proc/PID/status and /proc/PID/cgroup can be read without privileges (proc_pid_stat(5),
proc_pid_status(5)); with hostPID they show the processes of all pods. A pod in a sandbox with a kernel of its own shows
none, so that its turns have no witness.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from deviceshare.domain.device_health.process_owners import owner_of
from deviceshare.domain.turns.standing import Witness

log = structlog.get_logger(__name__)

_DEAD: Final = ("Z", "X")
_STAT_FIELDS: Final = 20
_WALKS: Final = 3
"""Through /proc, at most, to find out whether turns are over whose first process has ended."""
_REST: Final = 3
"""How much longer the search for a client's process pauses than it took."""


class SeenProcess(NamedTuple):
    """One line of /proc/PID/stat, as far as it matters here."""

    pid: int
    group: int
    session: int
    started: int
    runs: bool
    """Whether a thread of it is left."""


class SoughtProcess(NamedTuple):
    """A process as a client names it."""

    pod_uid: str
    pid: int
    """In the container's PID namespace."""
    started: int


class TurnProcesses:
    """Implements the port of `loops/agent/referee.py`."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._sought: list[tuple[SoughtProcess, asyncio.Future[Witness | None]]] = []
        self._searching: asyncio.Task[None] | None = None

    async def witness(self, pod_uid: str, pid: int, started: int) -> Witness | None:
        """Clients decide how often they connect, and all do at once after an agent's restart: so one walk through /proc
        serves all that wait for one, and walks have a part of a processor only.
        """
        found: asyncio.Future[Witness | None] = asyncio.get_running_loop().create_future()
        self._sought.append((SoughtProcess(pod_uid, pid, started), found))
        if self._searching is None or self._searching.done():
            self._searching = asyncio.create_task(self._search(), name="find processes of turns")
        return await found

    async def _search(self) -> None:
        while self._sought:
            sought, self._sought = self._sought, []
            began = time.monotonic()
            results = await asyncio.to_thread(self._find, {each for each, _ in sought})
            for each, found in sought:
                if not found.done():  # its connection may have ended
                    found.set_result(results.get(each))
            await asyncio.sleep(_REST * (time.monotonic() - began))

    async def ended(self, witnesses: Collection[Witness]) -> set[Witness]:
        return await asyncio.to_thread(self._ended, witnesses)

    def _find(self, sought: set[SoughtProcess]) -> dict[SoughtProcess, Witness]:
        if not self._read(1, "stat"):
            # Processes are hidden here (hidepid, SELinux), and one that is seen may be hidden when it changes its user:
            # that would look like its end.
            return {}
        starts = {each.started for each in sought}
        found = defaultdict[SoughtProcess, list[int]](list)
        for each in self._walk():
            if each.started in starts and each.runs:
                key = SoughtProcess(self._pod_of(each.pid), self._number_inside(each.pid), each.started)
                found[key].append(each.pid)
        # Two that can't be told apart are no witness.
        return {key: Witness(pids[0], key.started, key.pod_uid) for key, pids in found.items() if len(pids) == 1}

    def _ended(self, witnesses: Collection[Witness]) -> set[Witness]:
        suspects = {witness for witness in witnesses if not self._runs(witness)}
        over: set[Witness] = set()
        dead: dict[Witness, set[int]] = {}
        for _ in range(_WALKS):
            seen = {each.pid: each for each in self._walk()} if suspects else {}
            if not seen:
                break
            before = dead
            dead = {each: _group(each, seen) for each in suspects if not self._is_left(each, seen)}
            over |= {each for each in dead if _is_over(each, seen, dead[each], before.get(each))}
            suspects = dead.keys() - over
        return over

    def _runs(self, witness: Witness) -> bool:
        """Whether the first process of the turn itself runs, which is all that has to be known of most."""
        process = _process(witness.pid, self._read(witness.pid, "stat"))
        return process is not None and process.runs and process.started == witness.started

    def _is_left(self, witness: Witness, seen: dict[int, SeenProcess]) -> bool:
        first = seen.get(witness.pid)
        if _is_reused(witness, first):
            return False
        if first and first.runs:
            return True
        grouped = (each for each in seen.values() if each.runs and witness.pid in (each.group, each.session))
        return any(self._pod_of(each.pid) == witness.pod_uid for each in grouped)

    def _walk(self) -> Iterator[SeenProcess]:
        try:
            entries = list(self._proc.iterdir())
        except OSError:
            return  # nothing is seen: no witness is found, and none that is known is taken for ended (`_ended`)
        for directory in entries:
            if directory.name.isdecimal():
                try:
                    stat = (directory / "stat").read_text(errors="replace")
                except OSError:
                    continue  # it has ended meanwhile
                if process := _process(int(directory.name), stat):
                    yield process

    def _number_inside(self, pid: int) -> int:
        """Its PID in the innermost namespace: the last number of NSpid (proc_pid_status(5)); 0 where it ended."""
        for line in self._read(pid, "status").split("\n"):
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return 0

    def _pod_of(self, pid: int) -> str:
        owner = owner_of(self._read(pid, "cgroup"))
        return owner.pod_uid if owner else ""

    def _read(self, pid: int, name: str) -> str:
        try:
            # Not as text: the name of a process may have a carriage return, which isn't the end of a line here.
            return (self._proc / str(pid) / name).read_bytes().decode(errors="replace")
        except OSError:
            return ""


def _is_over(witness: Witness, seen: dict[int, SeenProcess], dead: set[int], before: set[int] | None) -> bool:
    """Whether a turn of which a walk saw no process that runs is over.

    A walk misses a process that was started meanwhile by one that ended before it was looked at. The kernel doesn't: it
    knows whether the group has anybody. It may be the dead alone, where nobody reaps them; then they stay the same.
    """
    if _is_reused(witness, seen.get(witness.pid)) or not _has_members(witness.pid):
        return True
    return bool(dead) and dead == before


def _is_reused(witness: Witness, first: SeenProcess | None) -> bool:
    """A PID is given to another process only when no group or session has that number any more."""
    return first is not None and first.started != witness.started


def _group(witness: Witness, seen: dict[int, SeenProcess]) -> set[int]:
    return {each.pid for each in seen.values() if each.group == witness.pid}


def _has_members(group: int) -> bool:
    """Whether there is any process in the group, be it dead, as seen from this one's PID namespace."""
    try:
        os.killpg(group, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _process(pid: int, stat: str) -> SeenProcess | None:
    # The second field is the process's name in parentheses, which may contain blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    if len(fields) < _STAT_FIELDS:
        return None
    # A process whose first thread has ended is a zombie while other threads run.
    runs = fields[0] not in _DEAD or int(fields[17]) > 1
    return SeenProcess(pid, group=int(fields[2]), session=int(fields[3]), started=int(fields[19]), runs=runs)


def boot_and_namespace(proc: Path) -> tuple[str, str]:
    """The node's boot, and what names the PID namespace that `proc` shows: when its first process started; "" for what
    can't be read.

    A record of processes is of use only to an agent that sees the same namespace.
    """
    boot = namespace = ""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        first = _process(1, (proc / "1" / "stat").read_text(errors="replace"))
        namespace = str(first.started) if first else ""
    except OSError as error:
        log.warning("Failed to read the node's first process: turns are held by leases alone", error=str(error))
    return boot, namespace
