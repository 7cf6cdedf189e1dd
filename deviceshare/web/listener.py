"""A listening socket, which accepts connections, limits them by client address, and performs their TLS handshakes.

The event loop's own servers report a connection once its handshake is over. A handshake that never ends takes memory
all the same, so the limits apply here, when a connection is accepted.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from deviceshare.web.quoting import quoted
from deviceshare.web.visit import ServerContext, Visit

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
