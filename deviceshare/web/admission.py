"""The admission webhooks. They decide from the object under review and the mirrors alone.

They never call the API server: each creation of a pod waits for the answer, and a webhook's own calls would add to the
load of an API server that is already slow. They keep no state either, so a dry run needs no special case.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from deviceshare.domain import contract
from deviceshare.domain.admission import own_resource_review as own_resources
from deviceshare.domain.admission import pod_review
from deviceshare.domain.admission.bypasses import WARN, bypasses, new_bypasses, refusal_or_warnings
from deviceshare.domain.admission.dialects import MARKERS
from deviceshare.domain.admission.drafts import Draft, DraftMeta, concerns
from deviceshare.domain.admission.pod_injection import Injection, inject, inject_ephemeral, lacks_claim
from deviceshare.domain.admission.settings import DEFAULTS, InjectionSettings
from deviceshare.domain.objects.groups import DEFAULT_LIFE, Group, GroupLife
from deviceshare.domain.objects.object_decoder import ObjectDecoder
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import DIALECTS, FAMILIES, NO_SHARE, ShareRequest
from deviceshare.domain.placement.fleet import Quotas
from deviceshare.domain.placement.join_obstacles import Namespaces
from deviceshare.loops.ports import Mirror
from deviceshare.web.messages import Handler, HttpRequest, Refusal, Repeats, Response, Route, quoted

log = structlog.get_logger(__name__)

# AdmissionReview, admission.k8s.io/v1: the requests of the API server to webhooks, and their answers.
# https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#webhook-request-and-response

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


class ReviewedKind(Struct, frozen=True):
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
    kind: ReviewedKind = ReviewedKind()
    sub_resource: str = ""
    operation: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
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


_envelopes = ObjectDecoder(_Envelope)
_requests = ObjectDecoder(ReviewRequest)


class _Review(Struct):
    request: ReviewRequest


_reviews = msgspec.json.Decoder(_Review)
"""Of objects of any size: these are skipped, not decoded."""


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
        asked = _reviews.decode(body).request
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
    response: dict[str, object] = {"uid": request.uid, "allowed": not verdict.refusal}
    if verdict.refusal:
        response["status"] = {"code": verdict.code, "message": verdict.refusal}
    if verdict.patch:
        # msgspec writes bytes in base64, as the protocol requires.
        response |= {"patchType": "JSONPatch", "patch": msgspec.json.encode(verdict.patch)}
    if verdict.warnings:
        texts = [each if len(each) <= _MAX_WARNING else f"{each[: _MAX_WARNING - 1]}…" for each in verdict.warnings]
        more = [f"… and {len(texts) - _MAX_WARNINGS} more warnings"] if len(texts) > _MAX_WARNINGS else []
        response["warnings"] = texts[:_MAX_WARNINGS] + more
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})


# The webhooks.

MAX_BODY = 8 << 20
"""Bytes. An API server takes requests of 3 MiB and stores objects of 1.5 MiB; a review contains one of each."""
MAX_CONNECTIONS = 512
"""An API server uses one for each review under way: 200 at its defaults, for each of its replicas."""

_MAX_CONTAINERS = 500
_MAX_OURS = 100
"""Annotations of a new pod that only deviceshare may set: each is removed with a warning."""
_MAX_RESOURCES = 100
"""Of a group. Lists that are read item by item are bounded here: webhooks run before the API server's own checks."""

GROUP_LOOKS, GROUP_LOOK_SECONDS = 10, 0.05
"""How often a group that isn't known is looked for before its pod is injected, and the pauses."""
_NO_CLAIMS = "spec.handover: it is off in this cluster (helm upgrade --set dra.handover=true): leave it out"

_SHARES = tuple(resource.encode() for resource in DIALECTS)


class _Concern(Struct, frozen=True):
    """The part of a pod that says whether it names a group."""

    metadata: DraftMeta = DraftMeta()


