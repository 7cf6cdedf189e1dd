"""On which addresses a server listens, and how it accepts."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from deviceshare.metrics import Metrics
from deviceshare.web.messages import HttpRequest, Response, Route
from deviceshare.web.server import CannotListen, Server

ELSEWHERE = "192.0.2.1"
"""TEST-NET-1: no machine has it."""


def a_server(host: str, connections: int = 4) -> Server:
    return Server("probe", host, 0, (), Metrics(), max_body=1000, timeout=5, connections=connections)


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    async def getaddrinfo(_host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_an_address_that_the_machine_lacks_is_left_out_where_the_name_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ::1 of localhost, where the kernel was started without IPv6."""
    resolve_to(monkeypatch, ELSEWHERE, "127.0.0.1")
    server = a_server("localhost")
    await server.start()
    _, writer = await asyncio.open_connection(sock=connected(server.port))
    writer.close()
    await server.stop()


async def test_a_name_without_an_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a server would run that nobody reaches."""
    resolve_to(monkeypatch, ELSEWHERE)
    with pytest.raises(CannotListen, match="--probe-bind"):
        await a_server("localhost").start()


async def test_a_crowd_at_the_door_is_let_in_one_by_one() -> None:
    """However many wait to be accepted: sockets for which there is no place are closed, and others get their turns."""

    async def nothing(_: HttpRequest) -> Response:
        return Response()

    server = Server(
        "probe", "127.0.0.1", 0, [Route("GET", "/", nothing)], Metrics(), max_body=1, timeout=5, connections=4
    )
    await server.start()
    crowd = [connected(server.port) for _ in range(200)]
    before, most = open_files(), 0
    for _ in range(1000):
        await asyncio.sleep(0)
        most = max(most, open_files())
    for each in crowd:
        each.close()
    await server.stop()
    assert most - before < 20


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def connected(port: int) -> socket.socket:
    """A connection that waits to be accepted."""
    return socket.create_connection(("127.0.0.1", port))
