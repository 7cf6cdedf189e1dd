"""Bad HTTP: what could be read in two ways is refused, and nothing behind it is taken for a request.

The cases are of the kinds that llhttp's and aiohttp's suites have: lengths, chunks, lines, names, versions.
"""

import asyncio

import pytest

from deviceshare.web.messages import HttpRequest, Response
from tests.unit.web.test_connection_bounds import all_of, attacked

LINE = b"POST /echo HTTP/1.1\r\n"
HEAD = LINE + b"Host: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BEHIND = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nsmuggled"

BAD = {
    "a length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "two equal lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "a negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "a length with a sign": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "a hexadecimal length": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "a length with an exponent": HEAD + b"Content-Length: 1e1\r\n\r\nhello",
    "a length of 70 bits": HEAD + b"Content-Length: 1180591620717411303424\r\n\r\n",
    "a length of two words": HEAD + b"Content-Length: 4 2\r\n\r\nhello",
    "no length in its line": HEAD + b"Content-Length:\r\n\r\n",
    "chunks that are not last": HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunks under another name": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks behind a vertical tab": HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks and then something": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a blank before the colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a blank in a name": HEAD + b"Content Length: 5\r\n\r\nhello",
    "a name with a control character": HEAD + b"X\x00Y: 1\r\n\r\n",
    "a name beyond ASCII": HEAD + b"X\xe9: 1\r\n\r\n",
    "no name": HEAD + b": 1\r\n\r\n",
    "no colon": HEAD + b"X\r\n\r\n",
    "a value with NUL": HEAD + b"X: a\x00b\r\n\r\n",
    "a value with a bare CR": HEAD + b"X: a\rContent-Length: 5\r\n\r\nhello",
    "a folded line": HEAD + b"X: 1\r\n Content-Length: 5\r\n\r\nhello",
    "a folded first line": LINE + b" Host: x\r\n\r\n",
    "a head that ends with CR CR": HEAD + b"X: 1\r\r\n\r\n",
    "lines that end with LF": b"POST /echo HTTP/1.1\nHost: x\nContent-Length: 0\n\n",
    "an empty line that ends with LF": HEAD + b"Content-Length: 0\r\n\n",
    "a chunk's size with a sign": CHUNKED + b"+1\r\na\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\na\r\n0\r\n\r\n",
    "a chunk's size with 0x": CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    "a chunk's size with a blank": CHUNKED + b"1 \r\na\r\n0\r\n\r\n",
    "a chunk's size with an underscore": CHUNKED + b"0_1\r\na\r\n0\r\n\r\n",
    "a chunk's size that is no number": CHUNKED + b"zz\r\n",
    "a chunk without a size": CHUNKED + b"\r\na\r\n0\r\n\r\n",
    "a chunk of 70 bits": CHUNKED + b"FFFFFFFFFFFFFFFFFF\r\na\r\n0\r\n\r\n",
    "a chunk's line that ends with LF": CHUNKED + b"1\na\r\n0\r\n\r\n",
    "a chunk that ends with LF": CHUNKED + b"1\r\na\n0\r\n\r\n",
    "a chunk that is longer than it says": CHUNKED + b"1\r\nab\r\n0\r\n\r\n",
    "a chunk's extension with LF": CHUNKED + b"1;x\ny\r\na\r\n0\r\n\r\n",
    "an unknown method": b"HOCUS /echo HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method in lower case": b"post /echo HTTP/1.1\r\nHost: x\r\n\r\n",
    "a method with a control character": b"PO\x01ST /echo HTTP/1.1\r\nHost: x\r\n\r\n",
    "no target": b"POST HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target with a blank": b"POST /ec ho HTTP/1.1\r\nHost: x\r\n\r\n",
    "a target with a control character": b"POST /ec\x01ho HTTP/1.1\r\nHost: x\r\n\r\n",
    "no version": b"POST /echo\r\nHost: x\r\n\r\n",
    "version 2": b"POST /echo HTTP/2.0\r\nHost: x\r\n\r\n",
    "a version of one number": b"POST /echo HTTP/1\r\nHost: x\r\n\r\n",
    "a version of many digits": b"POST /echo HTTP/1.11\r\nHost: x\r\n\r\n",
    "a body for another protocol": HEAD + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
    "TLS on a port without": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no host": LINE + b"Content-Length: 0\r\n\r\n",
    "two hosts": HEAD + b"Host: y\r\nContent-Length: 0\r\n\r\n",
    "an empty host": LINE + b"Host:\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
async def test_bad_http_is_refused_and_nothing_behind_it_is_a_request(data: bytes) -> None:
    """One that a proxy in front and this server read in two ways would let a stranger speak in another's name."""
    async with attacked(timeout=5) as under:
        reader, _ = await under.connect(data + BEHIND)
        said = await all_of(reader)

        assert said.count(b"HTTP/1.1 ") == 1
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"Connection: close" in said
        assert b"smuggled" not in said
        assert under.counted("malformed_requests_total") == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (HEAD + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\nhi", b"417"),
        (b"POST /no-such HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", b"404"),
        (b"PUT /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", b"405"),
        (b"POST http://x/echo?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi", b"200"),
        (b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", b"200"),
        (b"\r\n\r\n" + HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\nhi", b"200"),
        (b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", b"405"),
        (HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2;a=b\r\nhi\r\n0\r\nT: 1\r\n\r\n", b"200"),
    ],
)
async def test_unusual_http_is_answered(data: bytes, status: bytes) -> None:
    """And the connection ends behind it."""
    async with attacked(timeout=5) as under:
        reader, _ = await under.connect(data)
        said = await all_of(reader)
        assert said.split(b" ")[1] == status
        assert said.endswith(b"\r\n\r\nhi") == (status == b"200")


async def test_a_client_that_asks_whether_to_go_on_is_told_so() -> None:
    """As curl does with a large body."""
    async with attacked(timeout=5) as under:
        reader, writer = await under.connect(HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hi")
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200 ")


async def test_what_comes_behind_a_request_is_answered_after_it() -> None:
    """One connection serves one request after the other, also where the second comes before the first's answer."""
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow_echo(request: HttpRequest) -> Response:
        entered.set()
        await leave.wait()
        return Response(request.body)

    request = HEAD + b"Content-Length: 1\r\n\r\n"
    async with attacked(slow_echo, timeout=5) as under:
        reader, writer = await under.connect(request + b"a")
        await entered.wait()
        writer.write(request + b"b")
        await asyncio.sleep(0.05)
        leave.set()
        for body in (b"a", b"b"):
            assert (await reader.readuntil(b"\r\n\r\n" + body)).startswith(b"HTTP/1.1 200 ")


async def test_two_requests_in_one_packet_are_not_both_read() -> None:
    """The first is answered, and its client asks the second again on another connection."""
    request = HEAD + b"Content-Length: 1\r\n\r\na"
    async with attacked(timeout=5) as under:
        reader, _ = await under.connect(request * 2)
        said = await all_of(reader)
        assert said.count(b"HTTP/1.1 200 ") == 1
        assert b"Connection: close" in said
