"""Turns over HTTP, from pods with addresses of their own."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientSession, StreamReader, TCPConnector

from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.pods_api import streams as pods_api_streams
from deviceshare.agent.pods_api.caller import Callers
from deviceshare.agent.pods_api.streams import MAX_STREAMS_OF_POD, Streams
from deviceshare.agent.pods_api.turns import TurnsApi
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.turns.script import script
from deviceshare.domain.turns.standing import Witness
from deviceshare.loops.agent.referee import Referee
from deviceshare.web.server import Server
from tests.unit.agent.pods_api.asking import A, B, C, ask, serving
from tests.unit.loops.agent.node import TEAM, Node, part

FIRST, SECOND = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


class NoSight:
    """Sees no process."""

    async def witness(self, *_: object) -> None:
        return None

    async def ended(self, _: Collection[Witness]) -> set[Witness]:
        return set()


class KnownFromTheStart:
    """A record that is always empty."""

    def lock(self) -> bool:
        return True

    def load(self) -> list[object]:
        return []

    def save(self, _: object) -> None:
        pass


async def every_pod_runs(_: str) -> bool:
    return True


@asynccontextmanager
async def arena() -> AsyncIterator[tuple[Server, Referee]]:
    """A server for the team's pods `a` and `b`, at the addresses A and B, and a stranger at C."""
    node = Node()
    node.set_ledger(Hardware(devices=[part(0)]))
    node.hold(0)
    for name, address in (("a", A), ("b", B)):
        node.add_pod(name, group_uid=TEAM, ips=[address])
    node.add_pod("c", ips=[C])
    referee = Referee(NoSight(), KnownFromTheStart(), AgentMetrics())  # type: ignore[arg-type]
    running = asyncio.create_task(referee.run())
    try:
        async with serving(TurnsApi(referee, Callers(node.own, every_pod_runs), Streams()).endpoints) as server:
            yield server, referee
            await referee.stop()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def player(server: Server, source: str, token: str, more: str = "") -> AsyncIterator["Lines"]:
    """A connection from the address."""
    async with (
        asyncio.timeout(20),
        ClientSession(connector=TCPConnector(local_addr=(source, 0))) as session,
        session.get(f"http://127.0.0.1:{server.port}/turn?token={token}{more}") as response,
    ):
        yield Lines(response.content)


class Lines:
    """What a player is told."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content

    async def word(self, wanted: str) -> str:
        """The next line that begins with this word."""
        while line := (await self._content.readline()).decode():
            if line.split()[0] == wanted:
                return line
        raise AssertionError(f"the stream ended without {wanted}")


async def test_the_turn_goes_from_pod_to_pod() -> None:
    """When the first says that it is over; the one that waits is told for whom."""
    async with arena() as (server, _), player(server, A, FIRST) as first:
        assert (await first.word("turn")).split()[2] == "30000"
        async with player(server, B, SECOND) as second:
            assert "ns/a has it" in await second.word("wait")
            assert await ask(server, f"/turn/over?token={FIRST}", source=A) == (200, "over\n")
            await second.word("turn")


async def test_a_pod_cannot_end_the_turn_of_another() -> None:
    """Though it knows the token."""
    async with arena() as (server, referee), player(server, A, FIRST) as first:
        await first.word("turn")
        await ask(server, f"/turn/over?token={FIRST}", source=B)
        assert referee.view()[0].holder is not None


async def test_a_stranger_is_refused_in_a_line_that_every_client_shows() -> None:
    """And so is a bad request."""
    async with arena() as (server, _):
        status, text = await ask(server, f"/turn?token={FIRST}", source=C)
        assert (status, text.split()[0]) == (200, "refused")
        assert "has no devices of deviceshare" in text
        status, text = await ask(server, "/turn?token=x", source=A)
        assert (status, text[:13]) == (200, "refused token")
        status, _ = await ask(server, f"/turn/over?token={FIRST}", source=C)
        assert status == 403


async def test_a_pod_has_only_so_many_connections() -> None:
    """Further ones are told to ask again; other pods don't notice."""
    async with arena() as (server, _):
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
            async with player(server, B, SECOND) as other:
                await other.word("wait")
        finally:
            for response in responses:
                response.close()
            for session in sessions:
                await session.close()


async def test_a_holder_whose_connection_broke_is_let_in_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers have taken every other place meanwhile; who only says that it holds a turn is refused like them."""
    async with arena() as (server, _):
        async with player(server, A, FIRST) as first:
            await first.word("turn")
        monkeypatch.setattr(pods_api_streams, "MAX_STREAMS", 0)
        assert (await ask(server, f"/turn?token={SECOND}&held=1", source=B))[0] == 429
        async with player(server, A, FIRST, "&held=1") as again:
            await again.word("turn")


async def test_who_says_it_has_a_turn_that_it_has_not_is_told_to_end() -> None:
    """It was away for too long."""
    async with arena() as (server, _), player(server, A, FIRST, "&held=1") as late:
        await late.word("gone")


async def test_the_script_has_all_its_times() -> None:
    """No placeholder is left in it."""
    async with arena() as (server, _):
        assert await ask(server, "/turn.sh", source=C) == (200, script())
    assert "@" not in script().replace('"$@"', "")
    assert "sleep 1" in script() and "--connect-timeout 3" in script()
