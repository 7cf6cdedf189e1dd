"""The crowd of a server: how many connections and bytes it takes, and from whom; and whose request comes next."""

import asyncio
import errno
import os
import socket
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol

import structlog

from deviceshare.web.messages import Repeats, quoted

log = structlog.get_logger(__name__)

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


class Member(Protocol):
    """A connection that counts against the limits."""

    address: str
    """The client's IP address."""
    answered: bool
    """Whether its request has arrived whole and is being answered."""

    def drop(self, reason: str) -> None:
        """Closes it at once; called after it has left the crowd."""


class Crowd:
    """The connections of one server."""

    def __init__(self, connections: int, request: int, at_once: int, per_address: int = 0) -> None:
        """At most so many connections, of one address too, unless that is 0; bytes of one request, and of all.

        Bytes are those on the wire, with headers and the codes of chunks.
        """
        self._connections, self._request, self._at_once, self._per_address = connections, request, at_once, per_address
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
        others, limit = list(self._members), self._per_address
        self._members[member] = 0
        alike = [each for each in others if each.address == member.address] if limit else []
        if limit and len(alike) >= limit:
            others = alike
        elif self.size <= self._connections:
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
        if self._members[member] > self._request:
            return False
        while self.held > self._at_once:
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


# A listening socket, which accepts connections, limits them by client address, and performs their TLS handshakes.
# The event loop's own servers report a connection once its handshake is over. A handshake that never ends takes
# memory all the same, so the limits apply here, when a connection is accepted.

_BACKLOG: Final = 512
_NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""A name such as localhost has an IPv6 address even where the kernel has no IPv6."""


class Listener:
    """The sockets of one server.

    `receive` creates the protocol of a connection from an address. `drop` counts one that was closed, with the reason.
    """

    def __init__(
        self, name: str, crowd: Crowd, receive: Callable[[str], Member], drop: Callable[[str], None], **tls: object
    ) -> None:
        """`tls` is what the event loop takes of it, nothing for none."""
        self._name, self._crowd, self._receive, self._drop, self._tls = name, crowd, receive, drop, tls
        self._repeats = Repeats()
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Starts to accept connections, on the port that is returned; raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        missing = None
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                try:
                    listening = socket.create_server(address, family=family, backlog=_BACKLOG)
                except OSError as error:
                    missing = OSError(error.errno, os.strerror(error.errno or 0))  # without the address
                    if error.errno not in _NOT_HERE:
                        raise missing from error
                else:
                    listening.setblocking(False)
                    self._sockets.append(listening)
            if missing is not None and not self._sockets:
                raise missing
        except OSError:
            await self.close()
            raise
        for listening in self._sockets:
            self._accepting.append(asyncio.create_task(self._accept(listening), name=f"accept {self._name}"))
        return int(self._sockets[0].getsockname()[1])

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
                    text = "Failed to accept a connection"
                    self._repeats.write(log.warning, text, server=self._name, error=str(error))
                    await asyncio.sleep(0.1)
                continue
            task = loop.create_task(self._handshake(accepted, str(peer[0])))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
            # While connections are queued, `sock_accept` returns at once: without a pause no other task would run, and
            # connections over the limit would not be closed.
            await asyncio.sleep(0)

    async def _handshake(self, accepted: socket.socket, address: str) -> None:
        connection = self._receive(address)
        if not self._crowd.enter(connection):
            self._drop("crowded")
            accepted.close()
            return
        try:
            accepted.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **self._tls)  # type: ignore[arg-type, type-var]
        except (OSError, asyncio.CancelledError) as error:  # ssl.SSLError and TimeoutError are OSErrors
            self._crowd.leave(connection)
            with suppress(OSError):
                accepted.close()
            self._drop("handshake")
            log.debug("Failed a TLS handshake", server=self._name, peer=address, error=quoted(error))
            if isinstance(error, asyncio.CancelledError):
                raise
