"""The referee in virtual time: connections, the record of holders, and the node's processes."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from structlog.testing import capture_logs

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.turns.arena_name import ArenaName
from deviceshare.domain.turns.bid import Bid
from deviceshare.domain.turns.lease import HEARTBEAT, LEASE_SEEN, LEASE_UNSEEN, grace
from deviceshare.domain.turns.standing import Witness
from deviceshare.domain.turns.turn_record import TurnRecord
from deviceshare.loops.agent.referee import Referee
from deviceshare.loops.agent.seat import Seat
from tests.unit.loops.virtual_time import in_virtual_time, now

TEAM = ArenaName("group/1", "team")
OTHERS = ArenaName("group/2", "others")


class FewProcesses:
    """Sees those that it is told of."""

    def __init__(self) -> None:
        self.running: set[int] = set()

    async def witness(self, pod_uid: str, pid: int, started: int) -> Witness | None:
        await asyncio.sleep(0.01)
        return Witness(pid, started, pod_uid) if pid in self.running else None

    async def ended(self, witnesses: Collection[Witness]) -> set[Witness]:
        await asyncio.sleep(0.01)
        return {each for each in witnesses if each.pid not in self.running}


class MemoryRecords:
    """Outlives a referee."""

    def __init__(self) -> None:
        self.known: list[TurnRecord] | None = []
        self.full = False
        self.free = True

    def lock(self) -> bool:
        return self.free

    def load(self) -> list[TurnRecord] | None:
        return self.known

    def save(self, records: Iterable[TurnRecord]) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.known = list(records)


class NumbersOfTurns:
    def __init__(self) -> None:
        self.waits: list[float] = []
        self.losses = 0

    def given(self, waited: float) -> None:
        self.waits.append(waited)

    def lost(self) -> None:
        self.losses += 1


class Client:
    """Reads what it is told."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self._lines: list[str] = []
        self._task = asyncio.create_task(self._read())

    @property
    def closed(self) -> bool:
        """Whether it was disconnected."""
        return self._task.done()

    def stop(self) -> None:
        """Reads no more."""
        self._task.cancel()

    async def catch_up(self) -> None:
        """Reads what was said so far."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def taken(self) -> list[str]:
        """The lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

    async def _read(self) -> None:
        while (line := await self.seat.line()) is not None:
            self._lines.append(line)


class Table:
    """A node with one referee at a time."""

    def __init__(self) -> None:
        self.processes, self.records, self.counts = FewProcesses(), MemoryRecords(), NumbersOfTurns()
        self._clients: list[Client] = []
        self.begin()

    def begin(self, *, records: bool = True) -> None:
        """A new agent."""
        self.referee = Referee(self.processes, self.records if records else None, self.counts, now)
        self._task = asyncio.create_task(self.referee.run())

    async def end(self) -> None:
        """It is killed."""
        self._task.cancel()
        for client in self._clients:
            client.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    async def sit(self, name: str, *, arena: ArenaName = TEAM, pid: int = 0, **more: Any) -> "Client":
        """A program with this name connects."""
        if pid:
            self.processes.running.add(pid)
        seat = await self.referee.sit(arena, Bid(name, pid, 1, **more), (f"uid-{name}", f"ns/{name}"))
        client = Client(seat)
        self._clients.append(client)
        await client.catch_up()
        return client

    def view(self) -> tuple[str, list[str]]:
        """Which pod has the team's turn, and which wait."""
        for queue in self.referee.view():
            if queue.group == "team":
                return queue.holder.pod if queue.holder else "", [each.pod for each in queue.waiting]
        return "", []


