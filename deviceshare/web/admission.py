"""The admission webhooks. They decide from the object under review and the mirrors alone.

They never call the API server: each creation of a pod waits for the answer, and a webhook's own calls would add to the
load of an API server that is already slow. They keep no state either, so a dry run needs no special case.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import structlog
from msgspec import Raw, Struct

from deviceshare.domain import contract
from deviceshare.domain.admission.bypasses import WARN, bypasses, new_bypasses, refusal_or_warnings
from deviceshare.domain.admission.dialects import MARKERS
from deviceshare.domain.admission.drafts import Draft, DraftMeta, concerns
from deviceshare.domain.admission.own_resource_review import (
    ADMINISTRATORS,
    GroupFields,
    review_changed_group,
    review_deleted_group,
    review_deletion,
    review_fields,
    review_new_group,
    review_quota,
    review_repair,
    review_report,
)
from deviceshare.domain.admission.pod_injection import Injection, inject, inject_ephemeral, lacks_claim
from deviceshare.domain.admission.pod_review import (
    Largest,
    no_largest,
    review_changed_pod,
    review_ephemeral_containers,
    review_new_pod,
)
from deviceshare.domain.admission.settings import DEFAULTS, InjectionSettings
from deviceshare.domain.objects.groups import DEFAULT_LIFE, Group, GroupLife
from deviceshare.domain.objects.object_decoder import ObjectDecoder
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import DIALECTS, FAMILIES, NO_SHARE, ShareRequest
from deviceshare.domain.placement.fleet import Quotas
from deviceshare.domain.placement.join_obstacles import Namespaces
from deviceshare.loops.ports import Mirror
from deviceshare.web.messages import JSON, Handler, HttpRequest, Refusal, Response, Route
from deviceshare.web.quoting import Repeats
from deviceshare.web.review import (
    ALLOWED,
    MAX_LEDGER_MEMBERS,
    MAX_MEMBERS,
    BadReview,
    ReviewRequest,
    ReviewVerdict,
    UnreadableReviewObject,
    decode,
    decode_object,
    encode,
)

log = structlog.get_logger(__name__)

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
_group_fields = ObjectDecoder(GroupFields)
_wholes = ObjectDecoder(dict[str, Any])


@dataclass(frozen=True)
class Admission:
    """`/mutate-pods`, `/validate-pods`, `/validate-groups` and `/validate-node-devices`."""

    groups: Mirror[Group]
    pods: Mirror[Pod]
    identity: str = contract.IDENTITY
    """The user name that deviceshare acts under, who alone may write its annotations."""
    agent: str = contract.AGENT_IDENTITY
    """The one of its agents on nodes, who may write nothing but their reports."""
    bypasses: str = field(default=WARN, kw_only=True)
    """Whether ways around the hand-over are warned of or refused (bypasses.py). They are judged in the validation,
    which sees the pod as it is stored."""
    injection: InjectionSettings = field(default=DEFAULTS, kw_only=True)
    largest: Largest = field(default=no_largest, kw_only=True)
    """What the nodes have, to refuse shares that none can serve."""
    namespaces: Namespaces = field(default_factory=Namespaces, kw_only=True)
    """To refuse pods whose namespace their group doesn't allow."""
    quotas: Quotas = field(default_factory=Quotas, kw_only=True)
    """To refuse groups that alone exceed one."""

    by_claim: bool = field(default=False, kw_only=True)
    """Whether groups may hand their devices over by a ResourceClaim."""
    life: GroupLife = field(default=DEFAULT_LIFE, kw_only=True)
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
            injection = inject_ephemeral(pod, _ephemeral_names(request.old_object), self.injection)
        else:
            injection = Injection()
        return ReviewVerdict(injection.refusal, patch=injection.patch, warnings=injection.warnings)

    def _validate_pod(self, request: ReviewRequest) -> ReviewVerdict:
        if not (self._concerns_us(request.object) or self._concerns_us(request.old_object)):
            return ALLOWED
        if request.operation == "CREATE":
            pod, settings = _pod(request.object), self.injection
            group, namespace = self.groups.get(pod.group), request.namespace or pod.metadata.namespace
            draft = _draft(request.object)
            refusal = review_new_pod(
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
            existing = _ephemeral_names(request.old_object)
            known = bypasses(before, existing)
            added = [way for way in bypasses(draft, existing) if way not in known]
            group = self.groups.get((draft.metadata.annotations or {}).get(contract.GROUP, ""))
            return self._verdict(review_ephemeral_containers(draft, existing, group), added)
        if request.user_info.username == self.identity:
            return ALLOWED  # whatever the pod is like: what only we write must not hang on what others wrote into it
        # Only metadata is judged here, so other fields that can't be read don't matter.
        old, new = (_pod(raw, whole=False) for raw in (request.old_object, request.object))
        if new.metadata.hides("metadata.labels") or new.metadata.hides("metadata.annotations"):
            raise UnreadableReviewObject(f"the pod can't be read ({new.metadata.fault})")
        around = new_bypasses(old.metadata.annotations, new.metadata.annotations)
        return self._verdict(review_changed_pod(old, new, by_deviceshare=False), around)

    def _concerns_us(self, raw: Raw) -> bool:
        if bytes(raw) == b"null":
            return False
        metadata = decode_object(_concerns, raw).metadata
        return concerns(metadata.labels, metadata.annotations, _share(raw), self.injection.dialects)

    def _verdict(self, refusal: str, around: list[str]) -> ReviewVerdict:
        refused, warnings = refusal_or_warnings(around, self.bypasses)
        return ReviewVerdict(refusal or refused, warnings=warnings)

    def _handover_off(self, group: Group) -> str:
        return _NO_CLAIMS if group.spec.handover and not self.by_claim else ""

    def _validate_group(self, request: ReviewRequest) -> ReviewVerdict:
        if request.sub_resource:
            return ALLOWED  # RBAC guards the status; a user with the right may need it to repair a group
        if request.operation == "CREATE":
            group = _group(request.object)
            if unknown := review_fields(GroupFields(), _fields(request.object)):
                return ReviewVerdict(unknown)
            if off := self._handover_off(group):
                return ReviewVerdict(off)
            return ReviewVerdict(review_new_group(group) or review_quota(group, None, self.quotas.refusal(group)))
        if request.operation == "UPDATE":
            old, new = (_group(raw, whole=False) for raw in (request.old_object, request.object))
            before, now = (_fields(raw) for raw in (request.old_object, request.object))
            changed = old.spec.handover != new.spec.handover
            if refusal := review_fields(before, now) or (self._handover_off(new) if changed else ""):
                return ReviewVerdict(refusal)
            return ReviewVerdict(review_changed_group(old, new) or review_quota(new, old, self.quotas.refusal(new)))
        if request.operation == "DELETE":
            group = decode_object(_groups, request.old_object, whole=False)
            if not self.pods.synced:
                return ReviewVerdict(
                    f"deviceshare doesn't know yet which pods use {group.name!r}: retry in a few seconds", code=503
                )
            return ReviewVerdict(review_deleted_group(group, self.pods.values(), self.life))
        return ALLOWED

    def _validate_node_devices(self, request: ReviewRequest) -> ReviewVerdict:
        user = request.user_info
        agent, updated = user.username == self.agent, request.operation == "UPDATE"
        if agent and not updated:
            return ReviewVerdict(
                "an agent may only update the status of a NodeDevices; the leader creates and deletes them"
            )
        if request.operation == "DELETE":
            return ReviewVerdict(review_deletion(_whole(request.old_object)))
        # From Kubernetes 1.28 on the API server asks only about those who may not write the whole object.
        if not updated or user.username == self.identity or ADMINISTRATORS in (user.groups or ()):
            return ALLOWED
        old, new = _whole(request.old_object), _whole(request.object)
        return ReviewVerdict(review_report(old, new, user.node) if agent else review_repair(old, new))


def _share(raw: Raw) -> ShareRequest:
    """What the pod's containers ask for."""
    text = bytes(raw)
    return decode_object(_drafts, raw).spec.share if any(name in text for name in _SHARES) else NO_SHARE


def _ephemeral_names(raw: Raw) -> set[str]:
    return {container.name for container in _draft(raw).spec.ephemeral_containers or ()}


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


def _fields(raw: Raw) -> GroupFields:
    """None of a spec that can't be read."""
    try:
        return decode_object(_group_fields, raw)
    except UnreadableReviewObject:
        return GroupFields()


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
            if (omitted := repeats.passes("no review")) is not None:
                log.warning("Refused a malformed review", path=request.path, error=str(error), **omitted)
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
        return Response(body, 200, JSON, "refused" if verdict.refusal else "ok")

    return handle
