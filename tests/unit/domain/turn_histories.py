"""Histories of a queue: honest clients that lose their connections and are killed, and an agent that restarts.

A program *works* while its CMD runs; that is the truth, which neither side knows. Clients are as late as they may be: a
heartbeat counts from when it was sent, and CMD ends at the last moment that `lease.py` allows. Those whose watchers
were killed or stopped end CMD never.
"""

from dataclasses import dataclass, field

from deviceshare.domain.turns.program_queue import (
    KILL,
    LEASE_SEEN,
    LEASE_UNSEEN,
    MARGIN,
    HeldTurn,
    Program,
    ProgramQueue,
    QueueName,
    TurnProcess,
    TurnRecord,
    grace,
)

TEAM = QueueName("group/1", "team")
LATEST = KILL + MARGIN
"""Seconds after the end of its lease by when a client has ended CMD, at the latest."""


@dataclass
class SimulatedProgram:
    """One client and its CMD."""

    number: int
    alive: bool = True
    """Whether its processes are there, waiting or working."""
    works: bool = False
    held: bool = False
    """Whether its client was told that it has the turn."""
    watched: bool = True
    """Whether its client obeys its lease."""
    deadline: float = 0.0
    link: int | None = None
    """Its connection as the client sees it."""
    ends_at: float | None = None
    """When CMD has to have ended, since the client was told that it has no turn."""


@dataclass
class History:
    """A queue, its agent and some programs: `sight`, the agent sees processes; `records`, it keeps a record."""

    sight: bool
    records: bool
    now: float = 1000.0
    queue: ProgramQueue = field(default_factory=lambda: ProgramQueue(TEAM))
    programs: list[SimulatedProgram] = field(default_factory=list)
    recorded: HeldTurn | None = None
    connections: int = 0
    given: int = 0

    @property
    def lease(self) -> float:
        return LEASE_SEEN if self.sight and self.records else LEASE_UNSEEN

    def known(self, program: SimulatedProgram) -> Program:
        """The program as its queue knows it."""
        process = TurnProcess(program.number, 1, "pod") if self.sight else None
        return Program("pod", str(program.number), priority=program.number % 2, process=process)

    def check(self) -> None:
        """Never two at once."""
        working = [each.number for each in self.programs if each.works]
        assert len(working) <= 1, f"{working} work at once"

    def arrive(self, _: SimulatedProgram) -> None:
        """A new program wants the turn."""
        if len(self.programs) < 6:
            self.programs.append(SimulatedProgram(len(self.programs)))
            self.connect(self.programs[-1])

    def connect(self, program: SimulatedProgram) -> None:
        """Its client connects, also while the agent believes in its last connection."""
        if not program.alive or not program.watched or program.ends_at is not None:
            return
        if program.held and self.now >= program.deadline:
            return  # it never says so late that it has the turn
        self.connections += 1
        program.link = self.connections
        joined = self.known(program)
        stays = self.queue.join(joined, self.connections, self.now, waited=0, held=program.held, lease=self.lease)
        if not stays:
            program.ends_at = self.now + LATEST
        elif self.queue.turn and self.queue.turn.program.key == joined.key:
            self.record()
            self.hear(program)
        self.settle(program)

    def hear(self, program: SimulatedProgram) -> None:
        """The client hears that it has the turn, from a heartbeat that was sent just now."""
        turn = self.queue.beat(self.now)
        assert turn is not None
        program.held = program.works = True
        program.deadline = max(program.deadline, self.now + turn.lease)

    def unplug(self, program: SimulatedProgram) -> None:
        """No packet reaches the client any more; the agent doesn't know it yet."""
        program.link = None

    def notice(self, program: SimulatedProgram) -> None:
        """The agent notices which of its connections have no client any more."""
        for each in self.programs:
            for connection in range(self.connections + 1):
                if connection != each.link:
                    self.queue.leave(self.known(each).key, connection)
        self.look(program)

    def beat(self, program: SimulatedProgram) -> None:
        """The agent sends heartbeats."""
        turn = self.queue.beat(self.now)
        if turn:
            for each in self.programs:
                if each.link == turn.connection and each.alive and each.watched and each.ends_at is None:
                    self.hear(each)
        self.settle(program)

    def finish(self, program: SimulatedProgram) -> None:
        """CMD ends by itself; its client says so, if it can."""
        if not program.works:
            return
        program.works = program.alive = False
        if program.watched and program.link is not None:
            self.queue.release(self.known(program).key)
        program.link = None
        self.settle(program)

    def kill(self, program: SimulatedProgram) -> None:
        """Everything of it is killed."""
        program.works = program.alive = False
        program.link = None

    def kill_watchers(self, program: SimulatedProgram) -> None:
        """Only what watches CMD. Without sight nobody could know: docs/turns.md says so."""
        if self.sight and self.records:
            program.watched = False
            program.link = None
            program.alive = program.works

    def look(self, program: SimulatedProgram) -> None:
        """The agent looks at the processes of the holder."""
        turn = self.queue.turn
        if self.sight and turn:
            owner = self.programs[int(turn.program.token)]
            if not owner.alive:
                self.queue.ended(turn.program.key)
        self.settle(program)

    def settle(self, _: SimulatedProgram) -> None:
        """Gives the turn if it can be given; the client hears of it if it is connected."""
        waiting = self.queue.next(self.now)
        self.record()
        if waiting is None:
            return
        self.given += 1
        turn = self.queue.give(waiting, self.now, self.lease)
        self.record()
        owner = self.programs[int(turn.program.token)]
        if owner.link == turn.connection and owner.alive and owner.watched:
            self.hear(owner)

    def record(self) -> None:
        """What is on record is what is so: it is written first."""
        self.recorded = self.queue.turn

    def restart(self, program: SimulatedProgram) -> None:
        """The agent is killed, and another takes over."""
        for each in self.programs:
            each.link = None
        turn = self.recorded
        if self.records:
            self.queue = ProgramQueue(TEAM)
            if turn:
                self.queue.resume(TurnRecord(TEAM, turn.program, turn.since, turn.lease), self.now)
        else:
            self.queue = ProgramQueue(TEAM, self.now + grace(LEASE_UNSEEN))
        self.settle(program)

    def wait(self, seconds: float) -> None:
        """Time passes; clients whose lease is over end CMD, at the last moment."""
        self.now += seconds
        for each in self.programs:
            ends = each.ends_at if each.ends_at is not None else each.deadline + LATEST
            if each.works and each.watched and self.now >= ends:
                each.works = each.alive = False
                each.link = None
