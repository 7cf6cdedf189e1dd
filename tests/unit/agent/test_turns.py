"""Turns in virtual time: connections, the record of holders, and the node's processes."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

from structlog.testing import capture_logs

from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.process_table import ProcessTable
from deviceshare.agent.turns import TurnConnection, TurnRecords, Turns
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.turns.program_queue import (
    HEARTBEAT,
    LEASE_SEEN,
    LEASE_UNSEEN,
    QueueName,
    TurnProcess,
    TurnRecord,
    grace,
)
from deviceshare.domain.turns.turn_client import TurnRequest
from tests.unit.loops.virtual_time import in_virtual_time, now

TEAM = QueueName("group/1", "team")
OTHERS = QueueName("group/2", "others")


class FewProcesses(ProcessTable):
    """Sees those that it is told of."""

    def __init__(self) -> None:
        self.running: set[int] = set()

    async def find(self, pod_uid: str, pid: int, started: int) -> TurnProcess | None:
        await asyncio.sleep(0.01)
        return TurnProcess(pid, started, pod_uid) if pid in self.running else None

    async def ended(self, processes: Collection[TurnProcess]) -> set[TurnProcess]:
        await asyncio.sleep(0.01)
        return {each for each in processes if each.pid not in self.running}


class MemoryRecords(TurnRecords):
    """Outlives an agent."""

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


class Client:
    """Reads what it is told."""

    def __init__(self, connection: TurnConnection) -> None:
        self.connection = connection
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
        while (line := await self.connection.line()) is not None:
            self._lines.append(line)


class NodeWithTurns:
    """One agent at a time gives its turns."""

    def __init__(self) -> None:
        self.processes, self.records, self.counts = FewProcesses(), MemoryRecords(), AgentMetrics()
        self._clients: list[Client] = []
        self.begin()

    def begin(self, *, records: bool = True) -> None:
        """A new agent."""
        self.turns = Turns(self.processes, self.records if records else None, self.counts, now)
        self._task = asyncio.create_task(self.turns.run())

    def counted(self, name: str) -> float | None:
        """The agents' metric of this name."""
        return self.counts.registry.get_sample_value(f"deviceshare_{name}")

    async def end(self) -> None:
        """It is killed."""
        self._task.cancel()
        for client in self._clients:
            client.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    async def join(self, name: str, *, queue: QueueName = TEAM, pid: int = 0, **more: Any) -> Client:
        """A program with this name connects."""
        if pid:
            self.processes.running.add(pid)
        connection = await self.turns.join(queue, TurnRequest(name, pid, 1, **more), f"uid-{name}", f"ns/{name}")
        client = Client(connection)
        self._clients.append(client)
        await client.catch_up()
        return client

    def view(self) -> tuple[str, list[str]]:
        """Which pod has the team's turn, and which wait."""
        for queue in self.turns.view():
            if queue.group == "team":
                return queue.holder.pod if queue.holder else "", [each.pod for each in queue.waiting]
        return "", []


