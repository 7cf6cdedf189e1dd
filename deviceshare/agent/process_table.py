"""The node's processes, as its /proc shows them: their names and pods, and whether any is left of a pod or a turn.

/proc/PID/stat, /proc/PID/status and /proc/PID/cgroup can be read without privileges (proc_pid_stat(5),
proc_pid_status(5)); with hostPID they show the processes of all pods. A pod in a sandbox with a kernel of its own shows
none.
"""

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from deviceshare.domain.device_health.containers import ProcessUse, control_group_of
from deviceshare.domain.turns.program_queue import TurnProcess
from deviceshare.loops.shared_read import SharedRead

log = structlog.get_logger(__name__)

FRESH_SECONDS: Final = 1.0
"""Between two walks for the processes of pods: one takes some 10 µs for each process of the node."""
_WALKS: Final = 3
"""Through /proc, at most, to find out whether turns are over whose first process has ended."""
_REST: Final = 3
"""A search for clients' processes is followed by a pause of this many times its own length."""

_Sought = tuple[str, int, int]
"""A process as a client of turns names it: its pod's UID, its PID in the container's PID namespace, and its start."""
_Found = dict[_Sought, TurnProcess]
"""What a walk found of what was sought."""


class _Stat(NamedTuple):
    """A process by its /proc/PID/stat, as far as it matters here."""

    pid: int
    group: int
    session: int
    started: int
    """In clock ticks since the node booted."""
    runs: bool
    """Whether a thread of it is left."""


