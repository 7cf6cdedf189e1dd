"""Connections that don't end by themselves, and what a stranger sends that isn't HTTP."""

import asyncio
import gc
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from deviceshare.certificates.serving import Certificate
from deviceshare.metrics import Metrics
from deviceshare.web.messages import Handler, HttpRequest, Response, Route
from deviceshare.web.server import Server
from tests.unit.web.test_server import a_certificate, echo, write_certificate

HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Attacked:
    """A server, its numbers, and the connections of who attacks it."""

    def __init__(self, handler: Handler, **bounds: float) -> None:
        self.metrics = Metrics()
        given = {"max_body": 1000, "timeout": 0.2, **bounds}
        self.server = Server("webhook", "127.0.0.1", 0, [Route("POST", "/echo", handler)], self.metrics, **given)  # type: ignore[arg-type]
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"", context: ssl.SSLContext | None = None) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=context)
        self.writers.append(writer)
        writer.write(data)
        return reader, writer

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"deviceshare_{name}", {"server": "webhook", **labels}) or 0

    def answered(self, result: str) -> float:
        labels = {"verb": "echo", "result": result}
        return self.metrics.registry.get_sample_value("deviceshare_requests_total", labels) or 0


async def until(true: Callable[[], bool]) -> None:
    for _ in range(1000):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came true")


@asynccontextmanager
async def attacked(handler: Handler = echo, **bounds: float) -> AsyncIterator[Attacked]:
    under = Attacked(handler, **bounds)
    await under.server.start()
    try:
        async with asyncio.timeout(30):
            yield under
    finally:
        for writer in under.writers:
            writer.close()
        await under.server.stop()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """What is sent until the connection ends."""
    said = b""
    try:
        while more := await reader.read(1 << 16):
            said += more
    except ConnectionError:
        pass
    return said


@pytest.mark.parametrize(
    "data",
    [
        b"P",
        HEAD + b"X-Long: 1",
        HEAD + b"Content-Length: 900\r\n\r\n" + b"x" * 800,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        HEAD + b"Content-Length: 900000\r\n\r\n" + b"x" * 800,
    ],
    ids=["a method", "a header", "a body", "a chunk", "a body over the bound"],
)
async def test_a_request_that_never_ends_is_ended(data: bytes) -> None:
    """From its first byte on its time runs, and the connection goes with it."""
    async with attacked() as under:
        reader, _ = await under.connect(data)
        await all_of(reader)


async def test_bytes_that_trickle_in_do_not_put_off_the_end() -> None:
    """Slow loris: each byte would begin the time anew, if time were counted from the last."""
    async with attacked() as under:
        reader, writer = await under.connect(HEAD)

        async def trickle() -> None:
            while True:
                writer.write(b"X: 1\r\n")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        await all_of(reader)
        trickling.cancel()
        assert under.counted("connections_dropped_total", reason="overdue") == 1


async def test_an_answer_that_nobody_takes_is_ended() -> None:
    """It would be kept for as long as the connection."""

    async def much(_: HttpRequest) -> Response:
        return Response(bytes(64 << 20))

    async with attacked(much) as under:
        _, writer = await under.connect(HEAD + b"Content-Length: 0\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: under.counted("connections_dropped_total", reason="overdue") == 1)


async def test_a_handshake_that_never_ends_is_ended(tmp_path: Path) -> None:
    """TLS begins before any request, and takes memory before it."""
    write_certificate(tmp_path, "name")
    certificate: Certificate = a_certificate(tmp_path)
    under = Attacked(echo)
    under.server = Server(
        "webhook", "127.0.0.1", 0, [], under.metrics, max_body=1, timeout=0.2, tls=certificate.context
    )
    await under.server.start()
    async with asyncio.timeout(30):
        reader, writer = await under.connect(b"\x16\x03\x01")
        assert await all_of(reader) == b""
        writer.close()
        assert under.counted("connections_dropped_total", reason="handshake") == 1
    await under.server.stop()


async def test_connections_over_the_bound_displace_those_that_idle() -> None:
    """And who comes then is answered."""
    async with attacked(connections=5, timeout=20) as under:
        idle = [await under.connect() for _ in range(5)]
        reader, _ = await under.connect(HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\nhi")

        assert (await all_of(reader)).endswith(b"\r\n\r\nhi")
        assert await all_of(idle[0][0]) == b""
        assert under.counted("connections_dropped_total", reason="crowded") == 1


async def test_bytes_over_the_bound_of_all_requests_displace_a_body_that_is_not_whole() -> None:
    """Each of them is small enough by itself."""
    async with attacked(max_body=100_000, at_once=200_000, timeout=20) as under:
        unfinished = HEAD + b"Content-Length: 90000\r\n\r\n" + b"x" * 80_000
        strangers = [(await under.connect(unfinished))[0] for _ in range(3)]

        assert await all_of(strangers[0]) == b""
        assert under.counted("connections_dropped_total", reason="crowded") == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "nonsense", "gzip, identity"])
async def test_a_compressed_body_is_refused_before_it_is_read(encoding: str) -> None:
    """A few bytes may become as much as memory holds."""
    async with attacked() as under:
        head = HEAD + b"Content-Encoding: " + encoding.encode() + b"\r\nContent-Length: 500\r\n\r\n"
        reader, _ = await under.connect(head)
        assert b" 415 " in await reader.readline()


