"""A listening socket and the routes it serves: bounded in body size and time, measured, and quick to stop."""

import asyncio
import ssl
from collections.abc import Iterable
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from deviceshare.telemetry import ServerMetrics

log = structlog.get_logger(__name__)

RESULT: Final = web.ResponseKey("result", str)
"""Set on a response (`response[RESULT] = "refused"`), it becomes the result in the request metrics."""

BOUND: Final = web.RequestKey("bound", asyncio.Timeout)
"""A request's end, which a handler that streams may put off: `request[BOUND].reschedule(None)`."""

_KEEP_ALIVE = 150.0
"""Seconds an idle connection stays open. Go's clients close theirs after 90: were we first, a request sent at that
moment would fail, and Go doesn't repeat a POST."""


class CannotListen(Exception):
    """The address is taken or not this machine's."""


class Server:
    """Serves `routes` on one address, over TLS where there is a context for it.

    A body of more than `max_body` bytes is answered 413, a request that takes longer than `timeout` seconds 503.
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
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._tls = tls
        self._draining = False
        app = web.Application(middlewares=[_bounded(metrics, timeout)], client_max_size=max_body)
        app.add_routes(routes)
        app.on_response_prepare.append(self._say_goodbye)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=timeout, keepalive_timeout=_KEEP_ALIVE, handle_signals=False
        )

    @property
    def port(self) -> int:
        """The port it listens on; where 0 was asked for, the one that the kernel chose."""
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        """Returns once connections are accepted; raises CannotListen."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls).start()
        except OSError as error:
            await self._runner.cleanup()
            raise CannotListen(
                f"{self._name}: can't listen on {self._host}:{self._port} ({error.strerror or error}); "
                f"choose another address with --{self._name}-bind"
            ) from error
        log.info("Started server", server=self._name, host=self._host, port=self.port, tls=self._tls is not None)

    def drain(self) -> None:
        """From now on each answer ends its connection, so that clients open the next one elsewhere.

        Else a request might be sent on a connection just when `stop` closes it, and be lost.
        """
        self._draining = True

    async def stop(self) -> None:
        """Accepts no more, and lets requests under way end within their time."""
        await self._runner.cleanup()
        log.info("Stopped server", server=self._name)

    async def _say_goodbye(self, _: web.Request, response: web.StreamResponse) -> None:
        if self._draining:
            response.headers["Connection"] = "close"
            response.force_close()


def _bounded(metrics: ServerMetrics, timeout: float) -> Middleware:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        with metrics.request(_verb(request)) as measured:
            try:
                async with asyncio.timeout(timeout) as request[BOUND]:
                    response = await handler(request)
            except TimeoutError as error:
                raise web.HTTPServiceUnavailable(text=f"deviceshare had no answer within {timeout:g} s\n") from error
            measured.result = response.get(RESULT, "ok" if response.status < 400 else "error")
            return response

    return middleware


def _verb(request: web.Request) -> str:
    # Any path may be asked for; only those that are served become labels, or strangers could fill the registry.
    resource = request.match_info.route.resource
    return (resource.canonical.strip("/") or "root") if resource is not None else "unknown"
