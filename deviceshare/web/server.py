"""An HTTP server for some routes: requests are measured, and bounded in size, number and time."""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from deviceshare.metrics import ServerMetrics
from deviceshare.web.address_turns import AddressTurns
from deviceshare.web.crowd import Crowd, CrowdBounds
from deviceshare.web.listener import Listener
from deviceshare.web.quoting import quoted
from deviceshare.web.visit import ServerContext, Visit

log = structlog.get_logger(__name__)

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
