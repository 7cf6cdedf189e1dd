"""One connection pool to the API server: where it is, who we are, and how long we wait.

`kubernetes.aio` reads the configuration and refreshes the tokens. Its `rest.py` is not used for requests: it ends each
of them at 300 s, encodes bodies itself, rewrites the content type of patches, and may retry.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import structlog
from yarl import URL

from deviceshare import __version__
from deviceshare.kube.client import (
    ConfigException,
    Configuration,
    RESTClientObject,
    load_incluster_config,
    load_kube_config,
    refresh_token,
)
from deviceshare.kube.refusals import refusal
from deviceshare.loops.ports import Unavailable

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT = 3.0
"""Seconds for a TCP connection; the API server is near or it is down."""
POOL_SIZE = 256
KEEPALIVE = 60.0
"""Seconds an idle connection is kept: less than the API server's 90, so that it doesn't close one under a write."""
TOKEN_RETRY = 60.0
HEADERS = {
    "User-Agent": f"deviceshare/{__version__}",
    "Accept": "application/json",
    # The API server is a hop away: to compress would cost both sides more than to send.
    "Accept-Encoding": "identity",
}


class NotConfigured(Exception):
    """There is no usable configuration; the text names the way out."""


class Connection:
    """Sends requests to one API server, with the pool and the credentials of one `Configuration`."""

    def __init__(self, session: aiohttp.ClientSession, configuration: Configuration) -> None:
        self._session = session
        self._configuration = configuration
        self._fixed: dict[str, Any] = {"allow_redirects": False, "proxy": configuration.proxy}
        if configuration.tls_server_name:
            self._fixed["server_hostname"] = configuration.tls_server_name

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
        url = URL(self._configuration.host + path, encoded=True).update_query(query or {})
        try:
            if token := await self._configuration.get_api_key_with_prefix("BearerToken"):
                headers["Authorization"] = token
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=timeout, **self._fixed
            ) as response:
                try:
                    if response.status >= 300:
                        raise refusal(f"{method} {path}", response.status, response.headers, await response.read())
                    yield response
                finally:
                    _cut_off(response)
        except (aiohttp.ClientError, ConfigException, OSError) as error:  # TimeoutError is an OSError
            raise Unavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error


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

    Raises `NotConfigured`. Tokens are refreshed as long as the connection is open: a service account's from its file
    once a minute, an exec plugin's and Google's by asking again.
    """
    configuration = Configuration(retries=False)
    try:
        loader = await _load(kubeconfig, context, configuration)
        tls = RESTClientObject(configuration).ssl_context
    except Exception as error:  # the loader meets an odd file with whatever it stumbles over
        where = "no service account of a pod" if kubeconfig is None else f"kubeconfig {kubeconfig}"
        why = " ".join(str(error).split())
        raise NotConfigured(f"{where}: {why}; name a kubeconfig file with --kubeconfig") from error
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=POOL_SIZE, ssl=tls, keepalive_timeout=KEEPALIVE),
        headers=HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        # Told to trust the environment, aiohttp reads it, and ~/.netrc in a thread, again for each request.
        trust_env=False,
    )
    # Proxies of the environment lead out of a cluster, never to its own API server.
    if kubeconfig is not None and not configuration.proxy:
        configuration.proxy = _environment_proxy(configuration.host)
    refreshing = asyncio.create_task(_refresh(loader, configuration), name="token-refresh")
    try:
        async with session:
            yield Connection(session, configuration)
    finally:
        refreshing.cancel()
        await asyncio.wait({refreshing})


def _environment_proxy(server: str) -> str | None:
    """The proxy by which HTTPS_PROXY, HTTP_PROXY and NO_PROXY have us reach the server, if any."""
    parts = urlsplit(server)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


async def _load(kubeconfig: str | None, context: str | None, configuration: Configuration) -> Any:
    """Fills `configuration`; returns the kubeconfig's loader, which knows how to refresh its token."""
    if kubeconfig is None:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        return None
    return await load_kube_config(kubeconfig, context, configuration)  # type: ignore[no-untyped-call]


async def _refresh(loader: Any, configuration: Configuration) -> None:
    while loader is not None:
        try:
            await refresh_token(loader, configuration)  # type: ignore[no-untyped-call]
            return  # nothing in this kubeconfig is ever refreshed
        except Exception:
            # Whatever a plugin does, the token we have may still be good, and the next try may work.
            log.exception("Failed to refresh the token")
            await asyncio.sleep(TOKEN_RETRY)
