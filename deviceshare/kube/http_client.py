"""The HTTP/1.1 client: a pool of connections to one server, proxies, and streams (RFC 9110, RFC 9112).

It reads with httptools, as our server does (web/server.py), and does no more than the API server needs: an answer costs
a fraction of the processor time that it takes with aiohttp's client. Nothing is retried here.
"""

import asyncio
import base64
import socket
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import aiohappyeyeballs
import httptools

CONNECT_SECONDS: Final = 3.0
"""For a connection; the server is near or it is down."""
POOL_SIZE: Final = 256
KEEPALIVE: Final = 60.0
"""Seconds an idle connection is kept: less than the API server's 90, so that it doesn't close one under a write."""
BUFFER: Final = 1 << 20
"""Bytes of a stream that are read ahead of who takes them."""
_NEXT_ADDRESS: Final = 0.25
"""Seconds after which a server's next address is tried as well (RFC 8305)."""


class TooLong(Exception):
    """An answer has more bytes than may be read."""


class HttpAnswer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: bytes


class Wire(asyncio.Protocol):
    """One connection, on which requests are answered one after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._fault: Exception | None = None
        self._whole, self._keeps, self._streams, self._paused = True, True, False, False
        self._size = self._most = 0
        self._parts: list[bytes] = []
        self.status = 0
        """Of the answer; 0 until its headers have arrived."""
        self.headers: dict[str, str] = {}
        self.idle_since = 0.0

    def send(self, request: bytes, *, most: int = 0, streams: bool = False) -> None:
        """Sends the whole of a request; an answer of more than `most` bytes is a fault, unless that is 0."""
        if self._fault:
            raise self._fault
        self.status, self.headers, self._parts, self._size, self._most = 0, {}, [], 0, most
        self._whole, self._keeps, self._streams = False, False, streams
        self._transport.write(request)

    async def head(self) -> None:
        """Returns when the answer's status and headers are there. Raises OSError."""
        while not self.status:
            await self._change()

    async def body(self) -> bytes:
        """The whole body. Raises OSError or TooLong."""
        while not self._whole:
            await self._change()
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    async def chunks(self, quiet: float) -> AsyncIterator[bytes]:
        """The body as it arrives; raises TimeoutError after so many seconds without a byte, or another OSError."""
        while True:
            parts, self._parts, self._size = self._parts, [], 0
            if self._paused and not self._fault:
                self._paused = False
                self._transport.resume_reading()
            for part in parts:
                yield part
            if not self._parts:
                if self._whole:
                    return
                try:
                    async with asyncio.timeout(quiet):
                        await self._change()
                except TimeoutError:
                    raise TimeoutError(f"silent for {quiet:g} s") from None

    @property
    def reusable(self) -> bool:
        """Whether another request may follow."""
        return self._whole and self._keeps and self._fault is None

    async def secured(self, tls: ssl.SSLContext, name: str) -> "Wire":
        """The connection through this one, which a proxy has joined to the server of this name."""
        inner = Wire()
        inner._transport = await self._loop.start_tls(self._transport, inner, tls, server_hostname=name)
        return inner

    def close(self) -> None:
        """At once: a goodbye of TLS would wait for the peer's, 30 s if that hangs, and beyond the event loop's end."""
        if self._transport is not None:
            self._transport.abort()

    async def _change(self) -> None:
        if self._fault:
            raise self._fault
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            if self._whole:
                raise ConnectionError("an answer to nothing")
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            why = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else None
            self._fault = why if isinstance(why, TooLong) else ConnectionError(f"malformed HTTP: {error}")
        except (ConnectionError, httptools.HttpParserUpgrade) as error:
            self._fault = ConnectionError(str(error))
        if self._fault:
            self.close()
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        ends = self.status and not {"content-length", "transfer-encoding"} & self.headers.keys()
        if ends and exc is None and not self._fault:
            self._whole = True  # by the end of the connection
        self._fault = self._fault or ConnectionResetError(str(exc or "the server closed the connection"))
        # The parser refers to its connection: without this, both would be kept until garbage is collected.
        self._parser = None
        self._wake()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._whole:
            raise ConnectionError("two answers to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
            if self._streams:
                self._wake()

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)
        if self._most and self._size > self._most:
            raise TooLong
        if self._streams:
            if self._size > BUFFER and not self._paused:
                self._paused = True
                self._transport.pause_reading()
            self._wake()

    def on_message_complete(self) -> None:
        if not self.status:
            self.headers = {}  # an interim answer, as 103 is
            return
        self._whole, self._keeps = True, self._parser.should_keep_alive()
        self._wake()


