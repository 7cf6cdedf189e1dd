"""The agent's server for pods over a node of the tests, and clients that come from addresses of their own.

Linux routes all of 127.0.0.0/8 to this machine, so a client may bind any address of it: what the server sees is real.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import ClientSession, TCPConnector

from deviceshare.agent.metrics import AgentMetrics
from deviceshare.agent.pods_api import Endpoint, pods_server
from deviceshare.flags import Address
from deviceshare.web.server import Server

A, B, C = "127.0.1.1", "127.0.1.2", "127.0.1.3"
"""Addresses of three pods."""


async def runs(_: str) -> bool:
    """Every pod has a process."""
    return True


@asynccontextmanager
async def serving(endpoints: Sequence[Endpoint]) -> AsyncIterator[Server]:
    """The server with these endpoints."""
    server = pods_server(Address("127.0.0.1", 0), endpoints, AgentMetrics())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(
    server: Server, path: str, *, source: str = A, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Status and text of the answer to a request from the address."""
    async with (
        asyncio.timeout(20),
        ClientSession(connector=TCPConnector(local_addr=(source, 0))) as session,
        session.request(method, f"http://127.0.0.1:{server.port}{path}", headers=headers) as response,
    ):
        return response.status, await response.text()
