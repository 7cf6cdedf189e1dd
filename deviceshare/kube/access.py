"""The way to an API server: where it is, how its certificate is checked, and who we are to it."""

import ssl
from collections.abc import Awaitable, Callable

from msgspec import Struct


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