class HttpClient:
    """Sends requests to one server, over connections that are kept."""

    def __init__(
        self,
        server: str,
        tls: ssl.SSLContext | None,
        headers: Mapping[str, str],
        *,
        server_name: str | None = None,
        proxy: str | None = None,
    ) -> None:
        """`server` may have a path, below which all is; `headers` are sent with each request.

        `server_name` is that in the server's certificate, where it isn't the server's.
        """
        self._server = urlsplit(server)
        # As curl has it, a proxy without a scheme speaks HTTP.
        self._proxy = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None
        self._tls = tls if self._server.scheme == "https" else None
        self._name = server_name or self._server.hostname or ""
        self._host = self._server.netloc.rpartition("@")[2]
        self._begin = self._server.path.rstrip("/")
        sent = {"Host": self._host, **headers}
        if self._proxy and not self._tls:
            self._begin = f"{self._server.scheme}://{self._host}{self._begin}"
            sent |= _credentials(self._proxy)
        self._fixed = _lines(sent)
        self._idle: deque[Wire] = deque()
        """The one that was used last is the last, and is used first."""
        self._slots = asyncio.Semaphore(POOL_SIZE)

    async def call(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None = None, *, most: int = 0
    ) -> HttpAnswer:
        """The whole answer. Raises OSError, or TooLong where it has more than `most` bytes, if that is given."""
        request = self._request(method, target, headers, body)
        async with self._slots:
            wire = self._kept() or await self._connect()
            try:
                wire.send(request, most=most)
                body = await wire.body()
            except BaseException:
                wire.close()
                raise
            if wire.reusable:
                wire.idle_since = time.monotonic()
                self._idle.append(wire)
            else:
                wire.close()
            return HttpAnswer(wire.status, wire.headers, body)

    @asynccontextmanager
    async def stream(self, target: str, headers: Mapping[str, str]) -> AsyncIterator[Wire]:
        """A connection of its own with the answer to a GET, whose body is still to be read. Raises OSError."""
        wire = await self._connect()
        try:
            wire.send(self._request("GET", target, headers, None), streams=True)
            await wire.head()
            yield wire
        finally:
            wire.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _request(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        length = f"Content-Length: {len(body)}\r\n" if body is not None else ""
        head = f"{method} {self._begin}{target} HTTP/1.1\r\n{self._fixed}{_lines(headers)}{length}\r\n"
        return head.encode() + (body or b"")

    def _kept(self) -> Wire | None:
        oldest = time.monotonic() - KEEPALIVE
        while self._idle and (not self._idle[0].reusable or self._idle[0].idle_since < oldest):
            self._idle.popleft().close()
        while self._idle:
            if (wire := self._idle.pop()).reusable:
                return wire
        return None

    async def _connect(self) -> Wire:
        if self._proxy is None:
            return await _opened(self._server, self._tls, self._name)
        if self._proxy.scheme not in ("http", "https"):
            raise ConnectionError(f"the proxy is {self._proxy.scheme}://…, and only http and https are spoken here")
        by = ssl.create_default_context() if self._proxy.scheme == "https" else None
        wire = await _opened(self._proxy, by, self._proxy.hostname or "")
        if self._tls is None:
            return wire
        try:
            there = f"{self._host}{'' if self._server.port else ':443'}"
            head = f"CONNECT {there} HTTP/1.1\r\n{_lines({'Host': there, **_credentials(self._proxy)})}\r\n"
            wire.send(head.encode(), streams=True)
            await wire.head()
            if wire.status != 200:
                raise ConnectionError(f"the proxy {self._proxy.hostname} answered {wire.status}")
            return await wire.secured(self._tls, self._name)
        except BaseException:
            wire.close()
            raise


def _lines(headers: Mapping[str, str]) -> str:
    """Raises ValueError for a value that would end its line."""
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ValueError(f"{name} has a line break in it")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


async def _opened(server: SplitResult, tls: ssl.SSLContext | None, name: str) -> Wire:
    loop = asyncio.get_running_loop()
    port = server.port or (443 if tls else 80)
    secure: dict[str, Any] = {"ssl": tls, "server_hostname": name} if tls else {}
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            found = await loop.getaddrinfo(server.hostname, port, type=socket.SOCK_STREAM)
            connected = await aiohappyeyeballs.start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS)
            try:
                return (await loop.create_connection(Wire, sock=connected, **secure))[1]
            except BaseException:
                with suppress(OSError):
                    connected.close()
                raise
    except (OSError, RuntimeError) as error:
        # uvloop's RuntimeError is "File descriptor 20 is used by transport", that of a connection which was given up a
        # moment ago and isn't closed yet. The next attempt gets another, or finds it closed.
        why = str(error) or f"none within {CONNECT_SECONDS:g} s"
        raise ConnectionError(f"no connection to {server.hostname}:{port}: {why}") from error
