"""The referee of a node: gives each arena's turn to one connected player at a time, and sends heartbeats.

The rules are `domain/turns/`; here are the clock, the connections, the node's processes and the record of holders. The
record is written before a turn is told, so that an agent that restarts knows who may have one.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

import structlog

from deviceshare.domain.objects.usage import TurnQueue
from deviceshare.domain.turns.arena import Arena, Seating
from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.domain.turns.bid import Bid
from deviceshare.domain.turns.lease import HEARTBEAT, LEASE_SEEN, LEASE_UNSEEN, grace
from deviceshare.domain.turns.standing import Player, TurnHeld, Waiting, Witness
from deviceshare.domain.turns.turn_record import TurnRecord
from deviceshare.domain.turns.turn_words import queue_of, what_they_wait_for
from deviceshare.loops.agent.seat import Seat

log = structlog.get_logger(__name__)

_LEAST: Final = 0.1
"""Seconds between two rounds, at least."""
MAX_ARENAS: Final = 256
"""A node has fewer groups and devices; one without players takes nothing."""


def boottime() -> float:
    """Seconds since the node booted, those in suspend among them: the clock of all turns of a node."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Processes(Protocol):
    """The node's processes, as its kernel shows them. Bounded in time; never raises."""

    async def witness(self, pod_uid: str, pid: int, started: int) -> Witness | None:
        """The process that a container of the pod numbers like this; None where it isn't seen."""
        ...

    async def ended(self, witnesses: Collection[Witness]) -> set[Witness]:
        """Those of whose turns no process runs any more."""
        ...


class Records(Protocol):
    """What outlives an agent that crashes: who has the turn of which arena."""

    def lock(self) -> bool:
        """Whether this is the node's one referee from now on; raises OSError."""
        ...

    def load(self) -> list[TurnRecord] | None:
        """What the last agent recorded; None where that is unknown."""
        ...

    def save(self, records: Iterable[TurnRecord]) -> None:
        """Replaces the record in one step; raises OSError."""
        ...


class TurnCounts(Protocol):
    """What is counted."""

    def given(self, waited: float) -> None: ...

    def lost(self) -> None: ...


