"""The queue of programs that take turns with each other, of whom one at most has the turn.

A turn is held by an open connection. Where the connection breaks, neither side knows what became of the other, so both
count, each by its own clock, of which only the rate is relied on:

- Each heartbeat says how long ago, by the agent's clock, the connection was accepted. The client asked before that, by
  its own clock; so what it adds up is never later than the moment at which the agent sent the heartbeat, however long
  that was under way or lay in a buffer. From there it has a lease. Without another heartbeat it ends CMD when the lease
  is over: SIGTERM, and SIGKILL `KILL` later.
- The agent gives a lost turn to nobody until `grace` has passed since its last heartbeat, by when CMD has ended.

That is all there is where an agent doesn't see the processes of the pod: in a sandbox with a kernel of its own (Kata,
gVisor), or without hostPID. Where it sees them, its node's kernel decides: a lost turn ends when the last process of it
has ended, neither earlier nor later. Clients that were stopped (SIGSTOP) or whose shells were all killed are covered by
that alone. The lease is long there, so that a program survives that its agent is upgraded.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.objects import hardware
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import ReportedTurns
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.usage import TurnProgram, TurnQueue

HEARTBEAT: Final = 0.5
"""Seconds between two heartbeats of an agent."""
UNACKNOWLEDGED: Final = 1.0
"""Seconds after which a connection is lost whose peer acknowledges nothing (TCP_USER_TIMEOUT, RFC 5482). With the
heartbeats, an agent notices within 1.5 s that the network to a client is cut."""
SILENCE: Final = 3
"""Seconds without a heartbeat after which a client connects again: six heartbeats."""
RETRY: Final = 1
"""Seconds between two attempts of a client to connect; also how often it looks at its clock."""
LEASE_UNSEEN: Final = 30.0
"""Seconds without a heartbeat for which a holder goes on whose processes its agent can't see: an agent that crashed is
back in a few, unless it crashes again and again."""
LEASE_SEEN: Final = 3600.0
"""Seconds without a heartbeat for which a holder goes on whose processes its agent sees and has on record. It counts
only if the agent that comes back can't read the record or doesn't see the processes."""
KILL: Final = 3
"""Seconds between SIGTERM and SIGKILL."""
MARGIN: Final = 10.0
"""Seconds for what a client may be late: a clock looked at once a second, a loaded node, a watcher that was killed and
replaced (it gives itself 3 s)."""

_GROUP: Final = "group/"
_DEVICE: Final = "device/"

ProgramKey = tuple[str, str]
"""The UID of a program's pod, and its token: no pod can act for another."""


def grace(lease: float) -> float:
    """Seconds after an agent's last heartbeat by when a client with this lease has ended CMD."""
    return lease + KILL + MARGIN


class QueueName(Struct, frozen=True):
    """`key` is unique on the node, also among recreated groups; `name` is for people."""

    key: str
    name: str
    device: Device | None = None
    """Of pods with shares of it."""

    @property
    def of_strangers(self) -> bool:
        """Whether its pods have nothing in common but a device."""
        return self.key.startswith(_DEVICE)

    @property
    def group_uid(self) -> str:
        """The group's UID; "" where the pods have shares of a device."""
        return self.key.removeprefix(_GROUP) if self.key.startswith(_GROUP) else ""

    def may_be(self, other: "QueueName") -> bool:
        """Whether both are one queue, or of one device whose UUID isn't known to one of them.

        A device is known by its number alone until its node's agent has reported it, and turns outlast that.
        """
        if self.device is None or other.device is None or (self.device.uuid and other.device.uuid):
            return self.key == other.key
        (one, _), (another, _) = self.device.identity, other.device.identity
        return one == another and self.device.index == other.device.index


def queue_of(ledger: NodeDevices, holder_uid: str) -> QueueName | None:
    """The queue of the pods of this holder, by the node's claims; None without a claim, or where there is no one queue.

    The pods of a group take turns with each other: they have the same devices, which nobody else has. Pods with shares
    take turns with the others on their device. One with parts of several devices would have to wait for several turns
    at once, and two such pods could wait for each other. After a rebind its programs may be on either device.
    """
    claim = ledger.claims.get(holder_uid)
    if claim is None:
        return None
    if not claim.shares:
        return QueueName(f"{_GROUP}{holder_uid}", claim.holder_name)
    # In the present numbering, and with the UUID also where the ledger was just recreated.
    present = ((ledger.present(device), device) for device in (*claim.devices, *claim.replaced))
    devices = {replace(now, uuid=now.uuid or device.uuid) for now, device in present}
    if len(devices) > 1:
        return None
    [device] = devices
    variable, number = device.identity
    return QueueName(f"{_DEVICE}{variable}/{number}", str(device), device)


