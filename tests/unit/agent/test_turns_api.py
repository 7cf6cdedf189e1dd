"""Turns over HTTP, from pods with addresses of their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, StreamReader, TCPConnector

from deviceshare.agent import pods_api
from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.pods_api import MAX_STREAMS_OF_POD, Callers, TurnsApi
from deviceshare.agent.process_table import ProcessTable
from deviceshare.agent.turns import TurnRecords, Turns
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.turns.turn_client import script
from deviceshare.web.server import Server
from tests.unit.agent.asking import A, B, C, ask, runs, serving
from tests.unit.agent.node import TEAM, Node, part

FIRST, SECOND = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


@asynccontextmanager
async def turns_of(directory: Path) -> AsyncIterator[tuple[Server, Turns]]:
    """A server for the team's pods `a` and `b`, at the addresses A and B, and a stranger at C."""
    node = Node()
    node.set_ledger(Hardware(devices=[part(0)]))
    node.hold(0)
    for name, address in (("a", A), ("b", B)):
        node.add_pod(name, group_uid=TEAM, ips=[address])
    node.add_pod("c", ips=[C])
    unseen = ProcessTable(directory / "no proc")
    turns = Turns(unseen, TurnRecords(directory, unseen), AgentMetrics())
    running = asyncio.create_task(turns.run())
    try:
        async with serving(TurnsApi(turns, Callers(node.own, runs)).endpoints) as server:
            yield server, turns
            await turns.stop()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def program(server: Server, source: str, token: str, more: str = "") -> AsyncIterator["Lines"]:
    """A connection from the address."""
    async with (
        asyncio.timeout(20),
        ClientSession(connector=TCPConnector(local_addr=(source, 0))) as session,
        session.get(f"http://127.0.0.1:{server.port}/turn?token={token}{more}") as response,
    ):
        yield Lines(response.content)


class Lines:
    """What a program is told."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content

    async def word(self, wanted: str) -> str:
        """The next line that begins with this word."""
        while line := (await self._content.readline()).decode():
            if line.split()[0] == wanted:
                return line
        raise AssertionError(f"the stream ended without {wanted}")


async def test_the_turn_goes_from_pod_to_pod(tmp_path: Path) -> None:
    """When the first says that it is over; the one that waits is told for whom."""
    async with turns_of(tmp_path) as (server, _), program(server, A, FIRST) as first:
        assert (await first.word("turn")).split()[2] == "30000"
        async with program(server, B, SECOND) as second:
            assert "ns/a has it" in await second.word("wait")
            assert await ask(server, f"/turn/over?token={FIRST}", source=A) == (200, "over\n")
            await second.word("turn")


async def test_a_pod_cannot_end_the_turn_of_another(tmp_path: Path) -> None:
    """Though it knows the token."""
    async with turns_of(tmp_path) as (server, turns), program(server, A, FIRST) as first:
        await first.word("turn")
        await ask(server, f"/turn/over?token={FIRST}", source=B)
        assert turns.view()[0].holder is not None


async def test_a_stranger_is_refused_in_a_line_that_every_client_shows(tmp_path: Path) -> None:
    """And so is a bad request."""
    async with turns_of(tmp_path) as (server, _):
        status, text = await ask(server, f"/turn?token={FIRST}", source=C)
        assert (status, text.split()[0]) == (200, "refused")
        assert "has no devices of deviceshare" in text
        status, text = await ask(server, "/turn?token=x", source=A)
        assert (status, text[:13]) == (200, "refused token")
        status, _ = await ask(server, f"/turn/over?token={FIRST}", source=C)
        assert status == 403


async def test_a_pod_has_only_so_many_connections(tmp_path: Path) -> None:
    """Further ones are told to ask again; other pods don't notice."""
    async with turns_of(tmp_path) as (server, _):
        sessions = [ClientSession(connector=TCPConnector(local_addr=(A, 0))) for _ in range(MAX_STREAMS_OF_POD)]
        responses = []
        try:
            for number, session in enumerate(sessions):
                token = FIRST[:-2] + f"{number:02}"
                response = await session.get(f"http://127.0.0.1:{server.port}/turn?token={token}")
                responses.append(response)
                assert response.status == 200
            status, _ = await ask(server, f"/turn?token={SECOND}", source=A)
            assert status == 429
            async with program(server, B, SECOND) as other:
                await other.word("wait")
        finally:
            for response in responses:
                response.close()
            for session in sessions:
                await session.close()


async def test_a_holder_whose_connection_broke_is_let_in_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers have taken every other place meanwhile; who only says that it holds a turn is refused like them."""
    async with turns_of(tmp_path) as (server, _):
        async with program(server, A, FIRST) as first:
            await first.word("turn")
        monkeypatch.setattr(pods_api, "MAX_STREAMS", 0)
        assert (await ask(server, f"/turn?token={SECOND}&held=1", source=B))[0] == 429
        async with program(server, A, FIRST, "&held=1") as again:
            await again.word("turn")


async def test_who_says_it_has_a_turn_that_it_has_not_is_told_to_end(tmp_path: Path) -> None:
    """It was away for too long."""
    async with turns_of(tmp_path) as (server, _), program(server, A, FIRST, "&held=1") as late:
        await late.word("gone")


async def test_the_script_has_all_its_times(tmp_path: Path) -> None:
    """No placeholder is left in it."""
    async with turns_of(tmp_path) as (server, _):
        assert await ask(server, "/turn.sh", source=C) == (200, script())
    assert "@" not in script().replace('"$@"', "")
    assert "sleep 1" in script() and "--connect-timeout 3" in script()