_concerns = ObjectDecoder(_Concern)
_drafts = ObjectDecoder(Draft)
_pods = ObjectDecoder(Pod)
_groups = ObjectDecoder(Group)
_group_fields = ObjectDecoder(own_resources.GroupFields)
_wholes = ObjectDecoder(dict[str, Any])


@dataclass(frozen=True)
class Admission:
    """`/mutate-pods`, `/mutate-groups`, `/validate-pods`, `/validate-groups` and `/validate-node-devices`."""

    groups: Mirror[Group]
    pods: Mirror[Pod]
    identity: str = contract.IDENTITY
    """The user name that deviceshare acts under, who alone may write its annotations."""
    agent: str = contract.AGENT_IDENTITY
    """The one of its agents on nodes, who may write nothing but their reports."""
    _: KW_ONLY
    bypasses: str = WARN
    """Whether ways around the hand-over are warned of or refused (bypasses.py). They are judged in the validation,
    which sees the pod as it is stored."""
    injection: InjectionSettings = DEFAULTS
    largest: pod_review.Largest = pod_review.no_largest
    """What the nodes have, to refuse shares that none can serve."""
    namespaces: Namespaces = field(default_factory=Namespaces)
    """To refuse pods whose namespace their group doesn't allow."""
    quotas: Quotas = field(default_factory=Quotas)
    """To refuse groups that alone exceed one."""
    by_claim: bool = False
    """Whether groups may hand their devices over by a ResourceClaim."""
    life: GroupLife = DEFAULT_LIFE
    """What becomes of deleted groups whose spec doesn't say."""

    @cached_property
    def _marks(self) -> list[bytes]:
        """One of these is in every pod that concerns deviceshare: the API server escapes nothing in such names."""
        served = (mark for system in self.injection.dialects for mark in MARKERS.get(system, ()))
        return [name.encode() for name in (*FAMILIES, *served)]

    def routes(self) -> list[Route]:
        """The webhooks' paths, for a Server of `MAX_BODY` bytes."""
        first = self._await_group if self.by_claim else None
        return [
            Route("POST", "/mutate-pods", _handler("Pod", self._mutate_pod, self.identity, first)),
            Route("POST", "/mutate-groups", _handler(contract.GROUP_KIND, self._mutate_group)),
            Route("POST", "/validate-pods", _handler("Pod", self._validate_pod, self.identity)),
            Route("POST", "/validate-groups", _handler(contract.GROUP_KIND, self._validate_group)),
            Route("POST", "/validate-node-devices", _handler(contract.NODE_DEVICES_KIND, self._validate_node_devices)),
        ]

    async def _await_group(self, request: ReviewRequest) -> None:
        """Waits a moment for a group that was created just before its pod: how a pod gets devices, the group says."""
        raw = bytes(request.object)
        if request.operation != "CREATE" or contract.GROUP.encode() not in raw:
            return
        name = (decode_object(_concerns, request.object).metadata.annotations or {}).get(contract.GROUP, "")
        for _ in range(GROUP_LOOKS):
            if not name or self.groups.get(name):
                return
            await asyncio.sleep(GROUP_LOOK_SECONDS)

    def _mutate_pod(self, request: ReviewRequest) -> ReviewVerdict:
        ours, raw = request.operation == "UPDATE" and request.user_info.username == self.identity, bytes(request.object)
        # Nearly every pod of a cluster comes by here and is none of ours, so none of it is decoded.
        if ours or not any(name in raw for name in self._marks):
            return ALLOWED
        pod = _draft(request.object)
        if request.operation == "CREATE" and not request.sub_resource:
            name = (pod.metadata.annotations or {}).get(contract.GROUP, "")
            known = self.groups.synced
            injection = inject(pod, self.groups.get(name), group_known=known, settings=self.injection)
        elif request.operation == "UPDATE" and request.sub_resource == "ephemeralcontainers":
            injection = inject_ephemeral(pod, _ephemeral_names(_draft(request.old_object)), self.injection)
        else:
            injection = Injection()
        return ReviewVerdict(injection.refusal, patch=injection.patch, warnings=injection.warnings)

    def _mutate_group(self, request: ReviewRequest) -> ReviewVerdict:
        if request.operation != "CREATE":
            return ALLOWED
        group = _group(request.object, whole=False)  # what can't be read is for the validation to refuse
        return ReviewVerdict(patch=own_resources.new_group_patch(group, self.life))

    def _validate_pod(self, request: ReviewRequest) -> ReviewVerdict:
        if not (self._concerns_us(request.object) or self._concerns_us(request.old_object)):
            return ALLOWED
        if request.operation == "CREATE":
            pod, settings = _pod(request.object), self.injection
            group, namespace = self.groups.get(pod.group), request.namespace or pod.metadata.namespace
            draft = _draft(request.object)
            refusal = pod_review.review_new_pod(
                pod,
                group,
                largest=self.largest,
                dialects=settings.dialects,
                placement=settings.placement,
                outsider=self.namespaces.refusal(group, namespace) if group else None,
                lacks_claim=lacks_claim(draft, group) if group and group.claim else "",
            )
            return self._verdict(refusal, bypasses(draft))
        if request.operation != "UPDATE":
            return ALLOWED
        if request.sub_resource == "ephemeralcontainers":
            draft, before = _draft(request.object), _draft(request.old_object)
            existing = _ephemeral_names(before)
            known = bypasses(before, existing)
            added = [way for way in bypasses(draft, existing) if way not in known]
            group = self.groups.get((draft.metadata.annotations or {}).get(contract.GROUP, ""))
            return self._verdict(pod_review.review_ephemeral_containers(draft, existing, group), added)
        if request.user_info.username == self.identity:
            return ALLOWED  # whatever the pod is like: what only we write must not hang on what others wrote into it
        # Only metadata is judged here, so other fields that can't be read don't matter.
        old, new = (_pod(raw, whole=False) for raw in (request.old_object, request.object))
        if new.metadata.hides("metadata.labels") or new.metadata.hides("metadata.annotations"):
            raise UnreadableReviewObject(f"the pod can't be read ({new.metadata.fault})")
        around = new_bypasses(old.metadata.annotations, new.metadata.annotations)
        return self._verdict(pod_review.review_changed_pod(old, new, by_deviceshare=False), around)

    def _concerns_us(self, raw: Raw) -> bool:
        if bytes(raw) == b"null":
            return False
        metadata = decode_object(_concerns, raw).metadata
        return concerns(metadata.labels, metadata.annotations, _share(raw), self.injection.dialects)

    def _verdict(self, refusal: str, around: list[str]) -> ReviewVerdict:
        refused, warnings = refusal_or_warnings(around, self.bypasses)
        return ReviewVerdict(refusal or refused, warnings=warnings)

    def _validate_group(self, request: ReviewRequest) -> ReviewVerdict:
        if request.sub_resource:
            return ALLOWED  # RBAC guards the status; a user with the right may need it to repair a group
        if request.operation == "DELETE":
            group = decode_object(_groups, request.old_object, whole=False)
            if not self.pods.synced:
                return ReviewVerdict(
                    f"deviceshare doesn't know yet which pods use {group.name!r}: retry in a few seconds", code=503
                )
            return ReviewVerdict(own_resources.review_deleted_group(group, self.pods.values(), self.life))
        if request.operation not in ("CREATE", "UPDATE"):
            return ALLOWED
        old = _group(request.old_object, whole=False) if request.operation == "UPDATE" else None
        new = _group(request.object, whole=old is None)
        refusal = own_resources.review_fields(_fields(request.old_object), _fields(request.object))
        if new.spec.handover and not self.by_claim and not (old and old.spec.handover == new.spec.handover):
            refusal = refusal or _NO_CLAIMS
        refusal = refusal or (
            own_resources.review_changed_group(old, new) if old else own_resources.review_new_group(new)
        )
        return ReviewVerdict(refusal or own_resources.review_quota(new, old, self.quotas.refusal(new)))

    def _validate_node_devices(self, request: ReviewRequest) -> ReviewVerdict:
        user = request.user_info
        agent, updated = user.username == self.agent, request.operation == "UPDATE"
        if agent and not updated:
            return ReviewVerdict(
                "an agent may only update the status of a NodeDevices; the leader creates and deletes them"
            )
        if request.operation == "DELETE":
            return ReviewVerdict(own_resources.review_deletion(_whole(request.old_object)))
        # From Kubernetes 1.28 on the API server asks only about those who may not write the whole object.
        if not updated or user.username == self.identity or own_resources.ADMINISTRATORS in (user.groups or ()):
            return ALLOWED
        old, new = _whole(request.old_object), _whole(request.object)
        if agent:
            return ReviewVerdict(own_resources.review_report(old, new, user.node))
        return ReviewVerdict(own_resources.review_repair(old, new))


