"""A connection to a server, bounded in time from its acceptance to its end whatever the client does.

aiohttp's own handler of a connection (https://docs.aiohttp.org/en/stable/web_lowlevel.html) bounds the time between
requests only: a client that never ends its headers or body, or never reads its answer, stays connected. Here the time
of a request counts from its first byte, headers included, and then the connection is closed, be it in the middle of a
header, a body or an answer. Bodies are never decompressed.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from aiohttp import web

from deviceshare.metrics import ServerMetrics
from deviceshare.web.crowd import Crowd
from deviceshare.web.quoting import Repeats, quoted

log = structlog.get_logger(__name__)

KEEP_ALIVE: Final = 150.0
"""Seconds an idle connection stays open. Go's clients close theirs after 90. A server that closed first would lose a
request sent at that moment, and Go doesn't retry a POST."""
GRACE: Final = 0.5
"""Seconds, after a request's timeout, to send the answer 503."""


@dataclass(frozen=True)
class ServerContext:
    """What the connections of one server share."""

    name: str
    timeout: float
    """Seconds from the first byte of a request to its answer."""
    crowd: Crowd
    metrics: ServerMetrics
    repeats: Repeats = field(default_factory=Repeats)

    def count_dropped(self, reason: str) -> None:
        self.metrics.dropped.labels(self.name, reason).inc()


class Visit(web.RequestHandler):
    """The handler of one connection, created when it is accepted, before its handshake."""

    __slots__ = ("_closing", "_context", "_due", "_end", "_fires", "_task", "address", "answered", "bound", "deadline")

    def __init__(self, manager: web.Server, context: ServerContext, address: str) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=KEEP_ALIVE,
            access_log=None,  # type: ignore[arg-type] # None turns it off, as AppRunner's own argument of this name does
            lingering_time=context.timeout,  # reads the rest of a refused body, or its client would miss the answer
            auto_decompress=False,
        )
        self._context = context
        self._task = asyncio.current_task()
        self._end: asyncio.TimerHandle | None = None
        self._fires = self._due = 0.0
        """When the timer fires, and when the connection is overdue, which is no earlier."""
        self._closing = False
        self.address = address
        self.answered = False
        self.deadline: float | None = None
        """When the request under way must have been answered, by the event loop's clock; None between two."""
        self.bound: asyncio.Timeout | None = None
        """The handler's timeout; one that streams removes it."""

    def begin(self) -> float:
        """Called at a request's first byte; returns its deadline."""
        if self.deadline is None:
            self.deadline = self._loop.time() + self._context.timeout
            self._ends_at(self.deadline + GRACE)
        return self.deadline

    def drop(self, reason: str) -> None:
        """Closes the connection at once, whatever is under way."""
        self._context.count_dropped(reason)
        if self.transport is not None:
            self.transport.abort()
        elif self._task is not None:
            self._task.cancel()  # in its handshake

    # What aiohttp and the event loop call.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._task = None

    def data_received(self, data: bytes) -> None:
        if data:
            if not self._closing:
                self.begin()
            if not self._context.crowd.take(self, len(data)):
                self._context.crowd.leave(self)
                self.drop("crowded")
                return
        super().data_received(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._context.crowd.settle(self)
            self.deadline, self.bound, self.answered = None, None, False
            self._closing = not resp.keep_alive
            # aiohttp closes an idle connection itself; this timer is later.
            self._ends_at(self._loop.time() + (0 if self._closing else KEEP_ALIVE) + 2 * GRACE)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._context.crowd.leave(self)
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to a request that isn't HTTP, or whose handler raised."""
        if status >= 500:
            return super().handle_error(request, status, exc)
        self._context.metrics.malformed.labels(self._context.name).inc()
        log.debug("Received malformed HTTP", server=self._context.name, peer=self.address, error=quoted(message))
        response = web.Response(status=status, text=f"malformed HTTP: {quoted(message)}\n")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Logs a handler's exception, at a limited rate: a client that can cause one must not fill the log."""
        error = kw.get("exc_info")
        if isinstance(error, ConnectionError):
            log.debug("Lost the client before its answer", server=self._context.name, error=quoted(error))
            return
        if (omitted := self._context.repeats.passes("exception")) is not None:
            text = quoted(args[0] if args else "")
            log.error("Failed to answer a request", server=self._context.name, where=text, exc_info=error, **omitted)

    def _ends_at(self, when: float) -> None:
        self._due = when
        if self._end is not None and self._fires <= when:
            return  # one timer serves many requests: it looks again when it fires
        if self._end is not None:
            self._end.cancel()
        self._fires = when
        self._end = self._loop.call_at(when, self._overdue)

    def _overdue(self) -> None:
        self._end = None
        if self._loop.time() < self._due:
            self._ends_at(self._due)
            return
        if self.bound is not None and self.bound.when() is None:
            return  # a stream, which ends itself
        self._context.crowd.leave(self)
        self.drop("overdue")