def on_a_node(test: Callable[[NodeWithTurns], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Gives the test a node of its own."""

    @in_virtual_time
    async def started() -> None:
        node = NodeWithTurns()
        await test(node)
        await node.end()

    started.__doc__ = test.__doc__
    started.__name__ = test.__name__
    return started


async def said(client: Client) -> list[str]:
    """The words of the lines since the last call."""
    await client.catch_up()
    return [line.split()[0] for line in client.taken()]


@on_a_node
async def test_the_turn_is_given_to_one_after_the_other(node: NodeWithTurns) -> None:
    """The holder gets heartbeats with its lease; the next one has it as soon as it is released."""
    first, second = await node.join("first", pid=7), await node.join("second")
    await asyncio.sleep(5)

    lines = first.taken()
    assert len(lines) >= 5 / HEARTBEAT and {line.split()[0] for line in lines} == {"turn"}
    word, age, lease = lines[-1].split()
    assert (word, int(lease)) == ("turn", int(LEASE_SEEN * 1000)) and int(age) <= 5010
    assert set(await said(second)) == {"wait"}
    node.turns.release(("uid-first", "first"))
    assert await said(second) == ["turn"]
    assert node.counted("turn_wait_seconds_count") == 2
    assert first.closed


@on_a_node
async def test_a_stranger_cannot_end_a_turn(node: NodeWithTurns) -> None:
    """With the token, but from another pod."""
    await node.join("first")
    node.turns.release(("uid-second", "first"))
    assert node.view() == ("ns/first", [])


@on_a_node
async def test_groups_do_not_wait_for_each_other(node: NodeWithTurns) -> None:
    """Each has its own turn."""
    await node.join("first")
    other = await node.join("other", queue=OTHERS)
    assert (await said(other))[0] == "turn"
    assert [each.group for each in node.turns.view()] == ["team", "others"]


@on_a_node
async def test_a_device_has_one_turn_also_when_its_uuid_becomes_known(node: NodeWithTurns) -> None:
    """Or isn't known any more, as while its ledger is recreated; nor does an agent's restart change that."""
    gpu, variable = "nvidia.com/gpu", "device/NVIDIA_VISIBLE_DEVICES"
    numbered = QueueName(f"{variable}/0", f"{gpu} 0", Device(gpu, 0))
    named = QueueName(f"{variable}/GPU-a", f"{gpu} 0", Device(gpu, 0, "GPU-a"))
    another = QueueName(f"{variable}/GPU-b", f"{gpu} 1", Device(gpu, 1, "GPU-b"))
    await node.join("first", queue=numbered, pid=7)
    second, other = await node.join("second", queue=named), await node.join("other", queue=another)
    assert set(await said(second)) == {"wait"}
    assert (await said(other))[0] == "turn"

    await node.end()
    node.begin()
    second = await node.join("second", queue=named, pid=8)
    assert set(await said(second)) == {"wait"}
    node.turns.release(("uid-first", "first"))
    assert (await said(second))[-1] == "turn"
    third = await node.join("third", queue=numbered)
    assert set(await said(third)) == {"wait"}


@on_a_node
async def test_a_lost_turn_goes_on_when_its_processes_have_ended(node: NodeWithTurns) -> None:
    """Within two seconds, and not before."""
    first, second = await node.join("first", pid=7), await node.join("second")
    node.turns.leave(first.connection)
    await asyncio.sleep(grace(LEASE_SEEN) + 60)
    assert node.view() == ("ns/first", ["ns/second"])
    assert node.counted("turns_lost_total") == 1
    await said(second)

    node.processes.running.clear()
    await asyncio.sleep(2)

    assert (await said(second))[-1] == "turn"


@on_a_node
async def test_a_lost_turn_that_is_not_seen_goes_on_after_its_grace(node: NodeWithTurns) -> None:
    """As of pods in sandboxes with a kernel of their own."""
    first, _ = await node.join("first", pid=0), await node.join("second")
    assert first.taken()[0].split()[2] == str(int(LEASE_UNSEEN * 1000))
    node.turns.leave(first.connection)
    await asyncio.sleep(grace(LEASE_UNSEEN) - 1)
    assert node.view()[0] == "ns/first"
    await asyncio.sleep(2)
    assert node.view()[0] == "ns/second"


@on_a_node
async def test_a_restarted_agent_knows_who_has_the_turn(node: NodeWithTurns) -> None:
    """It gives the turn to nobody else until the holder has ended, and at once to others where there is none."""
    await node.join("first", pid=7)
    await node.end()
    node.begin()
    second, other = await node.join("second"), await node.join("other", queue=OTHERS)
    await asyncio.sleep(100)
    assert node.view() == ("ns/first", ["ns/second"])
    assert (await said(other))[0] == "turn"

    back = await node.join("first", pid=7, held=True)
    assert (await said(back))[0] == "turn"
    node.turns.release(("uid-first", "first"))
    assert (await said(second))[-1] == "turn"


@on_a_node
async def test_an_agent_without_a_record_waits_until_all_turns_must_have_ended(node: NodeWithTurns) -> None:
    """And says so."""
    await node.end()
    node.begin(records=False)
    client = await node.join("first", pid=7)
    await asyncio.sleep(grace(LEASE_UNSEEN) - 1)
    lines = client.taken()
    assert "an earlier agent" in lines[-1]
    await asyncio.sleep(2)
    assert client.taken()[-1].split()[::2] == ["turn", str(int(LEASE_UNSEEN * 1000))]


@on_a_node
async def test_an_unreadable_record_is_as_good_as_none(node: NodeWithTurns) -> None:
    """The longest lease of all counts then."""
    await node.end()
    node.records.known = None
    node.begin()
    await node.join("first", pid=7)
    await asyncio.sleep(grace(LEASE_SEEN) - 1)
    assert node.view() == ("", ["ns/first"])
    await asyncio.sleep(2)
    assert node.view() == ("ns/first", [])


@on_a_node
async def test_a_turn_that_cannot_be_recorded_is_not_given(node: NodeWithTurns) -> None:
    """An agent that restarted wouldn't know of it. Waiting programs are told why; the log has it once."""
    await asyncio.sleep(1)
    node.records.full = True
    with capture_logs() as logs:
        client = await node.join("first", pid=7)
        await asyncio.sleep(5)
    assert [line["log_level"] for line in logs] == ["error"]
    lines = client.taken()
    assert {line.split()[0] for line in lines} == {"wait"}
    assert lines[-1].endswith("waiting until the node's agent can write its record of turns: No space left on device")
    node.records.full = False
    await asyncio.sleep(1)
    assert (await said(client))[-1] == "turn"


@on_a_node
async def test_two_agents_never_give_turns_at_once(node: NodeWithTurns) -> None:
    """The second waits for the first one's end."""
    await node.end()
    node.records.free = False
    node.begin()
    joining = asyncio.create_task(node.join("first"))
    await asyncio.sleep(60)
    assert not joining.done()
    node.records.free = True
    assert (await said(await joining))[0] == "turn"


@on_a_node
async def test_a_slice_ends_with_a_word(node: NodeWithTurns) -> None:
    """When others wait."""
    client = await node.join("first", slice=10.0)
    await asyncio.sleep(20)
    assert "yield" not in await said(client)
    await node.join("second")
    await asyncio.sleep(1)
    assert (await said(client)).count("yield") == 1


@on_a_node
async def test_a_second_connection_takes_the_place_of_the_first(node: NodeWithTurns) -> None:
    """Which is closed, and whose end means nothing."""
    old = await node.join("first", pid=7)
    new = await node.join("first", pid=7, held=True)
    await old.catch_up()
    assert old.closed
    node.turns.leave(old.connection)
    await asyncio.sleep(5)
    assert set(await said(new)) == {"turn"}
    assert node.counted("turns_lost_total") == 0


@on_a_node
async def test_a_program_that_connects_to_another_queue_leaves_the_first(node: NodeWithTurns) -> None:
    """As after a rebind of its pod's share: the turn of the first is not told it as the other's."""
    await node.join("first", pid=7)
    await node.join("other", queue=OTHERS, pid=8)
    old, new = await node.join("moved"), await node.join("moved", queue=OTHERS)
    node.turns.leave(old.connection)
    node.turns.release(("uid-first", "first"))
    await asyncio.sleep(5)
    assert node.view() == ("", [])
    assert old.closed and set(await said(new)) == {"wait"}


@on_a_node
async def test_a_client_that_takes_nothing_is_disconnected(node: NodeWithTurns) -> None:
    """What is said to it isn't kept for ever."""
    client = await node.join("first")
    client.stop()
    await asyncio.sleep(3600)
    again = Client(client.connection)
    await asyncio.sleep(1)
    assert len(again.taken()) < 100
    assert again.closed


@on_a_node
async def test_an_agent_that_stops_ends_its_connections(node: NodeWithTurns) -> None:
    """So that their clients look for the next one."""
    client = await node.join("first")
    await node.turns.stop()
    await client.catch_up()
    assert client.closed


@on_a_node
async def test_strangers_on_a_device_are_not_told_each_others_names(node: NodeWithTurns) -> None:
    """Pods with shares of it may be of any namespace; those of a group are told whom they share its devices with."""
    device = QueueName("device/NVIDIA_VISIBLE_DEVICES/0", "nvidia.com/gpu 0")
    for queue, whom in ((device, "a pod of another namespace"), (TEAM, "ns/team holder")):
        await node.join(f"{queue.name} holder", queue=queue)
        client = await node.turns.join(queue, TurnRequest(f"{queue.name} other"), f"uid-{queue.name}", "else/other")
        mate = await node.join(f"{queue.name} mate", queue=queue)
        line = await client.line()
        assert line is not None
        assert f"; {whom} has it" in line
        assert any(f"ns/{queue.name} holder has it" in each for each in mate.taken())
