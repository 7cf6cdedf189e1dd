"""The client of the API server, against servers and proxies that say what they shouldn't, or nothing."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.kube import http_client
from deviceshare.kube.http_client import HttpAnswer, HttpClient, TooLong
from tests.unit.kube.test_connection import write_certificates

TLS = ssl.create_default_context()
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Peer:
    """A server that sends these bytes behind each request; it counts the connections, and closes them if told to."""

    def __init__(self, *answers: bytes, closes: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.answers, self.closes, self.tls = list(answers), closes, tls
        self.asked: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.closes:
                    break
            else:
                await asyncio.sleep(60)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[str]:
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, ssl=peer.tls)
    peer.port = server.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' * (peer.tls is not None)}://127.0.0.1:{peer.port}"
    finally:
        server.close()
        await asyncio.sleep(0.01)


async def ask(server: str, method: str = "GET", **options: object) -> HttpAnswer:
    client = HttpClient(server, TLS, {})
    try:
        async with asyncio.timeout(5):
            return await client.call(method, "/a", {}, **options)  # type: ignore[arg-type]
    finally:
        client.close()


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n3;x=y\r\n!!!\r\n0\r\nTrailer: 1\r\n\r\n",
            b"ok!!!",
        ),
        (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
    ],
)
async def test_an_answer_is_read_however_it_is_framed(sent: bytes, body: bytes) -> None:
    async with listening(Peer(sent)) as server:
        found = await ask(server)
    assert found.body == body and found.status in (200, 204) and "link" not in found.headers


async def test_without_a_length_the_end_of_the_connection_ends_the_body() -> None:
    async with listening(Peer(b"HTTP/1.1 200 OK\r\n\r\nok", closes=True)) as server:
        assert (await ask(server)).body == b"ok"


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nok\r\n",
        b"HTTP/1.1 200 OK\r\nName without a colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok",
        b"",
    ],
)
async def test_what_is_no_answer_or_not_the_whole_is_a_broken_connection(sent: bytes) -> None:
    """And never a part of one."""
    async with listening(Peer(sent, closes=True)) as server:
        with pytest.raises(OSError, match=r".+"):
            await ask(server)


@pytest.mark.parametrize("more", [b"", OK, b"garbage"])
async def test_bytes_that_nobody_asked_for_are_not_the_next_answer(more: bytes) -> None:
    """They end the connection: the next request has another."""
    peer = Peer(OK + more, OK.replace(b"ok", b"no"))
    async with listening(peer) as server:
        client = HttpClient(server, TLS, {})
        assert (await client.call("GET", "/1", {})).body == b"ok"
        await asyncio.sleep(0.05)
        assert (await client.call("GET", "/2", {})).body == b"no"
        client.close()
    assert peer.connections == (2 if more else 1)


async def test_a_connection_is_used_again_until_it_was_idle_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = Peer(*[OK] * 4)
    async with listening(peer) as server:
        client = HttpClient(server, TLS, {})
        for _ in range(3):
            await client.call("GET", "/", {})
        assert peer.connections == 1
        monkeypatch.setattr(http_client, "KEEPALIVE", -1.0)
        await client.call("GET", "/", {})
        assert peer.connections == 2
        client.close()


async def test_a_server_that_says_that_it_closes_gets_no_further_request() -> None:
    peer = Peer(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK)
    async with listening(peer) as server:
        client = HttpClient(server, TLS, {})
        await client.call("GET", "/", {})
        await client.call("GET", "/", {})
        client.close()
    assert peer.connections == 2


async def test_an_answer_that_is_too_long_is_not_read_to_its_end() -> None:
    async with listening(Peer(OK.replace(b": 2", b": 900000") + b"o" * 1000)) as server:
        with pytest.raises(TooLong):
            await ask(server, most=500)


async def test_who_gives_up_leaves_no_answer_to_the_next() -> None:
    """The connection of a request that was cancelled is closed: its answer may come at any time."""
    peer = Peer(b"", OK)
    async with listening(peer) as server:
        client = HttpClient(server, TLS, {})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.call("GET", "/slow", {})
        assert (await client.call("GET", "/next", {})).body == b"ok"
        client.close()
    assert peer.connections == 2 and b"/next" in peer.asked[1]


async def test_the_pool_is_bounded() -> None:
    """Requests wait for a free connection."""
    peer = Peer(*[OK] * 600)
    async with listening(peer) as server:
        client = HttpClient(server, TLS, {})
        answers = await asyncio.gather(*(client.call("GET", "/", {}) for _ in range(600)))
        client.close()
    assert {answer.body for answer in answers} == {b"ok"} and peer.connections <= http_client.POOL_SIZE


@given(st.lists(st.integers(1, 40), max_size=8), st.booleans())
def test_an_answer_is_the_same_however_it_arrives(cuts: list[int], chunked: bool) -> None:
    """Cut anywhere."""
    body = b"2\r\nok\r\n0\r\n\r\n" if chunked else b"ok"
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 2"
    data = b"HTTP/1.1 200 OK\r\nRetry-After: 7\r\n" + framing + b"\r\n\r\n" + body

    async def read() -> None:
        wire = http_client.Wire()
        wire.connection_made(asyncio.Transport())
        wire._transport = type("Sink", (), {"write": lambda _, data: None, "abort": lambda _: None})()
        wire.send(b"GET / HTTP/1.1\r\n\r\n")
        rest = data
        for cut in cuts:
            wire.data_received(rest[:cut])
            rest = rest[cut:]
            if not rest:
                break
        if rest:
            wire.data_received(rest)
        assert (await wire.body(), wire.status, wire.headers["retry-after"]) == (b"ok", 200, "7")
        wire.connection_lost(None)

    asyncio.run(read())


async def test_a_stream_that_nobody_reads_is_not_read_ahead_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't taken stays with the sender, and all of it arrives."""
    monkeypatch.setattr(http_client, "BUFFER", 1 << 16)
    size, sent = 8 << 20, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        while sent < size:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", TLS, {})
    async with client.stream("/", {}) as wire:
        await asyncio.sleep(0.3)
        assert sent < size
        assert sum([len(chunk) async for chunk in wire.chunks(5)]) == size
    server.close()


