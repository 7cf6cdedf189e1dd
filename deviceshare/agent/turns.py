"""The turns of a node's programs: given to one connected program of each queue at a time, recorded, and reported.

The rules are `domain/turns/`; here are the clock, the connections, the node's processes and the record. The record is
written before a turn is told, so that an agent that restarts knows who may have one.
"""

import asyncio
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.own_node import OwnNode
from deviceshare.agent.process_table import ProcessTable
from deviceshare.domain.objects.usage import TurnQueue
from deviceshare.domain.turns.program_queue import (
    HEARTBEAT,
    LEASE_SEEN,
    LEASE_UNSEEN,
    Program,
    ProgramKey,
    ProgramQueue,
    QueueName,
    TurnRecord,
    WaitingProgram,
    grace,
    renewed,
    reported_turns,
    usage_of,
    what_they_wait_for,
)
from deviceshare.domain.turns.turn_client import TurnRequest
from deviceshare.timestamps import seconds_since, timestamp

log = structlog.get_logger(__name__)

MAX_QUEUES_OF_NODE: Final = 256
"""A node has fewer groups and devices; one without programs takes nothing."""
MAX_LINES: Final = 32
"""Heartbeats that a client didn't take: after 16 s of them its connection is as good as lost."""
REPORT_SECONDS: Final = 5.0
"""Between two looks for the report, and so between two writes at least."""
CLOCK_STEP: Final = 5.0
"""Seconds by which the node's time has to be set for the times of turns to follow. Else they stay as they were reported
first, however the two clocks drift."""
_LEAST: Final = 0.1
"""Seconds between two rounds, at least."""
_NAME: Final = "turns.json"


def boottime() -> float:
    """Seconds since the node booted, those in suspend among them: the clock of all turns of a node."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class TurnConnection:
    """A connection of a program, and the lines that are still to be sent on it."""

    def __init__(self, number: int, queue: str, program: ProgramKey, since: float) -> None:
        """`since` is when it was accepted, by the clock of turns."""
        self.number, self.queue, self.program, self.since = number, queue, program, since
        self._lines = asyncio.Queue[str | None]()
        self._closed = False

    def say(self, line: str) -> None:
        """Queues a line; one that nobody takes closes the connection."""
        if self._lines.qsize() >= MAX_LINES:
            self.close()
        if not self._closed:
            self._lines.put_nowait(line)

    def close(self) -> None:
        """Ends the connection, once what was said is sent."""
        if not self._closed:
            self._closed = True
            self._lines.put_nowait(None)

    async def line(self) -> str | None:
        """The next line; None at last, when the connection is closed. Heartbeats bound the wait."""
        return await self._lines.get()


class TurnsFile(Struct, frozen=True):
    """The content of the record."""

    boot: str
    """ "" where the agent couldn't read it, as the namespace."""
    namespace: str
    """Which PID namespace the processes in it are numbered in."""
    turns: list[TurnRecord] = field(default_factory=list)


class TurnRecords:
    """A small file in a directory of the node's that is emptied at a reboot (/run), as turns are.

    Whoever has locked the directory gives the node's turns: two agents at once, as where one was deleted by force,
    never do. The kernel unlocks it when the process ends.
    """

    def __init__(self, directory: Path, processes: ProcessTable) -> None:
        self._directory = directory
        self._boot = processes.boot_id
        self._namespace = processes.namespace
        self._locked: int | None = None

    def lock(self) -> bool:
        """Whether no other process has it; raises OSError where the directory isn't there."""
        if self._locked is None:
            opened = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):
                os.fchmod(opened, 0o700)  # Who can open the directory can lock it, and read the names of pods.
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(opened)
                if isinstance(error, BlockingIOError):
                    return False
                raise
            self._locked = opened
        return True

    def load(self) -> list[TurnRecord] | None:
        """What the last agent recorded; None where that can't be read. Without a file of this boot there was none."""
        try:
            found = msgspec.json.decode((self._directory / _NAME).read_bytes(), type=TurnsFile)
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            log.error("Failed to read the record of turns", error=str(error))
            return None
        known = found.boot and self._boot
        if known and found.boot != self._boot:
            return []
        if known and found.namespace and found.namespace == self._namespace:
            return found.turns
        # Processes that can't be found here prove nothing: their grace has to pass.
        return [replace(each, program=replace(each.program, process=None)) for each in found.turns]

    def save(self, records: Iterable[TurnRecord]) -> None:
        """Replaces the file in one step: a crash leaves the old or the new one. Not synced, as it ends with the boot.

        Raises OSError.
        """
        path = self._directory / f"{_NAME}.new"
        path.write_bytes(msgspec.json.encode(TurnsFile(self._boot, self._namespace, list(records))))
        path.replace(self._directory / _NAME)