class Referee:
    """The arenas of one node."""

    def __init__(
        self,
        processes: Processes,
        records: Records | None,
        counts: TurnCounts,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`records` is None where nothing outlives the agent: each start then waits for the longest grace there is."""
        self._processes = processes
        self._records = records
        self._counts = counts
        self._clock = clock
        self._arenas: dict[str, Arena] = {}
        self._names: dict[str, ArenaName] = {}
        self._seats: dict[tuple[str, str], Seat] = {}
        """By player: the connection that counts."""
        self._numbers = itertools.count(1)
        self._recorded: list[TurnRecord] = []
        self._unrecorded = ""
        """Why the record wasn't written last."""
        self._closed_until = 0.0
        self._hurry = asyncio.Event()
        self._open = asyncio.Event()

    async def _take_over(self) -> None:
        """Takes over from the agent before this one, once that has ended. Nobody is seated before."""
        warned = False
        while self._records and not self._records.lock():
            if not warned:
                log.warning("Waiting for another agent on this node, which gives its turns")
            warned = True
            await asyncio.sleep(HEARTBEAT)
        now = self._clock()
        known = self._records.load() if self._records else None
        if known is None:
            longest = grace(LEASE_SEEN if self._records else LEASE_UNSEEN)
            self._closed_until = now + longest
            log.warning("Started without a record of turns: gives none for some time", seconds=longest)
        for record in known or ():
            arena = self._arena(record.arena)
            arena.resume(record.player, record.since, now, record.lease)
        self._recorded = list(known or ())
        self._open.set()

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

    async def sit(self, name: ArenaName, bid: Bid, pod: tuple[str, str]) -> Seat:
        """Adds a connection of the pod (UID and `namespace/name`) to the arena. The caller leaves it in any case."""
        accepted = self._clock()
        await self._open.wait()
        witness = await self._processes.witness(pod[0], bid.pid, bid.started) if bid.pid else None
        if name.key not in self._arenas:
            name = next((each for each in self._names.values() if each.may_be(name)), name)
        seat = Seat(next(self._numbers), name.key, (pod[0], bid.token), accepted)
        if name.key not in self._arenas and len(self._arenas) >= MAX_ARENAS:
            seat.say("refused this node has too many queues for turns: ask again later")
            seat.close()
            return seat
        arena = self._arena(name)
        if (former := self._seats.get(seat.player)) is not None:
            former.close()
        self._seats[seat.player] = seat
        player = Player(pod[0], bid.token, pod[1], bid.priority, bid.slice, witness)
        now, lease = self._clock(), self._lease(player)
        answer = arena.join(player, seat.number, now, waited=bid.waited, held=bid.held, lease=lease)
        self._settle()
        if answer is Seating.GONE:
            seat.say("gone the turn was lost: another program may have it by now")
            seat.close()
        else:
            self._tell(name.key)
        return seat

    def leave(self, seat: Seat) -> None:
        """The connection has ended."""
        seat.close()
        if self._seats.get(seat.player) is not seat:
            return
        del self._seats[seat.player]
        arena = self._arenas.get(seat.arena)
        if arena is None:
            return
        arena.leave(seat.player, seat.number)
        if arena.holding and arena.holding.player.key == seat.player:
            self._counts.lost()
            log.info("Lost the holder of a turn", arena=seat.arena, pod=arena.holding.player.pod)
            self._hurry.set()

    def release(self, pod_uid: str, token: str) -> None:
        """The player says that it has ended."""
        for arena in self._arenas.values():
            arena.release((pod_uid, token))
        if seat := self._seats.get((pod_uid, token)):
            seat.close()
        self._settle()

    def has_turn(self, pod_uid: str, token: str) -> bool:
        """Whether the player has the turn of an arena, be it connected or not."""
        arenas = self._arenas.values()
        return any(arena.holding and arena.holding.player.key == (pod_uid, token) for arena in arenas)

    async def stop(self) -> None:
        """Ends all connections, so that their clients look for the next agent. Nobody is seated afterwards."""
        self._open.clear()
        for seat in self._seats.values():
            seat.close()

    def view(self) -> list[TurnQueue]:
        """The holder and the queue of each arena with players."""
        now = self._clock()
        return [queue_of(name, arena, now) for name, arena in self.arenas() or ()]

    def arenas(self) -> list[tuple[ArenaName, Arena]] | None:
        """Those with players, to be read at once; None while it isn't known who has a turn, and after `stop`."""
        if not self._open.is_set():
            return None
        return [(self._names[key], arena) for key, arena in sorted(self._arenas.items()) if not arena.empty]

    def _arena(self, name: ArenaName) -> Arena:
        self._names[name.key] = name
        return self._arenas.setdefault(name.key, Arena(self._closed_until))

    def _lease(self, player: Player) -> float:
        return LEASE_SEEN if player.witness and self._records else LEASE_UNSEEN

    async def _look_at_processes(self) -> None:
        """Frees turns whose processes have ended, be they lost or connected: a client may be stopped."""
        seen = {
            holding.player.witness: (arena, holding.player.key)
            for arena in self._arenas.values()
            if (holding := arena.holding) and holding.player.witness
        }
        if not seen:
            return
        for witness in await self._processes.ended(seen.keys()):
            arena, key = seen[witness]
            arena.ended(key)
            if seat := self._seats.get(key):
                seat.close()

    def _settle(self) -> None:
        """Gives every turn that can be given, once it is recorded."""
        now = self._clock()
        for key, arena in list(self._arenas.items()):
            if waiting := arena.next(now):
                self._give(key, arena, waiting, now)
            if arena.empty and now >= self._closed_until:
                del self._arenas[key], self._names[key]
        self._record()

    def _give(self, key: str, arena: Arena, waiting: Waiting, now: float) -> None:
        player = waiting.player
        planned = TurnHeld(player, now, now, waiting.connection, self._lease(player))
        if not self._record(self._record_of(key, planned)):
            return
        arena.give(waiting, now, planned.lease)
        self._counts.given(now - waiting.since)
        log.info("Gave a turn", arena=key, pod=player.pod, waited=round(now - waiting.since, 1))
        self._tell(key)

    def _record_of(self, key: str, holding: TurnHeld) -> TurnRecord:
        return TurnRecord(self._names[key], holding.player, holding.since, holding.lease)

    def _record(self, *more: TurnRecord) -> bool:
        """Writes the record if it has changed; whether it is written."""
        held = [self._record_of(key, arena.holding) for key, arena in self._arenas.items() if arena.holding]
        records = [*held, *more]
        if self._records is None or records == self._recorded:
            return True
        try:
            self._records.save(records)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._unrecorded:  # it is retried twice a second
                log.error("Failed to record a turn, so none is given", error=str(error))
            self._unrecorded = reason
            return False
        self._recorded, self._unrecorded = records, ""
        return True

    def _beat(self) -> None:
        now = self._clock()
        for arena in self._arenas.values():
            if (holding := arena.ask(now)) and (seat := self._seats.get(holding.player.key)):
                log.info("Asked the holder of a turn to end", arena=seat.arena, pod=holding.player.pod)
                seat.say("yield")
        for key in self._arenas:
            self._tell(key)

    def _tell(self, key: str) -> None:
        """Says to all players of the arena where they stand; to the holder that is its heartbeat."""
        arena, now = self._arenas[key], self._clock()
        if holding := arena.beat(now):
            self._say(holding.player, now, "turn", str(int(holding.lease * 1000)))
        for waiting, text in what_they_wait_for(self._names[key], arena, self._unrecorded):
            self._say(waiting.player, now, "wait", text)

    def _say(self, player: Player, now: float, word: str, rest: str) -> None:
        if seat := self._seats.get(player.key):
            seat.say(f"{word} {int((now - seat.since) * 1000)} {rest}")