class ProcessTable:
    """Reads files, in threads where it reads many. Never raises for a process that has ended meanwhile.

    Its tasks are its own, since callers share what they read: `close` ends them.
    """

    def __init__(self, proc: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._pids: dict[str, int] = {}
        """Pod UID → one of its processes."""
        self._pods_seen = float("-inf")
        """When the last walk for the processes of pods ended."""
        self._look_for_pods = SharedRead(self._see_pods)
        self._sought: set[_Sought] = set()
        """For the next search, which has not begun."""
        self._next_search: asyncio.Task[_Found] | None = None
        self._last_search: asyncio.Task[_Found] | None = None
        """The search that began last; it may have ended."""
        self._pause_ends = float("-inf")

    async def close(self) -> None:
        """Cancels what is still being read. Nobody asks afterwards."""
        await self._look_for_pods.close()
        searches = [each for each in (self._next_search, self._last_search) if each]
        for search in searches:
            search.cancel()
        await asyncio.gather(*searches, return_exceptions=True)

    @cached_property
    def boot_id(self) -> str:
        """The kernel's ID of the current boot, the same in every container (random(4)); "" where it can't be read."""
        try:
            return (self._proc / "sys/kernel/random/boot_id").read_text().strip()
        except OSError as error:
            log.warning("Failed to read the boot ID: unhealthy devices stay marked after reboots", error=str(error))
            return ""

    @cached_property
    def namespace(self) -> str:
        """What names the PID namespace that is seen: when its first process started; "" where it can't be read.

        A record of processes is of use only to an agent that sees the same namespace.
        """
        first = _parsed(1, self._read(1, "stat"))
        if first is None:
            log.warning("Failed to read the node's first process: turns are held by leases alone")
        return str(first.started) if first else ""

    def described(self, process: ProcessUse) -> ProcessUse | None:
        """With its name, its start and its control group; None where it has ended."""
        directory = self._proc / str(process.pid)
        try:
            name = (directory / "comm").read_text(errors="replace").strip()
            group = control_group_of(_decoded(directory / "cgroup"))
            stat = _parsed(process.pid, _decoded(directory / "stat"))
        except OSError:
            return None
        return replace(process, name=name, started=stat.started, group=group) if stat else None

    async def may_run(self, pod_uid: str) -> bool:
        """Whether a process of the pod runs on the node, or it can't be seen here which pods' processes do.

        The kernel knows where the API server's word may be late: a pod's address may be the next pod's as soon as its
        last process has ended. Who asks from it is a process of its pod, so a pod without any is not the one that asks.
        """
        if self._pod_of(self._pids.get(pod_uid, 0)) == pod_uid:
            return True
        await self._look_for_pods("pods' processes")
        return pod_uid in self._pids or not self._pids

    async def _see_pods(self, _: str) -> None:
        """Walks, unless the last walk ended just now."""
        if self._clock() - self._pods_seen >= FRESH_SECONDS:
            try:
                self._pids = await asyncio.to_thread(self._find_pods)
            finally:
                self._pods_seen = self._clock()

    def _find_pods(self) -> dict[str, int]:
        """Without the agent's own pod, which it sees in any case."""
        found = {uid: pid for pid in self._listed() if (uid := self._pod_of(pid))}
        found.pop(self._pod_of("self"), None)
        return found

    async def find(self, pod_uid: str, pid: int, started: int) -> TurnProcess | None:
        """The process that a container of the pod numbers like this; None where it isn't seen.

        Clients decide how often they connect, and all do at once after an agent's restart: so a walk through /proc
        serves all who ask before it begins, also in the pause before it, and walks have a part of a processor only.
        """
        sought = pod_uid, pid, started
        self._sought.add(sought)
        if self._next_search is None:
            search = self._search(after=self._last_search)
            self._next_search = asyncio.create_task(search, name="find processes of turns")
        # Shielded: others wait for the same walk when one is cancelled.
        return (await asyncio.shield(self._next_search)).get(sought)

    async def _search(self, after: asyncio.Task[_Found] | None) -> _Found:
        """One walk, when the search before it has ended and the pause is over: until then it may be joined."""
        if after:
            await asyncio.wait({after})
        await asyncio.sleep(self._pause_ends - self._clock())
        sought, self._sought = self._sought, set()
        self._last_search, self._next_search = self._next_search, None
        began = self._clock()
        try:
            return await asyncio.to_thread(self._find, sought)
        finally:
            ended = self._clock()
            self._pause_ends = ended + _REST * (ended - began)

    def _find(self, sought: set[_Sought]) -> _Found:
        if not self._read(1, "stat"):
            # Processes are hidden here (hidepid, SELinux), and one that is seen may be hidden when it changes its user:
            # that would look like its end.
            return {}
        starts = {started for _, _, started in sought}
        found = defaultdict[_Sought, list[int]](list)
        for each in self._walk():
            if each.started in starts and each.runs:
                found[self._pod_of(each.pid), self._number_inside(each.pid), each.started].append(each.pid)
        # Of two that can't be told apart neither is known.
        return {key: TurnProcess(pids[0], key[2], key[0]) for key, pids in found.items() if len(pids) == 1}

    async def ended(self, processes: Collection[TurnProcess]) -> set[TurnProcess]:
        """The processes that run no more."""
        return await asyncio.to_thread(self._ended, processes)

    def _ended(self, processes: Collection[TurnProcess]) -> set[TurnProcess]:
        suspects = {process for process in processes if not self._runs(process)}
        over: set[TurnProcess] = set()
        dead: dict[TurnProcess, set[int]] = {}
        for _ in range(_WALKS):
            seen = {each.pid: each for each in self._walk()} if suspects else {}
            if not seen:
                break
            before, dead = dead, {}
            for each in suspects:
                first = seen.get(each.pid)
                if first and first.started != each.started:
                    over.add(each)  # A PID is given to another only when no group or session has that number any more.
                elif not self._is_left(each, seen):
                    dead[each] = {other.pid for other in seen.values() if other.group == each.pid}
                    # A walk misses a process that was started meanwhile by one that ended before it was looked at. The
                    # kernel doesn't: it knows whether the group has anybody. It may be the dead alone, where nobody
                    # reaps them; then they stay the same.
                    if not _has_members(each.pid) or (dead[each] and dead[each] == before.get(each)):
                        over.add(each)
            suspects = dead.keys() - over
        return over

    def _runs(self, process: TurnProcess) -> bool:
        """Whether the first process of the turn itself runs, which is all that has to be known of most."""
        stat = _parsed(process.pid, self._read(process.pid, "stat"))
        return stat is not None and stat.runs and stat.started == process.started

    def _is_left(self, process: TurnProcess, seen: Mapping[int, _Stat]) -> bool:
        """Whether a process of the turn runs: its first one, or one of its group or session."""
        grouped = (each for each in seen.values() if each.runs and process.pid in (each.pid, each.group, each.session))
        return any(each.pid == process.pid or self._pod_of(each.pid) == process.pod_uid for each in grouped)

    def _listed(self) -> list[int]:
        try:
            return [int(entry.name) for entry in self._proc.iterdir() if entry.name.isdecimal()]
        except OSError:
            return []  # nothing is seen: no process is found, and none that is known is taken for ended (`_ended`)

    def _walk(self) -> Iterator[_Stat]:
        for pid in self._listed():
            if stat := _parsed(pid, self._read(pid, "stat")):
                yield stat

    def _number_inside(self, pid: int) -> int:
        """Its PID in the innermost namespace: the last number of NSpid (proc_pid_status(5)); 0 where it ended."""
        for line in self._read(pid, "status").split("\n"):
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
        return 0

    def _pod_of(self, pid: int | str) -> str:
        """The UID of its pod, "" where it has none or has ended."""
        group = control_group_of(self._read(pid, "cgroup"))
        return group.pod_uid if group else ""

    def _read(self, pid: int | str, name: str) -> str:
        try:
            return _decoded(self._proc / str(pid) / name)
        except OSError:
            return ""


def _decoded(file: Path) -> str:
    # Not as text: the name of a process may have a carriage return, which isn't the end of a line here.
    return file.read_bytes().decode(errors="replace")


def _parsed(pid: int, stat: str) -> _Stat | None:
    # The second field is the process's name in parentheses, which may contain blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    # A process whose first thread has ended is a zombie while other threads run.
    runs = fields[0] not in ("Z", "X") or int(fields[17]) > 1
    return _Stat(pid, group=int(fields[2]), session=int(fields[3]), started=int(fields[19]), runs=runs)


def _has_members(group: int) -> bool:
    """Whether there is any process in the group, be it dead, as seen from this one's PID namespace."""
    try:
        os.killpg(group, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
