"""A connection pool to the API server, and how long a request may take."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from yarl import URL

from deviceshare import __version__
from deviceshare.kube.access import Access, NoCredentials, read_kubeconfig, read_service_account
from deviceshare.kube.refusals import refusal
from deviceshare.loops.ports import Unavailable

CONNECT_TIMEOUT = 3.0
"""Seconds for a TCP connection; the API server is near or it is down."""
POOL_SIZE = 256
KEEPALIVE = 60.0
"""Seconds an idle connection is kept: less than the API server's 90, so that it doesn't close one under a write."""
HEADERS = {
    "User-Agent": f"deviceshare/{__version__}",
    "Accept": "application/json",
    # The API server is a hop away: to compress would cost both sides more than to send.
    "Accept-Encoding": "identity",
}


class Connection:
    """Sends requests to one API server."""

    def __init__(self, session: aiohttp.ClientSession, access: Access) -> None:
        self._session = session
        self._access = access
        self._fixed: dict[str, Any] = {"allow_redirects": False, "proxy": access.proxy}
        if access.server_name:
            self._fixed["server_hostname"] = access.server_name

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Opens the answer to one request; raises an `ApiError` for every refusal and every broken connection.

        `path` has its segments quoted already. Nothing is retried here: who calls knows what may be repeated.
        """
        headers = {"Content-Type": content_type} if body is not None else {}
        url = URL(self._access.server + path, encoded=True).update_query(query or {})
        try:
            if authorization := await self._access.authorization():
                headers["Authorization"] = authorization
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=timeout, **self._fixed
            ) as response:
                try:
                    if response.status >= 300:
                        raise refusal(f"{method} {path}", response.status, response.headers, await response.read())
                    yield response
                finally:
                    _cut_off(response)
        except (aiohttp.ClientError, NoCredentials, OSError) as error:  # TimeoutError is an OSError
            raise Unavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error


class _Connector(aiohttp.TCPConnector):
    """Fails as a broken connection does where uvloop refuses the descriptor of a new socket.

    Its number may be that of a connection which was given up a moment ago, and which uvloop has not closed yet: it
    raises RuntimeError ("File descriptor 20 is used by transport"). The next attempt gets another, or finds it closed.
    """

    async def connect(self, *arguments: Any, **named: Any) -> Any:
        try:
            return await super().connect(*arguments, **named)
        except RuntimeError as error:
            raise OSError(str(error)) from error


def _cut_off(response: aiohttp.ClientResponse) -> None:
    """Ends the connection of an answer that wasn't read to its end, such as a watch.

    aiohttp would say TLS's goodbye and wait for the peer's: 30 s if that hangs, and beyond the end of the event loop.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def within(seconds: float) -> aiohttp.ClientTimeout:
    """A bound on a whole request, waiting for a free connection of the pool included."""
    seconds = max(seconds, 0.001)  # aiohttp takes 0 for no bound at all
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_TIMEOUT, seconds))


@asynccontextmanager
async def connect(kubeconfig: str | None = None, context: str | None = None) -> AsyncIterator[Connection]:
    """Opens a connection pool by the kubeconfig file, or as a pod's service account where none is named.

    Credentials are kept fresh as long as the connection is open. Raises NotConfigured.
    """
    access = read_service_account() if kubeconfig is None else await read_kubeconfig(kubeconfig, context)
    session = aiohttp.ClientSession(
        connector=_Connector(limit=POOL_SIZE, ssl=access.tls, keepalive_timeout=KEEPALIVE),
        headers=HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        # With `trust_env` aiohttp would read the environment, and ~/.netrc in a thread, again for each request.
        trust_env=False,
    )
    refreshing = asyncio.ensure_future(access.refresh())
    try:
        async with session:
            yield Connection(session, access)
    finally:
        refreshing.cancel()
        await asyncio.wait({refreshing})