def at_a_table(test: Callable[[Table], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Gives the test a table of its own."""

    @in_virtual_time
    async def started() -> None:
        table = Table()
        await test(table)
        await table.end()

    started.__doc__ = test.__doc__
    started.__name__ = test.__name__
    return started


async def said(client: Client) -> list[str]:
    """The words of the lines since the last call."""
    await client.catch_up()
    return [line.split()[0] for line in client.taken()]


@at_a_table
async def test_the_turn_is_given_to_one_after_the_other(table: Table) -> None:
    """The holder gets heartbeats with its lease; the next one has it as soon as it is released."""
    first, second = await table.sit("first", pid=7), await table.sit("second")
    await asyncio.sleep(5)

    lines = first.taken()
    assert len(lines) >= 5 / HEARTBEAT and {line.split()[0] for line in lines} == {"turn"}
    word, age, lease = lines[-1].split()
    assert (word, int(lease)) == ("turn", int(LEASE_SEEN * 1000)) and int(age) <= 5010
    assert set(await said(second)) == {"wait"}
    table.referee.release("uid-first", "first")
    assert await said(second) == ["turn"]
    assert len(table.counts.waits) == 2
    assert first.closed


@at_a_table
async def test_a_stranger_cannot_end_a_turn(table: Table) -> None:
    """With the token, but from another pod."""
    await table.sit("first")
    table.referee.release("uid-second", "first")
    assert table.view() == ("ns/first", [])


@at_a_table
async def test_groups_do_not_wait_for_each_other(table: Table) -> None:
    """Each has its own turn."""
    await table.sit("first")
    other = await table.sit("other", arena=OTHERS)
    assert (await said(other))[0] == "turn"
    assert [each.group for each in table.referee.view()] == ["team", "others"]


@at_a_table
async def test_a_device_has_one_turn_also_when_its_uuid_becomes_known(table: Table) -> None:
    """Or isn't known any more, as while its ledger is recreated; nor does an agent's restart change that."""
    gpu, variable = "nvidia.com/gpu", "device/NVIDIA_VISIBLE_DEVICES"
    numbered = ArenaName(f"{variable}/0", f"{gpu} 0", Device(gpu, 0))
    named = ArenaName(f"{variable}/GPU-a", f"{gpu} 0", Device(gpu, 0, "GPU-a"))
    another = ArenaName(f"{variable}/GPU-b", f"{gpu} 1", Device(gpu, 1, "GPU-b"))
    await table.sit("first", arena=numbered, pid=7)
    second, other = await table.sit("second", arena=named), await table.sit("other", arena=another)
    assert set(await said(second)) == {"wait"}
    assert (await said(other))[0] == "turn"

    await table.end()
    table.begin()
    second = await table.sit("second", arena=named, pid=8)
    assert set(await said(second)) == {"wait"}
    table.referee.release("uid-first", "first")
    assert (await said(second))[-1] == "turn"
    third = await table.sit("third", arena=numbered)
    assert set(await said(third)) == {"wait"}


@at_a_table
async def test_a_lost_turn_goes_on_when_its_processes_have_ended(table: Table) -> None:
    """Within two seconds, and not before."""
    first, second = await table.sit("first", pid=7), await table.sit("second")
    table.referee.leave(first.seat)
    await asyncio.sleep(grace(LEASE_SEEN) + 60)
    assert table.view() == ("ns/first", ["ns/second"])
    assert table.counts.losses == 1
    await said(second)

    table.processes.running.clear()
    await asyncio.sleep(2)

    assert (await said(second))[-1] == "turn"


@at_a_table
async def test_a_lost_turn_that_is_not_seen_goes_on_after_its_grace(table: Table) -> None:
    """As of pods in sandboxes with a kernel of their own."""
    first, _ = await table.sit("first", pid=0), await table.sit("second")
    assert first.taken()[0].split()[2] == str(int(LEASE_UNSEEN * 1000))
    table.referee.leave(first.seat)
    await asyncio.sleep(grace(LEASE_UNSEEN) - 1)
    assert table.view()[0] == "ns/first"
    await asyncio.sleep(2)
    assert table.view()[0] == "ns/second"


@at_a_table
async def test_a_restarted_agent_knows_who_has_the_turn(table: Table) -> None:
    """It gives the turn to nobody else until the holder has ended, and at once to others where there is none."""
    await table.sit("first", pid=7)
    await table.end()
    table.begin()
    second, other = await table.sit("second"), await table.sit("other", arena=OTHERS)
    await asyncio.sleep(100)
    assert table.view() == ("ns/first", ["ns/second"])
    assert (await said(other))[0] == "turn"

    back = await table.sit("first", pid=7, held=True)
    assert (await said(back))[0] == "turn"
    table.referee.release("uid-first", "first")
    assert (await said(second))[-1] == "turn"


@at_a_table
async def test_an_agent_without_a_record_waits_until_all_turns_must_have_ended(table: Table) -> None:
    """And says so."""
    await table.end()
    table.begin(records=False)
    seat = await table.sit("first", pid=7)
    await asyncio.sleep(grace(LEASE_UNSEEN) - 1)
    lines = seat.taken()
    assert "an earlier agent" in lines[-1]
    await asyncio.sleep(2)
    assert seat.taken()[-1].split()[::2] == ["turn", str(int(LEASE_UNSEEN * 1000))]


@at_a_table
async def test_an_unreadable_record_is_as_good_as_none(table: Table) -> None:
    """The longest lease of all counts then."""
    await table.end()
    table.records.known = None
    table.begin()
    await table.sit("first", pid=7)
    await asyncio.sleep(grace(LEASE_SEEN) - 1)
    assert table.view() == ("", ["ns/first"])
    await asyncio.sleep(2)
    assert table.view() == ("ns/first", [])


@at_a_table
async def test_a_turn_that_cannot_be_recorded_is_not_given(table: Table) -> None:
    """An agent that restarted wouldn't know of it. Waiting programs are told why; the log has it once."""
    await asyncio.sleep(1)
    table.records.full = True
    with capture_logs() as logs:
        seat = await table.sit("first", pid=7)
        await asyncio.sleep(5)
    assert [line["log_level"] for line in logs] == ["error"]
    lines = seat.taken()
    assert {line.split()[0] for line in lines} == {"wait"}
    assert lines[-1].endswith("waiting until the node's agent can write its record of turns: No space left on device")
    table.records.full = False
    await asyncio.sleep(1)
    assert (await said(seat))[-1] == "turn"


@at_a_table
async def test_two_agents_are_never_referees_at_once(table: Table) -> None:
    """The second waits for the first one's end."""
    await table.end()
    table.records.free = False
    table.begin()
    sitting = asyncio.create_task(table.sit("first"))
    await asyncio.sleep(60)
    assert not sitting.done()
    table.records.free = True
    assert (await said(await sitting))[0] == "turn"


@at_a_table
async def test_a_slice_ends_with_a_word(table: Table) -> None:
    """When others wait."""
    seat = await table.sit("first", slice=10.0)
    await asyncio.sleep(20)
    assert "yield" not in await said(seat)
    await table.sit("second")
    await asyncio.sleep(1)
    assert (await said(seat)).count("yield") == 1


@at_a_table
async def test_a_second_connection_takes_the_place_of_the_first(table: Table) -> None:
    """Which is closed, and whose end means nothing."""
    old = await table.sit("first", pid=7)
    new = await table.sit("first", pid=7, held=True)
    await old.catch_up()
    assert old.closed
    table.referee.leave(old.seat)
    await asyncio.sleep(5)
    assert set(await said(new)) == {"turn"}
    assert table.counts.losses == 0


@at_a_table
async def test_a_client_that_takes_nothing_is_disconnected(table: Table) -> None:
    """What is said to it isn't kept for ever."""
    client = await table.sit("first")
    client.stop()
    await asyncio.sleep(3600)
    again = Client(client.seat)
    await asyncio.sleep(1)
    assert len(again.taken()) < 100
    assert again.closed


@at_a_table
async def test_an_agent_that_stops_ends_its_connections(table: Table) -> None:
    """So that their clients look for the next one."""
    seat = await table.sit("first")
    await table.referee.stop()
    await seat.catch_up()
    assert seat.closed


@at_a_table
async def test_strangers_on_a_device_are_not_told_each_others_names(table: Table) -> None:
    """Pods with shares of it may be of any namespace; those of a group are told whom they share its devices with."""
    device = ArenaName("device/NVIDIA_VISIBLE_DEVICES/0", "nvidia.com/gpu 0")
    for arena, whom in ((device, "a pod of another namespace"), (TEAM, "ns/team holder")):
        await table.sit(f"{arena.name} holder", arena=arena)
        seat = await table.referee.sit(arena, Bid(f"{arena.name} other", 0, 1), (f"uid-{arena.name}", "else/other"))
        mate = await table.sit(f"{arena.name} mate", arena=arena)
        line = await seat.line()
        assert line is not None
        assert f"; {whom} has it" in line
        assert any(f"ns/{arena.name} holder has it" in each for each in mate.taken())
