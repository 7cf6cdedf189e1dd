"""The server: HTTP and HTTPS with bounds on all that strangers send."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from deviceshare.metrics import ServerMetrics
from deviceshare.web.connections import AddressTurns, Crowd, CrowdBounds, ServerContext, Visit
from deviceshare.web.quoting import quoted

# A listening socket, which accepts connections, limits them by client address, and performs their TLS handshakes.
# The event loop's own servers report a connection once its handshake is over. A handshake that never ends takes
# memory all the same, so the limits apply here, when a connection is accepted.

log = structlog.get_logger(__name__)

_BACKLOG: Final = 512
_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""A name such as localhost has an IPv6 address even where the kernel has no IPv6."""
_TLS_SHUTDOWN: Final = 1.0
"""Seconds for the closing of a TLS connection; asyncio's default for a silent client is 30."""


def _listening(family: int, protocol: int, address: Any) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


class Listener:
    """The sockets of one server. `receive` creates the handler of a connection from an address."""

    def __init__(
        self,
        context: ServerContext,
        receive: Callable[[str], Visit],
        *,
        tls: ssl.SSLContext | None,
        handshake_timeout: float,
    ) -> None:
        self._context = context
        self._receive = receive
        self._tls: dict[str, object] = {}
        if tls is not None:
            self._tls = {"ssl": tls, "ssl_handshake_timeout": handshake_timeout, "ssl_shutdown_timeout": _TLS_SHUTDOWN}
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, host: str, port: int) -> None:
        """Starts to accept connections; raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        missing = None
        try:
            for family, _, protocol, _, address in dict.fromkeys(found):
                try:
                    self._sockets.append(_listening(family, protocol, address))
                except OSError as error:
                    if error.errno not in _NOT_HERE:
                        raise
                    missing = error
            if missing is not None and not self._sockets:
                raise missing
        except OSError:
            await self.close()
            raise
        for listening in self._sockets:
            self._accepting.append(asyncio.create_task(self._accept(listening), name=f"accept {self._context.name}"))

    async def close(self) -> None:
        """Stops accepting, and aborts the handshakes under way."""
        tasks = [*self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        self._accepting.clear()
        self._sockets.clear()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except OSError as error:
                if not isinstance(error, ConnectionError):  # that is a client that closed its connection early
                    if (omitted := self._context.repeats.passes("accept")) is not None:
                        log.warning(
                            "Failed to accept a connection", server=self._context.name, error=str(error), **omitted
                        )
                    await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self._handshake(accepted, str(peer[0])))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            # While connections are queued, `sock_accept` returns at once: without a pause no other task would run, and
            # connections over the limit would not be closed.
            await asyncio.sleep(0)

    async def _handshake(self, accepted: socket.socket, address: str) -> None:
        visit = self._receive(address)
        if not self._context.crowd.enter(visit):
            self._context.count_dropped("crowded")
            accepted.close()
            return
        try:
            accepted.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: visit, accepted, **self._tls)  # type: ignore[arg-type]
        except (OSError, asyncio.CancelledError) as error:  # ssl.SSLError and TimeoutError are OSErrors
            self._context.crowd.leave(visit)
            with suppress(OSError):
                accepted.close()
            self._context.count_dropped("handshake")
            log.debug("Failed a TLS handshake", server=self._context.name, peer=address, error=quoted(error))
            if isinstance(error, asyncio.CancelledError):
                raise


# An HTTP server for some routes: requests are measured, and bounded in size, number and time.

RESULT: Final = web.ResponseKey("result", str)
"""Set on a response (`response[RESULT] = "refused"`), it is the label `result` in the request metrics."""

BOUND: Final = web.RequestKey("bound", asyncio.Timeout)
"""A request's timeout, which a handler that streams may remove: `request[BOUND].reschedule(None)`."""

_HEADERS: Final = 64 << 10
"""Bytes of a request besides its body."""
_HANDSHAKE: Final = 5.0
"""Seconds, at most, for a TLS handshake."""


class CannotListen(Exception):
    """The address is in use or not this machine's."""


