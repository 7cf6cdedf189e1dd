"""A connection to the API server: where it is, who we are to it, and an `ApiError` for whatever goes wrong."""

import asyncio
import base64
import os
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec
import structlog
from msgspec import Struct, field

from deviceshare import __version__
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.kube import kubeconfig
from deviceshare.kube.http_client import HttpClient
from deviceshare.loops import ports
from deviceshare.loops.ports import ApiError, Unavailable

log = structlog.get_logger(__name__)

# Where an API server is, how its certificate is checked, and who we are to it.


class Access(Struct, frozen=True):
    """As a service account or a kubeconfig file says it."""

    server: str
    tls: ssl.SSLContext
    authorization: Callable[[], Awaitable[str | None]]
    """The header `Authorization` as it is now, if there is one, before each request; raises NoCredentials."""
    proxy: str | None = None
    server_name: str | None = None
    """The name that the server's certificate bears, where it isn't the server's."""
    refresh: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 0)
    """Keeps the credentials fresh until cancelled, or returns at once where nothing has to be done."""


class NoCredentials(Exception):
    """The credentials can't be had now; a later request may get them."""


class NotConfigured(Exception):
    """There is no usable configuration; the text names the way out."""


# A pod's service account: how whatever runs in the cluster reaches its API server.
# https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/#directly-accessing-the-rest-api

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
                log.warning("Token could not be read", file=str(self._file), error=str(error))
        return f"Bearer {self._text}"

    def _read(self) -> str:
        """Raises OSError, or ValueError where the file is empty."""
        text = self._file.read_text().strip()
        if not text:
            raise ValueError(f"{self._file} is empty")
        return text


# A person's kubeconfig files. Certificates and tokens that stand in files are read here; what has to be asked for, of
# an exec plugin or an OpenID Connect provider, is left to the Kubernetes client, which takes a third of a second to
# import (decision 11).

RETRY_SECONDS: Final = 60.0
"""After a token could not be refreshed."""


class _Cluster(Struct, rename="kebab", forbid_unknown_fields=True):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool = False
    extensions: Any = None


class _User(Struct, rename="kebab", forbid_unknown_fields=True):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = field(default="", name="tokenFile")
    extensions: Any = None


async def read_kubeconfig(files: str, context: str | None) -> Access:
    """What the context, or the current one, says in these files, which are separated as in KUBECONFIG.

    Raises:
        NotConfigured: they can't be read, or say something that can't be used.
    """
    config = kubeconfig.load(files)
    try:
        try:
            named = config.context(context)
            cluster, there = config.clusters[named["cluster"]]
            user, here = config.users[named["user"]]
            return _stored(msgspec.convert(cluster, _Cluster), there, msgspec.convert(user, _User), here)
        except (KeyError, msgspec.ValidationError):
            return await ask_client(files, context or config.current or None)
    except Exception as error:  # the client meets an odd file with whatever it stumbles over
        why = " ".join(str(error).split())
        raise NotConfigured(f"kubeconfig {files}: {why}; name a kubeconfig file with --kubeconfig") from error


def _stored(cluster: _Cluster, there: Path, user: _User, here: Path) -> Access:
    """As files say it; raises OSError or ValueError where one can't be read."""

    def pem(folder: Path, file: str, data: str) -> bytes:
        if data:
            return base64.b64decode("".join(data.split()), validate=True)
        return (folder / file).read_bytes() if file else b""

    authority = pem(there, cluster.certificate_authority, cluster.certificate_authority_data)
    tls = ssl.create_default_context(cadata=authority.decode() or None)
    if certificate := pem(here, user.client_certificate, user.client_certificate_data):
        with NamedTemporaryFile() as file:  # OpenSSL takes the two by name only; nobody else may read it
            file.write(certificate + b"\n" + pem(here, user.client_key, user.client_key_data))
            file.flush()
            tls.load_cert_chain(file.name)
    if cluster.insecure_skip_tls_verify:
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    token = _Token(here / user.token_file).authorization if user.token_file else partial(_fixed, user.token)
    proxy = cluster.proxy_url or environment_proxy(cluster.server)
    return Access(cluster.server.rstrip("/"), tls, token, proxy, cluster.tls_server_name)


async def _fixed(token: str) -> str | None:
    return f"Bearer {token}" if token else None


async def ask_client(files: str, context: str | None) -> Access:
    """What the context, or the current one, says in these files, as the Kubernetes client understands them.

    Tokens are refreshed: an exec plugin's, an OpenID Connect provider's and Google's by asking again. Raises whatever
    the client meets an odd file with.
    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
    """
    from kubernetes.aio import client, config  # noqa: PLC0415
    from kubernetes.aio.client.rest import RESTClientObject  # noqa: PLC0415

    known = client.Configuration(retries=False)
    loader = await config.load_kube_config(files, context, known)  # type: ignore[no-untyped-call]

    async def authorization() -> str | None:
        try:
            token: str | None = await known.get_api_key_with_prefix("BearerToken")
        except config.ConfigException as error:
            raise NoCredentials(str(error)) from error
        return token

    async def refresh() -> None:
        while True:
            try:
                await config.refresh_token(loader, known)  # type: ignore[no-untyped-call]
                return  # nothing in this kubeconfig is ever refreshed
            except Exception:
                # Whatever a plugin does, the token we have may still be good, and the next try may work.
                log.exception("Connection failed to refresh its token")
                await asyncio.sleep(RETRY_SECONDS)

    tls, proxy = RESTClientObject(known).ssl_context, known.proxy or environment_proxy(known.host)
    return Access(known.host, tls, authorization, proxy, known.tls_server_name or None, refresh)


def environment_proxy(server: str) -> str | None:
    """The proxy by which HTTPS_PROXY, HTTP_PROXY and NO_PROXY have us reach the server, if any."""
    parts = urlsplit(server)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


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
