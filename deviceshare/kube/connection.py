"""A connection to the API server: credentials, and an `ApiError` for whatever goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from deviceshare import __version__
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.kube.access import Access, NoCredentials, read_kubeconfig, read_service_account
from deviceshare.kube.http_client import HttpClient
from deviceshare.loops import ports
from deviceshare.loops.ports import ApiError, Unavailable

# Refusals. https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/


class Unserved(Unavailable):
    """404 without the API server's word that the object is gone: the kind itself isn't served, or not yet."""


class Details(Struct, frozen=True, rename="camel"):
    retry_after_seconds: int = 0


class ApiStatus(Struct, frozen=True):
    """The body of a refusal, and the object of an ERROR event."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: Details | None = None


_BY_CODE: dict[int, type[ApiError]] = {
    400: ports.Invalid,
    401: ports.Forbidden,
    403: ports.Forbidden,
    405: ports.Invalid,
    409: ports.Conflict,
    410: ports.Expired,
    413: ports.TooLarge,
    415: ports.Invalid,
    422: ports.Invalid,
}

_TOO_LARGE = ("etcdserver: request is too large", "trying to send message larger than max")
"""What etcd, and its client in the API server, say of an object that they don't store; sent as 500."""


def refusal(request: str, code: int, headers: Mapping[str, str], body: bytes) -> ApiError:
    """The error for an HTTP status of 300 and above; `headers` by their names in lower case."""
    try:
        status = decoder_of(ApiStatus).decode(body)
    except msgspec.DecodeError:  # not from the API server proper: a proxy, or a handler without a Status
        status = ApiStatus(message=body[:200].decode(errors="replace").strip())
    after = headers.get("retry-after", "")
    return refusal_of_status(request, status, code, float(after) if after.isdecimal() else None)


def refusal_of_status(request: str, status: ApiStatus, code: int, retry_after: float | None = None) -> ApiError:
    """The error for a Status object, whichever way it came."""
    text = f"{request}: {code} {status.reason} {status.message}".rstrip()
    if retry_after is None and status.details and status.details.retry_after_seconds:
        retry_after = float(status.details.retry_after_seconds)
    if code == 404:
        # Only the API server's own word means that the object is gone. A 404 without it comes from a server that does
        # not (yet) serve the kind, or from a proxy, and devices in use would be allocated if it were believed.
        if status.reason == "NotFound":
            return ports.NotFound(text)
        return Unserved(f"{text} (the kind is not served; kubectl apply -f manifests/crds)", retry_after=retry_after)
    if code == 409 and status.reason == "AlreadyExists":
        return ports.AlreadyExists(text)
    if code == 500 and any(words in status.message for words in _TOO_LARGE):
        return ports.TooLarge(text, said=status.message)
    return _BY_CODE.get(code, Unavailable)(text, retry_after=retry_after, said=status.message)


# Requests.

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
