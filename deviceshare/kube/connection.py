"""A connection to the API server: where it is, and who we are there."""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import structlog
from msgspec import Struct
from yarl import URL

from deviceshare import __version__
from deviceshare.kube.refusals import refusal
from deviceshare.loops.ports import Unavailable

# The way to an API server: where it is, how its certificate is checked, and who we are to it.


async def _nothing() -> None:
    return None


class Access(Struct, frozen=True):
    """As a service account or a kubeconfig file says it."""

    server: str
    tls: ssl.SSLContext
    authorization: Callable[[], Awaitable[str | None]]
    """The header `Authorization` as it is now, if there is one, before each request; raises NoCredentials."""
    proxy: str | None = None
    server_name: str | None = None
    """The name that the server's certificate bears, where it isn't the server's."""
    refresh: Callable[[], Awaitable[None]] = _nothing
    """Keeps the credentials fresh until cancelled, or returns at once where nothing has to be done."""


class NoCredentials(Exception):
    """The credentials can't be had now; a later request may get them."""


class NotConfigured(Exception):
    """There is no usable configuration; the text names the way out."""


# A pod's service account: how whatever runs in the cluster reaches its API server.
# https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api

log = structlog.get_logger(__name__)

DIRECTORY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
FRESH_SECONDS: Final = 60.0
"""For so long a token is used before its file is read again: the kubelet renews it long before it expires."""


def read_service_account(directory: Path = DIRECTORY, environment: Mapping[str, str] = os.environ) -> Access:
    """Raises NotConfigured outside of a pod, and in a pod without its service account."""
    host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
    try:
        if not (host and port):
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        tls = ssl.create_default_context(cafile=directory / "ca.crt")
        token = _Token(directory / "token")
    except (OSError, ValueError) as error:
        raise NotConfigured(
            f"no service account of a pod: {error}; name a kubeconfig file with --kubeconfig"
        ) from error
    return Access(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", tls, token.authorization)


class _Token:
    """The token as its file has it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_at = time.monotonic()
        self._text = self._read()

    async def authorization(self) -> str:
        if time.monotonic() - self._read_at > FRESH_SECONDS:
            self._read_at = time.monotonic()
            try:
                self._text = self._read()
            except (OSError, ValueError) as error:
                # The token of before may well be valid still; if it isn't, the API server says so.
                log.warning("Service account token could not be read", error=str(error))
        return f"Bearer {self._text}"

    def _read(self) -> str:
        """Raises OSError, or ValueError where the file is empty."""
        text = self._file.read_text().strip()
        if not text:
            raise ValueError(f"{self._file} is empty")
        return text


# One connection pool to the API server, and how long a request may take.

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
    access = await _access(kubeconfig, context)
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


async def _access(kubeconfig: str | None, context: str | None) -> Access:
    if kubeconfig is None:
        return read_service_account()
    # Only here: it costs 11 MiB and a third of a second, which nothing that runs in a cluster has to pay (decision 11).
    from deviceshare.kube import kubeconfig as files  # noqa: PLC0415

    return await files.read(kubeconfig, context)
