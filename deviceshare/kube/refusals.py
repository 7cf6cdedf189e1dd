"""Refusals of the API server, as `ApiError`s.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.loops.ports import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
)


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
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    405: Invalid,
    409: Conflict,
    410: Expired,
    413: TooLarge,
    415: Invalid,
    422: Invalid,
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
            return NotFound(text)
        return Unserved(f"{text} (the kind is not served; kubectl apply -f manifests/crds)", retry_after=retry_after)
    if code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists(text)
    if code == 500 and any(words in status.message for words in _TOO_LARGE):
        return TooLarge(text, said=status.message)
    return _BY_CODE.get(code, Unavailable)(text, retry_after=retry_after, said=status.message)
