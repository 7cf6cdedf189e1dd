"""The server: HTTP/1.1 and HTTPS with bounds on all that strangers send (RFC 9110, RFC 9112)."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from time import time
from typing import Any, Final

import httptools
import structlog

from deviceshare.metrics import ServerMetrics
from deviceshare.web.crowd import AddressTurns, Crowd, Listener
from deviceshare.web.messages import Handler, Headers, HttpRequest, Refusal, Repeats, Response, Route, plain, quoted

log = structlog.get_logger(__name__)

# A connection, bounded in time from its acceptance to its end whatever the client does. The time of a request counts
# from its first byte, and then the connection is closed, be it in the middle of a head, a body or an answer. Requests
# are answered one after the other: what arrives meanwhile is read afterwards.

_HEAD: Final = 16 << 10
"""Bytes of a request's line and headers."""
_TOO_LONG: Final = "its head is too long"
_LARGE: Final = 64 << 10
"""Bytes from which a body isn't copied behind its head."""
KEEP_ALIVE: Final = 150.0
"""Seconds an idle connection stays open. Go's clients close theirs after 90. A server that closed first would lose a
request sent at that moment, and Go doesn't retry a POST."""
GRACE: Final = 0.5
"""Seconds, after a request's timeout, to send the answer 503."""