class TurnProcess(Struct, frozen=True):
    """The process that becomes CMD, in the agent's PID namespace: by it the node's kernel shows whether a turn is over.

    The turn lasts until it and all processes of its process group and session have ended.
    """

    pid: int
    started: int
    """In clock ticks since the node booted: PIDs are reused."""
    pod_uid: str


class Program(Struct, frozen=True):
    pod_uid: str
    token: str
    """Its client's own."""
    pod: str = ""
    """`namespace/name`"""
    priority: int = 0
    slice: float = 0.0
    process: TurnProcess | None = field(default=None, name="witness")
    """None where the agent doesn't see it. Records on nodes have it under the name of earlier versions."""

    @property
    def key(self) -> ProgramKey:
        return self.pod_uid, self.token


class WaitingProgram(Struct, frozen=True):
    """Connected, without the turn. Times are seconds of one monotonic clock."""

    program: Program
    since: float
    connection: int


class HeldTurn(Struct, frozen=True):
    """The turn of the program that has it, or may still have it."""

    program: Program
    since: float
    heartbeat: float
    """When the last heartbeat was sent."""
    connection: int | None
    """None while it is lost."""
    lease: float = LEASE_UNSEEN
    asked: bool = False
    """Whether the program was asked to yield."""

    def over(self, now: float) -> bool:
        """Whether its client must have ended CMD by now. What the kernel shows of its process is better knowledge."""
        lost = self.connection is None and self.program.process is None
        return lost and now > self.heartbeat + grace(self.lease)


class TurnRecord(Struct, frozen=True):
    """What the next agent has to know of a turn that was given. Records on nodes have earlier versions' names."""

    queue: QueueName = field(name="arena")
    program: Program = field(name="player")
    since: float
    """By CLOCK_BOOTTIME of the node."""
    lease: float


class ProgramQueue:
    """A state machine on plain values: time and what the node's kernel shows are passed in.

    Never two programs have the turn: it is free again only when its holder released it, when its processes are seen to
    have ended, or, where they can't be seen, when the grace of a lost holder has passed.
    """

    def __init__(self, name: QueueName, closed_until: float = 0.0) -> None:
        """`closed_until` is when all holders that an earlier agent may have left have ended or come back."""
        self.name = name
        self.turn: HeldTurn | None = None
        self._closed_until = closed_until
        self._waiting: dict[ProgramKey, WaitingProgram] = {}

    @property
    def empty(self) -> bool:
        return self.turn is None and not self._waiting

    @property
    def waiting(self) -> list[WaitingProgram]:
        """By priority, then by age; the first is next."""
        return sorted(self._waiting.values(), key=lambda each: (-each.program.priority, each.since, each.connection))

    def join(self, program: Program, connection: int, now: float, *, waited: float, held: bool, lease: float) -> bool:
        """A program connects, or connects again; of two connections of a program the later one counts.

        False where it says that it has the turn (`held`), but has not: CMD has to end.
        """
        if self.turn and self.turn.program.key == program.key:
            # Also one that says that it waits: it was given the turn, and hasn't heard of it.
            self.turn = replace(self.turn, connection=connection)
        elif held and (self.turn or now >= self._closed_until):
            return False
        elif held:
            # The queue stays closed until this one has ended: that agent may have told it a longer lease.
            self.turn = HeldTurn(program, now, now, connection, lease)
        else:
            self._waiting[program.key] = WaitingProgram(program, now - waited, connection)
        return True

    def leave(self, key: ProgramKey, connection: int) -> None:
        """A connection has ended, who knows why: a waiting program is gone, a holder is lost."""
        waiting = self._waiting.get(key)
        if waiting and waiting.connection == connection:
            del self._waiting[key]
        if self.turn and self.turn.program.key == key and self.turn.connection == connection:
            self.turn = replace(self.turn, connection=None)

    def release(self, key: ProgramKey) -> None:
        """The program says that CMD has ended."""
        self._waiting.pop(key, None)
        self.ended(key)

    def ended(self, key: ProgramKey) -> None:
        """The node's kernel shows no process of this turn any more, whatever is connected."""
        if self.turn and self.turn.program.key == key:
            self.turn = None
            self._closed_until = 0.0  # There was one holder at most, and this was it.

    def next(self, now: float) -> WaitingProgram | None:
        """To whom the turn can be given now."""
        if self.turn and self.turn.over(now):
            self.turn = None
        if self.turn or now < self._closed_until or not self._waiting:
            return None
        return self.waiting[0]

    def give(self, waiting: WaitingProgram, now: float, lease: float) -> HeldTurn:
        """Gives the turn to who is `next`. To be recorded before it is told."""
        del self._waiting[waiting.program.key]
        self.turn = HeldTurn(waiting.program, now, now, waiting.connection, lease)
        return self.turn

    def resume(self, record: TurnRecord, now: float) -> None:
        """An earlier agent gave this turn, which may be held still; its last heartbeat was before now."""
        self.turn = HeldTurn(record.program, record.since, now, None, record.lease)

    def beat(self, now: float) -> HeldTurn | None:
        """The turn whose connected holder is to be sent a heartbeat now."""
        if self.turn is None or self.turn.connection is None:
            return None
        self.turn = replace(self.turn, heartbeat=now)
        return self.turn

    def ask(self, now: float) -> HeldTurn | None:
        """The turn whose connected holder is to be asked to yield, once: its slice is over while others wait."""
        turn = self.turn
        if turn is None or turn.connection is None or turn.asked or not self._waiting:
            return None
        if not turn.program.slice or now < turn.since + turn.program.slice:
            return None
        self.turn = replace(turn, asked=True)
        return self.turn


