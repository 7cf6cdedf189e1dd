"""AdmissionReview, admission.k8s.io/v1: the requests of the API server to webhooks, and their answers.

https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#webhook-request-and-response
"""

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from deviceshare.domain.objects.object_decoder import ObjectDecoder
from deviceshare.web.quoting import quoted

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

_MAX_WARNINGS = 15
_MAX_WARNING = 256
"""The API server shortens warnings to 256 characters each, 4096 altogether, once they exceed that."""

MAX_MEMBERS = 50_000
"""Members of all objects and lists of a review. Each takes far more memory decoded than the two or three bytes that it
may take to send. A pod has some hundreds, a large one some thousands."""
MAX_LEDGER_MEMBERS = 250_000
"""Of a review of NodeDevices, which has two of them, each of some 60,000 with as many claims as its budget allows."""
_STRUCTURE = b",[{"
_NAMESPACE = re.compile(rb'"namespace":\s*"([a-z0-9-]{1,63})"')
_HEAD_BYTES = 4096

T = TypeVar("T")


class BadReview(Exception):
    """The body is not an AdmissionReview that can be answered; the text tells the client why."""


class GroupVersionKind(Struct, frozen=True):
    group: str = ""
    version: str = ""
    kind: str = ""


class UserInfo(Struct, frozen=True):
    username: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None

    @property
    def node(self) -> str:
        """The node that the service account's token is bound to; "" where it names none, before Kubernetes 1.30."""
        return next(iter((self.extra or {}).get("authentication.kubernetes.io/node-name", ())), "")


class ReviewRequest(Struct, frozen=True, rename="camel"):
    """One request under review. The objects stay undecoded: most don't concern deviceshare."""

    uid: str
    kind: GroupVersionKind = field(default_factory=GroupVersionKind)
    sub_resource: str = ""
    operation: str = ""
    namespace: str = ""
    user_info: UserInfo = field(default_factory=UserInfo)
    object: Raw = Raw(b"null")
    old_object: Raw = Raw(b"null")


class ReviewVerdict(Struct, frozen=True):
    """The answer: allowed unless there is a refusal. `code` is the HTTP status that the user's client gets."""

    refusal: str = ""
    code: int = 403
    patch: Sequence[dict[str, Any]] = ()
    warnings: Sequence[str] = ()


ALLOWED = ReviewVerdict()


class _Envelope(Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: Raw = Raw(b"null")


class _Status(Struct):
    code: int
    message: str


class _Response(Struct, rename="camel", omit_defaults=True):
    uid: str
    allowed: bool
    status: _Status | None = None
    patch_type: str = ""
    patch: bytes = b""  # msgspec writes bytes in base64, as the protocol requires
    warnings: tuple[str, ...] = ()


class _Answer(Struct, rename="camel"):
    api_version: str
    kind: str
    response: _Response


_envelopes = ObjectDecoder(_Envelope)
_requests = ObjectDecoder(ReviewRequest)


class _RequestHead(Struct, rename="camel"):
    """What of a request is read, whatever its object is like."""

    uid: str
    kind: GroupVersionKind
    operation: str
    user_info: UserInfo


class _ReviewHead(Struct):
    request: _RequestHead


_heads = msgspec.json.Decoder(_ReviewHead)


def namespace_of(body: bytes) -> str:
    """The namespace of the object under review, "" for one without: for whom the API server asks.

    It writes that before the object, so whoever made the object has no say in it; of what else is sent it is a guess.
    """
    found = _NAMESPACE.search(body, 0, _HEAD_BYTES)
    return found[1].decode() if found else ""


def decode(body: bytes, kind: str, identity: str = "", most: int = MAX_MEMBERS) -> ReviewRequest:
    """The request in an AdmissionReview of at most so many members, about an object of this kind; raises BadReview.

    Of one by `identity`, which is our own, a pod that is too large is left out: we must be able to write any pod.
    """
    if _has_many_members(body, most):
        if identity and (ours := _update_by(identity, body, kind)):
            return ours
        raise BadReview(f"the body is not a JSON {KIND} of an object in use: it has more than {most} members")
    try:
        envelope = _envelopes.decode(body)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise BadReview(f"the body is not a JSON {KIND}: {quoted(error)}") from error
    if (envelope.api_version, envelope.kind) != (API_VERSION, KIND):
        got = f"{quoted(envelope.kind) or 'no kind'} of {quoted(envelope.api_version) or 'no apiVersion'}"
        raise BadReview(
            f"expected an {KIND} of {API_VERSION}, got {got}; register the webhook with admissionReviewVersions: [v1]"
        )
    try:
        request = _requests.decode(envelope.request)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise BadReview(f"the {KIND}'s request can't be read: {quoted(error)}") from error
    if request.kind.kind != kind:
        raise BadReview(
            f"this path reviews objects of kind {kind}, not {quoted(request.kind.kind) or 'none'}; "
            "correct the rules of the webhook configuration"
        )
    return request


def _update_by(identity: str, body: bytes, kind: str) -> ReviewRequest | None:
    try:
        asked = _heads.decode(body).request
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    if (asked.user_info.username, asked.operation, asked.kind.kind, kind) != (identity, "UPDATE", "Pod", "Pod"):
        return None
    return ReviewRequest(asked.uid, asked.kind, operation=asked.operation, user_info=asked.user_info)


def _has_many_members(body: bytes, most: int) -> bool:
    if len(body) <= most or _separators(body) <= most:
        return False
    # Most separators may be in strings: scripts, tables, JSON in annotations.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * most + 4:
        return True  # a member has two strings at most
    return _separators(b"".join(plain.split(b'"')[::2])) > most


def _separators(json: bytes) -> int:
    return len(json) - len(json.translate(None, _STRUCTURE))


class UnreadableReviewObject(Exception):
    """The object under review has a field that doesn't match its schema."""


def decode_object(decoder: ObjectDecoder[T], raw: Raw, *, whole: bool = True) -> T:
    """An object of a request, or unless `whole`, its readable part; raises UnreadableReviewObject naming the field."""
    try:
        return decoder.decode(raw) if whole else decoder.salvage(raw)
    except (ValueError, RecursionError, msgspec.DecodeError) as error:
        raise UnreadableReviewObject(f"the object can't be read: {quoted(error)}") from error


def encode(request: ReviewRequest, verdict: ReviewVerdict) -> bytes:
    """The AdmissionReview that answers the request."""
    response = _Response(
        request.uid,
        not verdict.refusal,
        status=_Status(verdict.code, verdict.refusal) if verdict.refusal else None,
        patch_type="JSONPatch" if verdict.patch else "",
        patch=msgspec.json.encode(verdict.patch) if verdict.patch else b"",
        warnings=_fitting(verdict.warnings),
    )
    return msgspec.json.encode(_Answer(API_VERSION, KIND, response))


def _fitting(warnings: Sequence[str]) -> tuple[str, ...]:
    texts = tuple(text if len(text) <= _MAX_WARNING else f"{text[: _MAX_WARNING - 1]}…" for text in warnings)
    if len(texts) <= _MAX_WARNINGS:
        return texts
    return (*texts[:_MAX_WARNINGS], f"… and {len(texts) - _MAX_WARNINGS} more warnings")
