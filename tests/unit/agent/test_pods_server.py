"""The server for pods: its help, and what strangers can't do to it."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from deviceshare.agent import pods_api
from deviceshare.agent.pods_api import Endpoint, plain
from deviceshare.web.messages import HttpRequest, Response
from tests.unit.agent.asking import A, B, ask, serving


async def answer(_: HttpRequest) -> Response:
    return plain("here\n")


HERE = Endpoint("/here", "Says where.", answer)
GIVE = Endpoint("/give", "Takes.", answer, method="POST")


async def test_the_root_tells_the_paths() -> None:
    """And how to ask."""
    async with serving([HERE, GIVE]) as server:
        status, text = await ask(server, "/")

    assert status == 200
    assert "/here  Says where." in text
    assert "curl -s $DEVICESHARE_AGENT/smi" in text


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nothing"), ("GET", "/usage"), ("GET", "/metrics"), ("POST", "/here"), ("PUT", "/x/y")],
)
async def test_other_paths_are_answered_with_the_same_hint(method: str, path: str) -> None:
    """Above all those of the agent's own server, which reports all pods."""
    async with serving([HERE]) as server:
        status, text = await ask(server, path, method=method)

    assert status == 404
    assert "/here  Says where." in text


async def test_nothing_of_a_request_is_reflected() -> None:
    """Neither to a terminal nor to a log's reader."""
    async with serving([HERE]) as server:
        _, text = await ask(server, "/%1b%5b2Jmarker?marker=1", headers={"X-Marker": "marker"})

    assert "marker" not in text


async def test_a_long_header_or_body_is_refused() -> None:
    """Questions are short."""
    async with serving([GIVE]) as server:
        long = await ask(server, "/give", method="POST", headers={"X-Long": "x" * 20_000})
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /give HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")
        refused = await asyncio.wait_for(reader.read(200), 10)
        writer.close()

    assert long[0] == 400
    assert refused.startswith(b"HTTP/1.1 413")


async def test_one_address_has_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its eldest idle ones are closed for its new ones, and no others'."""
    monkeypatch.setattr(pods_api, "CONNECTIONS_OF_ADDRESS", 3)
    async with serving([HERE]) as server, AsyncExitStack() as stack:
        readers = []
        for source in (B, A, A, A, A, A):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0))
            stack.callback(writer.close)
            readers.append(reader)
            await asyncio.sleep(0.05)
        ended = [await asyncio.gather(*(closed(reader) for reader in readers))]

        assert ended == [[False, True, True, False, False, False]]
        assert (await ask(server, "/here", source=B))[0] == 200


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server has ended the connection."""
    try:
        return await asyncio.wait_for(reader.read(1), 0.3) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
