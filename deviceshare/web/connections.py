"""Connections: how many a server takes, from whom, and how long it waits for each."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import structlog
from aiohttp import web

from deviceshare.metrics import ServerMetrics
from deviceshare.web.quoting import Repeats, quoted

# Fair queuing of requests by client address, and of one address by tenant: who sends many delays only its own.
# A request that has arrived whole is answered without a pause, and a large one may take a tenth of a second. Hundreds
# that arrive together would be answered in the order of arrival, and one of the API server's after all of them. So
# addresses take turns, one request each, and between two of them the loop polls its sockets. All that the API server
# asks comes from one address: there the tenants take turns for whom it asks.

_Tenants = OrderedDict[str, deque[asyncio.Future[None]]]


class AddressTurns:
    """The queues of one server, one for each tenant of each address. While they are empty, a request doesn't wait."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, _Tenants] = OrderedDict()
        self._taken = False
        """Whether this round of the event loop has had its request, or a request is queued."""

    async def turn(self, address: str, tenant: str = "") -> None:
        """Returns when it is this address's turn, and the tenant's within it."""
        if not self._taken:
            self._taken = True
            asyncio.get_running_loop().call_soon(self._next)
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, OrderedDict()).setdefault(tenant, deque()).append(future)
        await future  # bounded by the request's timeout

    def _next(self) -> None:
        while self._waiting:
            address, tenants = self._waiting.popitem(last=False)
            tenant, queue = tenants.popitem(last=False)
            future = queue.popleft()
            if queue:
                tenants[tenant] = queue
            if tenants:
                self._waiting[address] = tenants
            if not future.done():
                future.set_result(None)
                # Two rounds: the first runs the request, the second polls the sockets before the next one.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._next)
                return
        self._taken = False


# Limits on a server's connections and their unanswered bytes, shared fairly between client addresses.
# Where a limit is reached, the address with the most connections loses the one that has waited longest for its own
# request to end, and the address with the most bytes under way its largest request. So a client that fills a server
# only closes connections of its own, and the API server, with its few connections and small reviews, is still
# accepted. A connection whose request is being answered is spared: it is about to make room anyway.


class CrowdBounds(NamedTuple):
    """The limits of one server."""

    connections: int
    request: int
    """Bytes of one request on the wire, headers and chunk encoding included."""
    at_once: int
    """Bytes of all requests under way."""
    per_address: int = 0
    """Connections of one address; 0: as many as of all."""


class Member(Protocol):
    """A connection that counts against the limits."""

    @property
    def address(self) -> str:
        """The client's IP address."""

    @property
    def answered(self) -> bool:
        """Whether its request has arrived whole and is being answered."""

    def drop(self, reason: str) -> None:
        """Closes it at once; called after it has left the crowd."""


class Crowd:
    """The connections of one server."""

    def __init__(self, bounds: CrowdBounds) -> None:
        self._bounds = bounds
        self._members: dict[Member, int] = {}
        """The bytes of each connection's request, in the order in which their last requests ended."""
        self.held = 0
        """Bytes of requests that haven't ended."""

    @property
    def size(self) -> int:
        """The number of connections."""
        return len(self._members)

    def enter(self, member: Member) -> bool:
        """Adds a new connection; another may be closed for it. False: it doesn't fit, close it."""
        others, limit = list(self._members), self._bounds.per_address
        self._members[member] = 0
        alike = [each for each in others if each.address == member.address] if limit else []
        if limit and len(alike) >= limit:
            others = alike
        elif self.size <= self._bounds.connections:
            return True
        victim = _victim(Counter(each.address for each in self._members), others)
        self.leave(victim or member)
        if victim is not None:
            victim.drop("crowded")
        return victim is not None

    def leave(self, member: Member) -> None:
        """Removes a connection that ended; one that left before is ignored."""
        self.held -= self._members.pop(member, 0)

    def take(self, member: Member, size: int) -> bool:
        """Counts bytes of a request that have arrived. False: they don't fit, close the connection."""
        if member not in self._members:
            return False
        self._members[member] += size
        self.held += size
        if self._members[member] > self._bounds.request:
            return False
        while self.held > self._bounds.at_once:
            weights = Counter[str]()
            for each, held in self._members.items():
                weights[each.address] += held
            # Of an address the largest: small reviews of the API server aren't dropped for large ones.
            sizes = sorted(((held, each) for each, held in self._members.items() if held), key=lambda it: -it[0])
            victim = _victim(weights, (each for _, each in sizes))
            if victim is None or victim is member:
                return False
            self.leave(victim)
            victim.drop("crowded")
        return True

    def settle(self, member: Member) -> None:
        """Forgets the bytes of a request that ended; the connection is now the newest."""
        if member in self._members:
            self.leave(member)
            self._members[member] = 0


def _victim(weights: Mapping[str, int], candidates: Iterable[Member]) -> Member | None:
    """The first connection of the address that weighs most, among those that can be closed."""
    closable = (each for each in candidates if not each.answered)
    return max(closable, key=lambda each: weights[each.address], default=None)


# A connection to a server, bounded in time from its acceptance to its end whatever the client does.
# aiohttp's own handler of a connection (https://docs.aiohttp.org/en/stable/web_lowlevel.html) bounds the time between
# requests only: a client that never ends its headers or body, or never reads its answer, stays connected. Here the
# time of a request counts from its first byte, headers included, and then the connection is closed, be it in the
# middle of a header, a body or an answer. Bodies are never decompressed.

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
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
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