def _share(raw: Raw) -> ShareRequest:
    text = bytes(raw)
    return decode_object(_drafts, raw).spec.share if any(name in text for name in _SHARES) else NO_SHARE


def _ephemeral_names(pod: Draft) -> set[str]:
    return {container.name for container in pod.spec.ephemeral_containers or ()}


def _draft(raw: Raw) -> Draft:
    pod = decode_object(_drafts, raw)
    spec = pod.spec
    for containers in (spec.containers, spec.init_containers, spec.ephemeral_containers):
        _check_number("containers of a kind in a pod", containers or (), _MAX_CONTAINERS)
    ours = [key for key in pod.metadata.annotations or () if key.startswith(contract.PREFIX)]
    _check_number(f"annotations of a pod that begin with {contract.PREFIX}", ours, _MAX_OURS)
    return pod


def _pod(raw: Raw, *, whole: bool = True) -> Pod:
    pod = decode_object(_pods, raw, whole=whole)
    _check_number("containers of a pod", pod.spec.containers or (), _MAX_CONTAINERS)
    return pod


def _fields(raw: Raw) -> own_resources.GroupFields:
    """None of an object that isn't there, or whose spec can't be read."""
    try:
        return decode_object(_group_fields, raw)
    except UnreadableReviewObject:
        return own_resources.GroupFields()


