"""A connection to the API server: credentials, and an `ApiError` for whatever goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

from deviceshare import __version__
from deviceshare.kube.access import Access, NoCredentials, read_kubeconfig, read_service_account
from deviceshare.kube.http_client import HttpClient
from deviceshare.kube.refusals import refusal
from deviceshare.loops.ports import Unavailable

HEADERS = {
    "User-Agent": f"deviceshare/{__version__}",
    "Accept": "application/json",
    # The API server is a hop away: to compress would cost both sides more than to send.
    "Accept-Encoding": "identity",
}


class Connection:
    """Sends requests to one API server. Nothing is retried here: who calls knows what may be repeated."""

    def __init__(self, client: HttpClient, access: Access) -> None:
        self._client = client
        self._access = access

    async def call(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        most: int = 0,
    ) -> bytes:
        """The answer to one request, within `timeout` seconds, a wait for a free connection of the pool included.

        `path` has its segments quoted already. Raises an `ApiError` for every refusal and every broken connection, and
        TooLong where the answer has more than `most` bytes, if that is given.
        """
        try:
            async with asyncio.timeout(max(timeout, 0.0)):
                headers = await self._headers({"Content-Type": content_type} if body is not None else {})
                answer = await self._client.call(method, _target(path, query), headers, body, most=most)
        except (NoCredentials, OSError, ValueError) as error:  # TimeoutError is an OSError
            raise Unavailable(f"{method} {path}: {str(error) or f'no answer within {timeout:g} s'}") from error
        if answer.status >= 300:
            raise refusal(f"{method} {path}", *answer)
        return answer.body

    @asynccontextmanager
    async def stream(
        self, path: str, *, quiet: float, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of the answer to a GET as it arrives, until `quiet` seconds pass without a byte; raises likewise."""
        try:
            async with self._client.stream(_target(path, query), await self._headers({})) as wire:
                if wire.status >= 300:
                    raise refusal(f"GET {path}", wire.status, wire.headers, await wire.body())
                yield wire.chunks(quiet)
        except (NoCredentials, OSError, ValueError) as error:
            raise Unavailable(f"GET {path}: {str(error) or type(error).__name__}") from error

    async def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        if authorization := await self._access.authorization():
            headers["Authorization"] = authorization
        return headers


def _target(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


@asynccontextmanager
async def connect(kubeconfig: str | None = None, context: str | None = None) -> AsyncIterator[Connection]:
    """Opens a connection pool by the kubeconfig file, or as a pod's service account where none is named.

    Credentials are kept fresh as long as the connection is open. Raises NotConfigured.
    """
    access = read_service_account() if kubeconfig is None else await read_kubeconfig(kubeconfig, context)
    client = HttpClient(access.server, access.tls, HEADERS, server_name=access.server_name, proxy=access.proxy)
    refreshing = asyncio.ensure_future(access.refresh())
    try:
        yield Connection(client, access)
    finally:
        client.close()
        refreshing.cancel()
        await asyncio.wait({refreshing})