@pytest.mark.parametrize(
    "data",
    [b"\x00" * 20_000, b"GET /" + b"\x01" * 20_000, HEAD + b"X: " + b"y" * 20_000, HEAD + b"\x1b[31m: 1\r\n\r\n"],
)
async def test_malformed_http_is_counted_and_answered_in_few_words(data: bytes) -> None:
    """No traceback, no word of it in the log unless at debug, and nothing at length."""
    async with attacked() as under:
        with capture_logs() as logs:
            reader, _ = await under.connect(data)
            said = await all_of(reader)

        assert said.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
        assert len(said) < 1000
        assert b"\x1b" not in said
        assert under.counted("malformed_requests_total") == 1
        assert [each["log_level"] for each in logs if "exc_info" in each] == []
        assert {each["log_level"] for each in logs} == {"debug"}
        assert all(len(str(each)) < 1000 for each in logs)


async def test_a_sender_that_goes_in_the_middle_is_no_error_of_ours() -> None:
    """Strangers do so at will: a traceback each time would fill the log."""
    async with attacked(timeout=20) as under:
        with capture_logs() as logs:
            _, writer = await under.connect(HEAD + b"Content-Length: 900\r\n\r\nx")
            await asyncio.sleep(0.1)
            writer.transport.abort()
            await until(lambda: under.answered("error") == 1)
        assert logs == []


async def test_a_body_with_broken_chunks_ends_with_its_request() -> None:
    """And is no fault of ours."""
    async with attacked() as under:
        reader, writer = await under.connect(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"zz\r\n")
        assert b" 500 " not in await all_of(reader)


async def test_a_fault_of_ours_is_told_once_and_then_counted() -> None:
    """Whoever finds one must not fill the disk with its traceback."""

    async def faulty(_: HttpRequest) -> Response:
        raise ZeroDivisionError

    async with attacked(faulty) as under:
        with capture_logs() as logs:
            for _ in range(3):
                reader, _ = await under.connect(HEAD + b"Content-Length: 0\r\n\r\n")
                assert b" 500 " in await reader.readline()
        assert [each["event"] for each in logs] == ["Failed to answer a request"]


async def test_a_client_that_leaves_before_its_answer_is_no_fault() -> None:
    """As one does that asks whether it may go on (Expect: 100-continue) and is gone when it is told."""

    async def gone(_: HttpRequest) -> Response:
        raise ConnectionResetError("Cannot write to closing transport")

    async with attacked(gone) as under:
        with capture_logs() as logs:
            reader, _ = await under.connect(HEAD + b"Content-Length: 0\r\n\r\n")
            await all_of(reader)
        assert [(each["event"], each["log_level"]) for each in logs] == [("Lost the client before its answer", "debug")]


@pytest.mark.parametrize("ending", ["cut off by us", "given up by them"])
async def test_what_was_sent_of_an_unfinished_body_is_forgotten_with_it(ending: str) -> None:
    """At once, not when garbage is collected next: memory is bounded only if what ended is gone."""
    size, number = 1 << 20, 20

    async def half_a_body() -> None:
        reader, writer = await under.connect(HEAD + b"Content-Length: %d\r\n\r\n" % (2 * size) + bytes(size))
        await writer.drain()
        if ending == "cut off by us":
            await all_of(reader)
        else:
            await asyncio.sleep(0.05)
            writer.transport.abort()

    timeout, room = 0.5 if ending == "cut off by us" else 20, 3 * number * size
    async with attacked(max_body=2 * size, timeout=timeout, at_once=room) as under:
        await asyncio.sleep(0)
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            await asyncio.gather(*(half_a_body() for _ in range(number)))
            await asyncio.sleep(0.1)
            # On a busy machine the server learns of it later; meanwhile nothing collects garbage.
            await until(lambda: tracemalloc.get_traced_memory()[0] < 4 * size)
        finally:
            tracemalloc.stop()
            gc.enable()


async def test_a_large_body_that_is_refused_is_taken_until_its_sender_reads() -> None:
    """Who sends it first and reads then would meet a broken connection instead of the reason."""
    async with attacked(max_body=1000, timeout=20) as under:
        reader, writer = await under.connect(HEAD + b"Content-Length: 900000\r\n\r\n")
        for _ in range(9):
            writer.write(b"x" * 1000)
            await writer.drain()
            await asyncio.sleep(0.02)
        assert b" 413 " in await reader.readline()


@pytest.mark.parametrize("draining", [True, False])
async def test_a_body_that_comes_behind_its_head_is_read_where_the_connection_ends_with_the_answer(
    draining: bool,
) -> None:
    """As that of HTTP/1.0 does, or of a server that is stopped."""
    async with attacked(timeout=20) as under:
        if draining:
            under.server.draining = True
        head = HEAD if draining else HEAD.replace(b"1.1", b"1.0")
        reader, writer = await under.connect(head + b"Content-Length: 5\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"hello")
        said = await all_of(reader)
        assert b" 200 " in said.splitlines()[0]
        assert said.endswith(b"\r\nConnection: close\r\n\r\nhello")


async def test_a_refused_request_is_answered_once() -> None:
    """Also when its body never ends."""
    async with attacked() as under:
        reader, _ = await under.connect(HEAD + b"Content-Length: 900000\r\n\r\n" + b"x" * 800)
        said = await all_of(reader)
        assert said.count(b"HTTP/1.1 ") == 1
        assert b" 413 " in said.splitlines()[0]


async def test_a_head_in_several_packets_may_be_as_long_as_one_in_one() -> None:
    """And no longer: that connection is closed in the middle of it."""
    async with attacked(timeout=20) as under:
        for number, refused in ((12, 0), (20, 1)):
            reader, writer = await under.connect(HEAD + b"Connection: close\r\nContent-Length: 0\r\n")
            for _ in range(number):
                writer.write(b"X: " + b"y" * 1000 + b"\r\n")
                await asyncio.sleep(0.01)
            writer.write(b"\r\n")
            assert (b" 200 " in await all_of(reader)) == (not refused)
            assert under.counted("malformed_requests_total") == refused