async def test_a_stream_that_falls_silent_is_broken() -> None:
    async with listening(Peer(CHUNKED + b"2\r\nok\r\n")) as server, HttpClient(server, TLS, {}).stream("/", {}) as wire:
        chunks = wire.chunks(0.1)
        assert await anext(chunks) == b"ok"
        with pytest.raises(TimeoutError, match=r"silent for 0\.1 s"):
            await anext(chunks)


@pytest.mark.parametrize("bad", ["a\r\nHost: b", "a\nb"])
async def test_no_header_ends_its_line(bad: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        await HttpClient("http://127.0.0.1:1", TLS, {}).call("GET", "/", {"Authorization": bad})


async def test_a_server_that_nobody_listens_at_is_unreachable() -> None:
    with pytest.raises(OSError, match=r".+"):
        await ask("http://127.0.0.1:1")


class Proxy:
    """Joins whoever says CONNECT with the right credentials to where it says, or answers with another status."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.heads: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        if self.status != 200:
            writer.write(f"HTTP/1.1 {self.status} No\r\nContent-Length: 0\r\n\r\n".encode())
            writer.close()
            return
        host, _, port = head.split()[1].rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)

        await asyncio.wait(
            [asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        back.transport.abort()
        writer.transport.abort()


def serving_tls(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's context, and one that trusts it."""
    authority = write_certificates(directory)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    return server, ssl.create_default_context(cafile=authority)


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_a_server_behind_a_proxy_is_reached_through_a_tunnel(tmp_path: Path, scheme: str) -> None:
    """The proxy sees where to, and its own credentials; TLS is with the server."""
    served, trusted = serving_tls(tmp_path)
    proxy = Proxy()
    outer = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    by = f"{scheme}us%40er:p%3Aw@127.0.0.1:{outer.sockets[0].getsockname()[1]}"
    peer = Peer(OK, OK, tls=served)
    async with listening(peer) as server:
        client = HttpClient(server, trusted, {"User-Agent": "x"}, proxy=by)
        for _ in range(2):
            assert (await client.call("GET", "/a", {"Authorization": "Bearer t"})).body == b"ok"
        client.close()
    [head] = proxy.heads
    assert head.startswith(f"CONNECT 127.0.0.1:{peer.port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic dXNAZXI6cDp3\r\n" in head and "Bearer" not in head
    assert b"Proxy-Authorization" not in peer.asked[0]
    outer.close()


async def test_a_proxy_of_another_kind_is_refused() -> None:
    client = HttpClient("https://127.0.0.1:1", TLS, {}, proxy="socks5://127.0.0.1:1")
    with pytest.raises(ConnectionError, match="socks5"):
        await client.call("GET", "/a", {})


async def test_a_proxy_that_refuses_is_named(tmp_path: Path) -> None:
    served, trusted = serving_tls(tmp_path)
    outer = await asyncio.start_server(Proxy(407).serve, "127.0.0.1", 0)
    async with listening(Peer(OK, tls=served)) as server:
        client = HttpClient(server, trusted, {}, proxy=f"http://127.0.0.1:{outer.sockets[0].getsockname()[1]}")
        with pytest.raises(ConnectionError, match=r"the proxy 127\.0\.0\.1 answered 407"):
            await client.call("GET", "/a", {})
    outer.close()


async def test_a_certificate_of_another_name_is_refused_unless_that_is_the_name(tmp_path: Path) -> None:
    served, trusted = serving_tls(tmp_path)
    for name, fits in (("127.0.0.1", True), ("other.example", False)):
        async with listening(Peer(OK, tls=served)) as server:
            client = HttpClient(server, trusted, {}, server_name=name)
            if fits:
                assert (await client.call("GET", "/", {})).body == b"ok"
            else:
                with pytest.raises(ConnectionError, match="certificate is not valid for 'other"):
                    await client.call("GET", "/", {})
            client.close()


async def test_a_servers_own_path_comes_before_all() -> None:
    """As Rancher's."""
    peer = Peer(OK)
    async with listening(peer) as server:
        assert (await ask(f"{server}/k8s/clusters/c-1")).body == b"ok"
    assert peer.asked[0].startswith(b"GET /k8s/clusters/c-1/a HTTP/1.1\r\nHost: 127.0.0.1:")