# Queues as others see them: `/usage`, the agent's report in NodeDevices, and a waiting program itself.

Stamp = Callable[[float], str]
"""The RFC 3339 time of a moment of the queues' clock. Always the same for one moment."""


def usage_of(queue: ProgramQueue, now: float) -> TurnQueue:
    """The holder and the waiting programs, the next one first."""

    def seen(each: HeldTurn | WaitingProgram) -> TurnProgram:
        return TurnProgram(each.program.pod, round(now - each.since, 1), each.program.priority)

    holder = None
    if turn := queue.turn:
        silence = round(now - turn.heartbeat, 1) if turn.connection is None else 0.0
        holder = replace(seen(turn), asked=turn.asked, lost=silence)
    return TurnQueue(queue.name.name, holder, [seen(each) for each in queue.waiting])


def reported_turns(queues: Iterable[ProgramQueue], stamp: Stamp, time: str) -> ReportedTurns | None:
    """The queues with the most waiting programs, as many as a report may have; None where there is no queue.

    Each write of the report makes a bind that is claiming on the node at the moment retry, so what changes all the
    time, such as for how long somebody waits, isn't in it.
    """
    ordered = sorted(queues, key=lambda each: each.name.key)
    reported = [_reported(each, stamp) for each in ordered if not each.empty]
    if not reported:
        return None
    longest = sorted(reported, key=lambda each: -each.waiting_count)[: hardware.MAX_QUEUES]
    return ReportedTurns(time, [each for each in reported if each in longest], len(reported))


def renewed(before: ReportedTurns | None, now: ReportedTurns | None, age: float | None) -> ReportedTurns | None:
    """What is to be reported next: `before`, while it says the same and is not old.

    `age` is how many seconds ago `before` was reported; None where that can't be told.
    """
    if before is None or now is None or replace(before, time=now.time) != now:
        return now
    return before if age is not None and 0 <= age < hardware.RENEWED_SECONDS else now


def _reported(queue: ProgramQueue, stamp: Stamp) -> hardware.ReportedQueue:
    def seen(each: HeldTurn | WaitingProgram) -> hardware.ReportedProgram:
        return hardware.ReportedProgram(each.program.pod, stamp(each.since), each.program.priority)

    holder, name, waiting = None, queue.name, queue.waiting
    if turn := queue.turn:
        lost = "" if turn.connection is not None else stamp(turn.heartbeat)
        holder = replace(seen(turn), asked=turn.asked, lost_since=lost)
    return hardware.ReportedQueue(
        group="" if name.of_strangers else name.name,
        uid=name.group_uid,
        resource=name.device.resource if name.device else "",
        index=name.device.index if name.device else None,
        holder=holder,
        waiting=[seen(each) for each in waiting[: hardware.MAX_WAITING]],
        waiting_count=len(waiting),
    )


def what_they_wait_for(queue: ProgramQueue, unrecorded: str = "") -> Iterator[tuple[Program, str]]:
    """What each waiting program waits for, in a line that changes only when the queue does.

    `unrecorded` says why no turn can be recorded, and so none be given.
    """
    turn = queue.turn
    for ahead, waiting in enumerate(queue.waiting):
        if turn:
            lost = " and has lost contact" if turn.connection is None else ""
            what = f"waiting for the turn; {_told(queue.name, turn.program, waiting.program)} has it{lost}"
        elif unrecorded:
            what = f"waiting until the node's agent can write its record of turns: {unrecorded}"
        else:
            what = "waiting until programs that an earlier agent gave the turn must have ended"
        yield waiting.program, f"{what}, and {ahead} wait in front" if ahead else what


def _told(name: QueueName, program: Program, other: Program) -> str:
    """Who it is, as the other may know: pods on one device may be strangers, whose names are nobody else's business."""
    namespace, theirs = (each.pod.partition("/")[0] for each in (program, other))
    return program.pod if namespace == theirs or not name.of_strangers else "a pod of another namespace"