@dataclass(eq=False)
class Turns:
    """Gives the turns of one node while `run` runs."""

    processes: ProcessTable
    records: TurnRecords | None
    """None where nothing outlives the agent: each start then waits for the longest grace there is."""
    metrics: AgentMetrics
    clock: Callable[[], float] = boottime

    def __post_init__(self) -> None:
        self._queues: dict[str, ProgramQueue] = {}
        self._connections: dict[ProgramKey, TurnConnection] = {}
        """Of each program the one that counts."""
        self._numbers = itertools.count(1)
        self._recorded: list[TurnRecord] = []
        self._unrecorded = ""
        """Why the record wasn't written last."""
        self._closed_until = 0.0
        self._hurry = asyncio.Event()
        self._open = asyncio.Event()

    async def run(self) -> None:
        """Gives turns and sends heartbeats; never ends."""
        await self._take_over()
        while True:
            self._hurry.clear()
            await self._look_at_processes()
            self._settle()
            self._beat()
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._hurry.wait()
                    await asyncio.sleep(_LEAST)  # in which what was killed ends; and clients can't hurry it at will
            except TimeoutError:
                continue

    async def _take_over(self) -> None:
        """Takes over from the agent before this one, once that has ended. Nobody joins before."""
        warned = False
        while self.records and not self.records.lock():
            if not warned:
                log.warning("Waiting for another agent on this node, which gives its turns")
            warned = True
            await asyncio.sleep(HEARTBEAT)
        now = self.clock()
        known = self.records.load() if self.records else None
        if known is None:
            longest = grace(LEASE_SEEN if self.records else LEASE_UNSEEN)
            self._closed_until = now + longest
            log.warning("Started without a record of turns: gives none for some time", seconds=longest)
        self._recorded = known or []
        for record in self._recorded:
            self._queue(record.queue).resume(record, now)
        self._open.set()

    async def join(self, name: QueueName, request: TurnRequest, pod_uid: str, pod: str) -> TurnConnection:
        """Adds a connection of a program of this pod (`namespace/name`). The caller leaves it in any case."""
        accepted = self.clock()
        await self._open.wait()
        process = await self.processes.find(pod_uid, request.pid, request.started) if request.pid else None
        if name.key not in self._queues:
            name = next((each.name for each in self._queues.values() if each.name.may_be(name)), name)
        program = Program(pod_uid, request.token, pod, request.priority, request.slice, process)
        connection = TurnConnection(next(self._numbers), name.key, program.key, accepted)
        if name.key not in self._queues and len(self._queues) >= MAX_QUEUES_OF_NODE:
            connection.say("refused this node has too many queues for turns: ask again later")
            connection.close()
            return connection
        queue = self._queue(name)
        if former := self._connections.get(program.key):
            former.close()
            if former.queue != name.key:  # as after a rebind of its pod's share: no turn there is for it any more
                self.leave(former)
        self._connections[program.key] = connection
        now, lease = self.clock(), self._lease(program)
        joined = queue.join(program, connection.number, now, waited=request.waited, held=request.held, lease=lease)
        self._settle()
        if joined:
            self._tell(queue)
        else:
            connection.say("gone the turn was lost: another program may have it by now")
            connection.close()
        return connection

    def leave(self, connection: TurnConnection) -> None:
        """The connection has ended."""
        connection.close()
        if self._connections.get(connection.program) is not connection:
            return
        del self._connections[connection.program]
        if queue := self._queues.get(connection.queue):
            queue.leave(connection.program, connection.number)
        if queue and queue.turn and queue.turn.program.key == connection.program:
            self.metrics.turns_lost.inc()
            log.info("Lost the holder of a turn", queue=connection.queue, pod=queue.turn.program.pod)
            self._hurry.set()

    def release(self, key: ProgramKey) -> None:
        """The program says that it has ended."""
        for queue in self._queues.values():
            queue.release(key)
        if connection := self._connections.get(key):
            connection.close()
        self._settle()

    def has_turn(self, key: ProgramKey) -> bool:
        """Whether the program has the turn of a queue, be it connected or not."""
        return any(queue.turn and queue.turn.program.key == key for queue in self._queues.values())

    async def stop(self) -> None:
        """Ends all connections, so that their clients look for the next agent. Nobody joins afterwards."""
        self._open.clear()
        for connection in self._connections.values():
            connection.close()

    def view(self) -> list[TurnQueue]:
        """The holder and the waiting programs of each queue that isn't empty."""
        now = self.clock()
        return [usage_of(queue, now) for queue in self.queues() or ()]

    def queues(self) -> list[ProgramQueue] | None:
        """The queues in use, to be read at once; None while it isn't known who has a turn, and after `stop`."""
        if not self._open.is_set():
            return None
        return [queue for _, queue in sorted(self._queues.items()) if not queue.empty]

    def _queue(self, name: QueueName) -> ProgramQueue:
        queue = self._queues.setdefault(name.key, ProgramQueue(name, self._closed_until))
        queue.name = name  # The number of its device may be another by now.
        return queue

    def _lease(self, program: Program) -> float:
        return LEASE_SEEN if program.process and self.records else LEASE_UNSEEN

    async def _look_at_processes(self) -> None:
        """Frees turns whose processes have ended, be they lost or connected: a client may be stopped."""
        seen = {
            turn.program.process: (queue, turn.program.key)
            for queue in self._queues.values()
            if (turn := queue.turn) and turn.program.process
        }
        for process in await self.processes.ended(seen.keys()) if seen else ():
            queue, key = seen[process]
            queue.ended(key)
            if connection := self._connections.get(key):
                connection.close()

    def _settle(self) -> None:
        """Gives every turn that can be given, once it is recorded."""
        now = self.clock()
        for key, queue in list(self._queues.items()):
            if waiting := queue.next(now):
                self._give(queue, waiting, now)
            if queue.empty and now >= self._closed_until:
                del self._queues[key]
        self._record()

    def _give(self, queue: ProgramQueue, waiting: WaitingProgram, now: float) -> None:
        program, lease, waited = waiting.program, self._lease(waiting.program), now - waiting.since
        if not self._record(TurnRecord(queue.name, program, now, lease)):
            return
        queue.give(waiting, now, lease)
        self.metrics.turn_waits.observe(waited)
        log.info("Gave a turn", queue=queue.name.key, pod=program.pod, waited=round(waited, 1))
        self._tell(queue)

    def _record(self, *more: TurnRecord) -> bool:
        """Writes the record if it has changed; whether it is written."""
        held = ((queue.name, queue.turn) for queue in self._queues.values() if queue.turn)
        records = [*(TurnRecord(name, turn.program, turn.since, turn.lease) for name, turn in held), *more]
        if self.records is None or records == self._recorded:
            return True
        try:
            self.records.save(records)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._unrecorded:  # it is retried twice a second
                log.error("Failed to record a turn, so none is given", error=str(error))
            self._unrecorded = reason
            return False
        self._recorded, self._unrecorded = records, ""
        return True

    def _beat(self) -> None:
        now = self.clock()
        for queue in self._queues.values():
            if (turn := queue.ask(now)) and (connection := self._connections.get(turn.program.key)):
                log.info("Asked the holder of a turn to end", queue=queue.name.key, pod=turn.program.pod)
                connection.say("yield")
            self._tell(queue)

    def _tell(self, queue: ProgramQueue) -> None:
        """Says to all programs of the queue where they are in it; to the holder that is its heartbeat."""
        now = self.clock()
        if turn := queue.beat(now):
            self._say(turn.program, now, "turn", str(int(turn.lease * 1000)))
        for program, text in what_they_wait_for(queue, self._unrecorded):
            self._say(program, now, "wait", text)

    def _say(self, program: Program, now: float, word: str, rest: str) -> None:
        if connection := self._connections.get(program.key):
            connection.say(f"{word} {int((now - connection.since) * 1000)} {rest}")


@dataclass(eq=False)
class TurnReports:
    """Keeps the turns of a node in its agent's report: looks every few seconds, and reports what has changed.

    A turn may change many times a second, and every write is watched by all replicas. So what lies between two looks
    isn't reported, and the last state always is.
    """

    node: OwnNode
    queues: Callable[[], list[ProgramQueue] | None]
    """Returns those that aren't empty; None while that isn't known."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = boottime
    """That of the queues."""

    def __post_init__(self) -> None:
        self._booted = float("-inf")
        """When `clock` was 0, by `now`, in seconds since 1970."""

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            self.look()

    def look(self) -> None:
        """Reports what has changed since the last look."""
        queues = self.queues()
        if queues is None or not self.node.report.resumed:
            return
        now = self.now()
        booted = now.timestamp() - self.clock()
        if abs(booted - self._booted) > CLOCK_STEP:
            self._booted = booted
        found, before = reported_turns(queues, self._stamp, timestamp(now)), self.node.report.known.turns
        self.node.report.tell(turns=renewed(before, found, seconds_since(before.time, now) if before else None))

    def _stamp(self, moment: float) -> str:
        return timestamp(datetime.fromtimestamp(self._booted + moment, UTC))