def _group(raw: Raw, *, whole: bool = True) -> Group:
    group = decode_object(_groups, raw, whole=whole)
    _check_number("resources in spec.resources", group.spec.resources, _MAX_RESOURCES)
    return group


def _whole(raw: Raw) -> dict[str, Any]:
    whole = decode_object(_wholes, raw)
    for key in ("metadata", "spec", "status"):
        if not isinstance(whole.get(key) or {}, dict):
            raise UnreadableReviewObject(f"the object can't be read: {key} is not a map")
    if not isinstance((whole.get("spec") or {}).get("claims") or {}, dict):
        raise UnreadableReviewObject("the object can't be read: spec.claims is not a map")
    return whole


def _check_number(what: str, found: Sized, limit: int) -> None:
    if len(found) > limit:
        raise UnreadableReviewObject(f"{len(found)} {what} are more than deviceshare accepts: at most {limit}")


def _handler(
    kind: str,
    judge: Callable[[ReviewRequest], ReviewVerdict],
    identity: str = "",
    first: Callable[[ReviewRequest], Awaitable[None]] | None = None,
) -> Handler:
    repeats = Repeats()
    most = MAX_LEDGER_MEMBERS if kind == contract.NODE_DEVICES_KIND else MAX_MEMBERS

    async def handle(request: HttpRequest) -> Response:
        try:
            review = decode(request.body, kind, identity, most)
        except BadReview as error:
            repeats.write(log.warning, "Refused a malformed review", path=request.path, error=str(error))
            raise Refusal(400, f"{error}\n") from error
        try:
            if first:
                await first(review)
            verdict = judge(review)
            body = encode(review, verdict)
        except (UnreadableReviewObject, RecursionError) as error:
            verdict = ReviewVerdict(
                str(error) if isinstance(error, UnreadableReviewObject) else "the object is nested too deeply", code=400
            )
            body = encode(review, verdict)
        return Response(body, result="refused" if verdict.refusal else "ok")

    return handle