class Server:
    """Serves `routes` on one address, over TLS where there is a context for it.

    A body of more than `max_body` bytes is answered 413, a compressed one 415; a request that takes longer than
    `timeout` seconds from its first byte 503, or its connection is closed if it isn't whole by then. At most
    `connections` are open, `per_address` of them (all, unless given) of one client, and `at_once` bytes (eight bodies,
    unless given) of requests under way are held; `Crowd` chooses which connections are closed at these limits.
    Requests are counted under the name of their path: `/filter` is the verb `filter`.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        routes: Iterable[web.AbstractRouteDef],
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
        self._name = name
        self._flag = flag or f"--{name}-bind"
        self._host = host
        self._port = port
        self._tls = tls is not None
        self._draining = False
        # Chunks cost a few bytes each: an eighth of the body is enough for any real client.
        request = max_body + max_body // 8 + _HEADERS
        crowd = Crowd(CrowdBounds(connections, request, max(at_once or 8 * max_body, request), per_address))
        self._context = ServerContext(name, timeout, crowd, metrics)
        app = web.Application(
            middlewares=[_bounded(metrics, max_body, timeout, AddressTurns(), tenant)], client_max_size=max_body
        )
        app.add_routes(routes)
        app.on_response_prepare.append(self._close_when_draining)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=timeout, handle_signals=False)
        handshake = min(timeout, _HANDSHAKE)
        self._listener = Listener(self._context, self._receive, tls=tls, handshake_timeout=handshake)

    @property
    def port(self) -> int:
        """The port it listens on; where port 0 was requested, the one that the kernel chose."""
        return self._listener.port

    async def start(self) -> None:
        """Starts to accept connections; raises CannotListen."""
        await self._runner.setup()
        try:
            await self._listener.open(self._host, self._port)
        except OSError as error:
            await self._runner.cleanup()
            raise CannotListen(
                f"{self._name}: can't listen on {self._host}:{self._port} ({error.strerror or error}); "
                f"choose another address with {self._flag}"
            ) from error
        log.info("Started server", server=self._name, host=self._host, port=self.port, tls=self._tls)

    def drain(self) -> None:
        """From now on each answer closes its connection, so that clients connect to another replica.

        Otherwise a request sent on a connection just when `stop` closes it would be lost.
        """
        self._draining = True

    async def stop(self) -> None:
        """Stops accepting, and waits for the requests under way, within their timeouts."""
        await self._listener.close()
        await self._runner.cleanup()
        log.info("Stopped server", server=self._name)

    def _receive(self, address: str) -> Visit:
        assert self._runner.server is not None, "connections are accepted after start only"
        return Visit(self._runner.server, self._context, address)

    async def _close_when_draining(self, _: web.Request, response: web.StreamResponse) -> None:
        if self._draining:
            response.headers["Connection"] = "close"
            response.force_close()


def _bounded(
    metrics: ServerMetrics, max_body: int, timeout: float, turns: AddressTurns, tenant: Callable[[bytes], str]
) -> Middleware:
    async def answer(request: web.Request, visit: Visit, handler: Handler) -> web.StreamResponse:
        _check_body(request, max_body)
        try:
            body = await request.read()  # bounded, and cached for the handlers
        except (web.RequestPayloadError, HttpProcessingError, ConnectionError) as error:
            error.with_traceback(None)  # aiohttp keeps the error with the request: its frames would be a cycle
            return web.Response(status=400, text=f"malformed body: {quoted(error)}\n")
        await turns.turn(visit.address, tenant(body))
        visit.answered = True
        return await handler(request)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        visit = request.protocol
        assert isinstance(visit, Visit)
        with metrics.request(_verb(request)) as measured:
            # A raised response becomes a plain one here: an exception refers to itself through its traceback, and would
            # keep megabytes of a body until the next garbage collection.
            try:
                async with asyncio.timeout_at(visit.begin()) as visit.bound:
                    request[BOUND] = visit.bound
                    response = await answer(request, visit, handler)
            except TimeoutError:
                response = web.Response(status=503, text=f"deviceshare had no answer within {timeout:g} s\n")
                response.force_close()
            except web.HTTPException as refusal:
                response = web.Response(status=refusal.status, text=refusal.text, headers=refusal.headers)
            measured.result = response.get(RESULT, "ok" if response.status < 400 else "error")
            return response

    return middleware


def _check_body(request: web.Request, max_body: int) -> None:
    """Refuses a body by its headers, before it is read."""
    encoding = request.headers.get("Content-Encoding", "")
    if encoding.strip().lower() not in ("", "identity"):
        text = f"Content-Encoding {quoted(encoding)} is not accepted: send the body as it is\n"
        raise web.HTTPUnsupportedMediaType(text=text)
    if (request.content_length or 0) > max_body:
        raise web.HTTPRequestEntityTooLarge(max_body, request.content_length or 0)


def _verb(request: web.Request) -> str:
    # Only paths that are served become labels: otherwise any client could fill the registry.
    resource = request.match_info.route.resource
    named = resource is not None and not isinstance(resource, web.DynamicResource)  # that is every other path
    return (resource.canonical.strip("/") or "root") if resource is not None and named else "unknown"