class ServedConnection(asyncio.Protocol):
    """One connection, created when it is accepted, before its handshake."""

    def __init__(self, server: "Server", address: str) -> None:
        self.address = address
        self.answered = False
        self.transport: asyncio.Transport | None = None
        self._bounded, self._streams = True, False
        """Whether the answer under way has a timeout, and whether it comes in parts."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._handshake = asyncio.current_task()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._arriving: HttpRequest | None = None
        self._target, self._parts, self._size = b"", list[bytes](), 0
        self._unfinished = 0
        """Bytes that have arrived of a head that isn't whole."""
        self._answering: asyncio.Task[None] | None = None
        self._later: list[bytes] = []
        """What has arrived behind the request that is being answered."""
        self._stays = True
        """Whether the connection stays open after the answer under way."""
        self._refused = self._late = self._busy = False
        """Busy is a connection from the first byte of a request to the end of its answer."""
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fires = self._due = 0.0
        """When the timer fires, and when the connection is overdue, which is no earlier."""

    # What the event loop and the crowd call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self._handshake = transport, None  # type: ignore[assignment] # it is a stream's
        self._server.open.add(self)
        self._end_at(self._loop.time() + KEEP_ALIVE)

    def data_received(self, data: bytes) -> None:
        if not self._server.crowd.take(self, len(data)):
            self._server.crowd.leave(self)
            self.drop("crowded")
        elif self._answering is not None:
            self._later.append(data)
            self.transport.pause_reading()  # type: ignore[union-attr] # there until the connection is lost
        elif self._stays or self._arriving is not None:
            self._feed(data)

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 the protocol has it
        self._server.crowd.leave(self)
        self._server.open.discard(self)
        if self._answering is None:
            self._stop_timer()
        if self._arriving is not None and self._arriving.method and not self._refused:
            self._server.count(self._arriving)
        # The parser refers to its connection: without this, a body would be kept until garbage is collected.
        self._parser = self._arriving = self.transport = None
        self._parts, self._later = [], []
        self.resume_writing()

    def drop(self, reason: str) -> None:
        """Closes the connection at once, whatever is under way."""
        self._server.count_dropped(reason)
        if self.transport is not None:
            self.transport.abort()
        elif self._handshake is not None:
            self._handshake.cancel()

    def finish(self) -> asyncio.Task[None] | None:
        """Ends the connection with the answer under way; its task."""
        self._stays = False
        if self._answering is None and self.transport is not None:
            self.transport.close()
        return self._answering

    # What handlers call.

    def set_option(self, level: int, option: int, value: int) -> None:
        connected = self.transport.get_extra_info("socket") if self.transport else None
        if connected is not None:
            connected.setsockopt(level, option, value)

    def remove_timeout(self) -> None:
        self._bounded = False

    async def begin_stream(self, headers: Headers) -> None:
        self._streams, self._stays = True, False
        await self.write(_head(200, headers, None, close=True))

    async def write(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        self.transport.write(data)
        if self._drained is not None:
            await self._drained

    # The time.

    def _end_at(self, when: float) -> None:
        self._due = when
        if self._timer is not None and self._fires <= when:
            return  # one timer serves many requests: it looks again when it fires
        self._stop_timer()
        self._fires = when
        self._timer = self._loop.call_at(when, self._overdue)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        self._timer = None
        if self._loop.time() < self._due:
            self._end_at(self._due)
        elif not self._bounded:
            pass  # a stream, which ends itself
        elif not self._busy:
            self.finish()
        elif self._late:
            self._server.crowd.leave(self)
            self.drop("overdue")
        else:
            self._late, self._stays = True, False
            self._end_at(self._due + GRACE)
            if self._answering is not None and self._drained is None:
                self._answering.cancel()
            elif self._arriving is not None and self._arriving.method and not self._refused:
                self._refuse(self._too_late())

    def _too_late(self) -> Response:
        return plain(f"deviceshare had no answer within {self._server.timeout:g} s\n", 503)

    # What arrives. The parser calls the methods that begin with `on_`, and turns what they raise into its own errors.

    def _feed(self, data: bytes) -> None:
        if not self._busy:
            self._busy = True
            self._end_at(self._loop.time() + self._server.timeout)
        fault = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._stays = False  # what follows may be another protocol, which we don't speak
        except httptools.HttpParserError as error:
            fault = quoted(error.__context__ or error)
        if self._arriving is not None and not self._arriving.method:
            self._unfinished += len(data)
            fault = fault or (_TOO_LONG if self._unfinished > _HEAD else "")
        if fault and (self._stays or self._arriving is not None):
            self._reject(fault)

    def _reject(self, fault: str) -> None:
        """Ends the connection, of which nothing more can be understood, with the answer under way."""
        self._server.metrics.malformed.labels(self._server.name).inc()
        log.debug("Received malformed HTTP", server=self._server.name, peer=self.address, error=fault)
        self._stays, self._arriving = False, None
        if self._answering is None:
            if not self._refused:
                self._write(plain(f"malformed HTTP: {fault}\n", 400))
            self.finish()

    def on_message_begin(self) -> None:
        if self._answering is not None:
            self._stays = False  # sent with the one before, without a look at its answer: not read (RFC 9112, 9.3.2)
            return
        self._arriving = HttpRequest(self)
        self._target, self._parts, self._size = b"", [], 0

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._arriving is None or self._arriving.method:
            return  # a trailer
        self._size += len(name) + len(value)
        headers, key, text = self._arriving.headers, name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text

    def on_headers_complete(self) -> None:
        request, target = self._arriving, self._target
        if request is None:
            return
        if not target.startswith(b"/"):
            url = httptools.parse_url(target)
            target = (url.path or b"/") + b"?" + (url.query or b"")
        request.path, _, request.query_string = target.decode("latin-1").partition("?")
        headers, version = request.headers, self._parser.get_http_version()
        if self._size + len(target) > _HEAD:
            raise ValueError(_TOO_LONG)
        if version not in ("1.0", "1.1"):
            raise ValueError(f"version {version} is not spoken here")
        if "," in (host := headers.get("host", "")) or not (host or version == "1.0"):
            raise ValueError("it names no host, or several")
        if self._parser.should_upgrade() and {"content-length", "transfer-encoding"} & headers.keys():
            raise ValueError("it has a body, and asks for another protocol")  # the parser doesn't read such a body
        request.method, self._size, self._unfinished = self._parser.get_method().decode(), 0, 0
        if version == "1.0" or self._server.draining:
            self._stays = False
        if (encoding := headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            self._refuse(plain(f"Content-Encoding {quoted(encoding)} is not accepted: send the body as it is\n", 415))
        elif int(headers.get("content-length", 0)) > self._server.max_body:
            self._refuse(self._too_large())
        elif (expected := headers.get("expect", "100-continue").lower()) != "100-continue":
            self._refuse(plain(f"Expect {quoted(expected)} is not known\n", 417))
        elif "expect" in headers and self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._arriving is None or self._refused:
            return  # a refused one is read to its end, or its sender would miss the answer
        self._parts.append(body)
        self._size += len(body)
        if self._size > self._server.max_body:
            self._refuse(self._too_large())

    def _too_large(self) -> Response:
        return plain(f"the body has more than {self._server.max_body} bytes\n", 413)

    def _refuse(self, response: Response) -> None:
        """Answers the request that arrives before it is whole."""
        assert self._arriving is not None, "what is refused arrives"
        self._refused, self._stays, self._parts = True, False, []
        self._server.count(self._arriving)
        self._write(response)

    def on_message_complete(self) -> None:
        request, self._arriving = self._arriving, None
        if not self._parser.should_keep_alive():
            self._stays = False
        if self._refused:
            self.finish()
        elif request is not None:
            request.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._answering = self._loop.create_task(self._answer(request), name=f"answer {self._server.name}")

    # What is answered.

    async def _answer(self, request: HttpRequest) -> None:
        try:
            verb, handler = self._server.find(request)
            with self._server.metrics.request(verb) as measured:
                response = await self._respond(request, handler)
                if response is not None:
                    measured.result = response.result or ("ok" if response.status < 400 else "error")
            self._stays = self._stays and response is not None and not self._server.draining
            if response is not None and not self._streams:
                self._write(response, bodiless=request.method == "HEAD")
                if self._drained is not None:
                    await self._drained
        finally:
            self._answering = None
            self._server.crowd.settle(self)
            self.answered, self._bounded = False, True
            self._read_on()

    async def _respond(self, request: HttpRequest, handler: Handler) -> Response | None:
        server = self._server
        try:
            await server.turns.turn(self.address, server.tenant(request.body))
            self.answered = True
            return await handler(request)
        except Refusal as refusal:
            return refusal.response
        except asyncio.CancelledError:
            if not self._late:
                raise
            return self._too_late()
        except ConnectionError as error:
            log.debug("Lost the client before its answer", server=server.name, error=quoted(error))
            return None
        except Exception as error:  # noqa: BLE001 it is logged
            # At a limited rate: a client that can cause one must not fill the log.
            text, path = "Failed to answer a request", request.path
            server.repeats.write(log.error, text, server=server.name, path=path, exc_info=error)
            return plain("deviceshare failed to answer; its log says why\n", 500)

    def _write(self, response: Response, *, bodiless: bool = False) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        body = response.body
        head = _head(response.status, response.headers, len(body), close=not self._stays)
        if bodiless or len(body) > _LARGE:
            self.transport.write(head)
            head = b""
        if not bodiless:
            self.transport.write(head + body if head else body)

    def _read_on(self) -> None:
        """Reads the next request, or ends the connection."""
        if self.transport is None:
            self._stop_timer()
        elif not self._stays or self.transport.is_closing():
            self._end_at(self._loop.time() + GRACE)
            self.transport.close()
        else:
            self._busy = False
            self._end_at(self._loop.time() + KEEP_ALIVE)
            if later := b"".join(self._later):
                self._later = []
                self.transport.resume_reading()
                self._feed(later)


_LINES: Final = {each.value: f"HTTP/1.1 {each.value} {each.phrase}\r\n" for each in HTTPStatus}


def _head(status: int, headers: Headers, length: int | None, *, close: bool) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    size = "" if length is None else f"Content-Length: {length}\r\n"
    end = "Connection: close\r\n\r\n" if close else "\r\n"
    return f"{_LINES[status]}{lines}{size}Date: {_date(int(time()))}\r\n{end}".encode("latin-1")


@lru_cache(1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


# A server for some routes.

_REQUEST: Final = 64 << 10
"""Bytes of a request besides its body. The codes of chunks are a few bytes each: an eighth of the body is enough."""
_HANDSHAKE: Final = 5.0
"""Seconds, at most, for a TLS handshake."""
_TLS_SHUTDOWN: Final = 1.0
"""Seconds for the closing of a TLS connection; asyncio's default for a silent client is 30."""


class CannotListen(Exception):
    """The address is in use or not this machine's."""


class Server:
    """Serves `routes` on one address, over TLS where there is a context for it.

    A body of more than `max_body` bytes is answered 413, a compressed one 415; a request that takes longer than
    `timeout` seconds from its first byte 503, or its connection is closed if its head isn't whole by then. At most
    `connections` are open, `per_address` of them (all, unless given) of one client, and `at_once` bytes (eight bodies,
    unless given) of requests under way are held; `Crowd` chooses which connections are closed at these limits.
    Requests are counted under the name of their path: `/filter` is the verb `filter`.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        routes: Iterable[Route],
        metrics: ServerMetrics,
        *,
        max_body: int,
        timeout: float,
        connections: int = 128,
        per_address: int = 0,
        at_once: int = 0,
        tls: ssl.SSLContext | None = None,
        flag: str = "",
        tenant: Callable[[bytes], str] = lambda _: "",
    ) -> None:
        """`flag` is the one that chooses the address, `--NAME-bind` unless given.

        `tenant` says by a request's body for whom its address asks: tenants take turns.
        """
        self.name, self.metrics, self.max_body, self.timeout, self.tenant = name, metrics, max_body, timeout, tenant
        self.turns, self.repeats = AddressTurns(), Repeats()
        self.draining = False
        """Whether each answer closes its connection, so that clients connect to another replica. Otherwise a request
        sent on a connection just when `stop` closes it would be lost."""
        self.open = set[ServedConnection]()
        request = max_body + max_body // 8 + _REQUEST
        self.crowd = Crowd(connections, request, max(at_once or 8 * max_body, request), per_address)
        self._routes = {(each.method, each.path): (each.path.strip("/") or "root", each.handler) for each in routes}
        self._flag, self._host, self._tls = flag or f"--{name}-bind", host, tls is not None
        self.port = port
        """The port it listens on, once it does; where port 0 was requested, the one that the kernel chose."""
        options: dict[str, object] = {"ssl": tls, "ssl_shutdown_timeout": _TLS_SHUTDOWN}
        options["ssl_handshake_timeout"] = min(timeout, _HANDSHAKE)
        receive = partial(ServedConnection, self)
        self._listener = Listener(name, self.crowd, receive, self.count_dropped, **(options if tls else {}))

    async def start(self) -> None:
        """Starts to accept connections; raises CannotListen."""
        try:
            self.port = await self._listener.open(self._host, self.port)
        except OSError as error:
            raise CannotListen(
                f"{self.name}: can't listen on {self._host}:{self.port} ({error.strerror or error}); "
                f"choose another address with {self._flag}"
            ) from error
        log.info("Started server", server=self.name, host=self._host, port=self.port, tls=self._tls)

    async def stop(self) -> None:
        """Stops accepting, and waits for the requests under way, within their timeouts."""
        await self._listener.close()
        answering = [task for each in list(self.open) if (task := each.finish())]
        if answering:
            _, late = await asyncio.wait(answering, timeout=self.timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*answering, return_exceptions=True)
        for each in self.open:
            if each.transport is not None:
                each.transport.abort()
        log.info("Stopped server", server=self.name)

    def find(self, request: HttpRequest) -> tuple[str, Handler]:
        """The verb that the request is counted under, and who answers it.

        Only paths that are served become labels: otherwise any client could fill the registry.
        """
        method = "GET" if request.method == "HEAD" else request.method
        return self._routes.get((method, request.path)) or ("unknown", self._other)

    async def _other(self, request: HttpRequest) -> Response | None:
        if (others := self._routes.get(("*", "*"))) is not None:
            return await others[1](request)
        if allowed := sorted(method for method, path in self._routes if path == request.path):
            return plain("Method not allowed\n", 405, {"Allow": ", ".join(allowed)})
        return plain("Not found\n", 404)

    def count(self, request: HttpRequest) -> None:
        """Counts a request that wasn't whole when it was answered, or when its client left."""
        with self.metrics.request(self.find(request)[0]) as measured:
            measured.result = "error"

    def count_dropped(self, reason: str) -> None:
        """Counts a connection that is closed."""
        self.metrics.dropped.labels(self.name, reason).inc()
