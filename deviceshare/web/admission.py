"""The admission webhooks. They decide from the object under review and the mirrors alone.

No call to the API server is made here: each creation of a pod waits for the answer, and an API server that is slow
because of webhooks that ask it again would stay so. Nothing is remembered either, so a dry run is like any other.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import structlog
from aiohttp import web
from msgspec import Raw, Struct, field

from deviceshare.domain import contract
from deviceshare.domain.drafts import Draft, DraftMeta
from deviceshare.domain.groups import Group
from deviceshare.domain.injection import Injection, concerns, inject, inject_ephemeral
from deviceshare.domain.pods import Pod
from deviceshare.domain.review_groups import review_changed_group, review_deleted_group, review_new_group
from deviceshare.domain.review_node_devices import review_report
from deviceshare.domain.review_pods import review_changed_pod, review_ephemeral_containers, review_new_pod
from deviceshare.loops.ports import Mirror
from deviceshare.web.review import ALLOWED, BadReview, Request, Unreadable, Verdict, decode, decode_object, encode
from deviceshare.web.server import RESULT

log = structlog.get_logger(__name__)

MAX_BODY = 8 << 20
"""Bytes. etcd takes objects of 1.5 MiB, and a review holds two."""


class _Concern(Struct, frozen=True):
    """As much of a pod as it takes to leave it alone."""

    metadata: DraftMeta = field(default_factory=DraftMeta)


_concerns = msgspec.json.Decoder(_Concern)
_drafts = msgspec.json.Decoder(Draft)
_pods = msgspec.json.Decoder(Pod)
_groups = msgspec.json.Decoder(Group)
_wholes = msgspec.json.Decoder(dict[str, Any])


class Admission:
    """`/mutate-pods`, `/validate-pods`, `/validate-groups` and `/validate-node-devices`.

    `identity` is the user name deviceshare acts under, who alone may write its annotations; `agent` the one of its
    agents on nodes, who may write nothing but their reports. `runtime_class` is the one that pods of groups get, or "".
    """

    def __init__(
        self,
        groups: Mirror[Group],
        pods: Mirror[Pod],
        identity: str = contract.IDENTITY,
        agent: str = contract.AGENT_IDENTITY,
        *,
        runtime_class: str = "",
    ) -> None:
        self._groups = groups
        self._pods = pods
        self._identity = identity
        self._agent = agent
        self._runtime_class = runtime_class

    def routes(self) -> list[web.RouteDef]:
        """What a Server of `MAX_BODY` bytes serves."""
        return [
            web.post("/mutate-pods", _handler("Pod", self._mutate_pod)),
            web.post("/validate-pods", _handler("Pod", self._validate_pod)),
            web.post("/validate-groups", _handler(contract.GROUP_KIND, self._validate_group)),
            web.post("/validate-node-devices", _handler(contract.NODE_DEVICES_KIND, self._validate_node_devices)),
        ]

    def _mutate_pod(self, request: Request) -> Verdict:
        if not _concerns_us(request.object):
            return ALLOWED
        pod = decode_object(_drafts, request.object)
        if request.operation == "CREATE" and not request.sub_resource:
            name = (pod.metadata.annotations or {}).get(contract.GROUP, "")
            known, runtime_class = self._groups.synced, self._runtime_class
            injection = inject(pod, self._groups.get(name), group_known=known, runtime_class=runtime_class)
        elif request.operation == "UPDATE" and request.sub_resource == "ephemeralcontainers":
            injection = inject_ephemeral(pod, _ephemeral_names(request.old_object))
        else:
            injection = Injection()
        return Verdict(injection.refusal, patch=injection.patch, warnings=injection.warnings)

    def _validate_pod(self, request: Request) -> Verdict:
        if not (_concerns_us(request.object) or _concerns_us(request.old_object)):
            return ALLOWED
        if request.operation == "CREATE":
            return Verdict(review_new_pod(decode_object(_pods, request.object)))
        if request.operation != "UPDATE":
            return ALLOWED
        if request.sub_resource == "ephemeralcontainers":
            pod = decode_object(_drafts, request.object)
            return Verdict(review_ephemeral_containers(pod, _ephemeral_names(request.old_object)))
        old, new = decode_object(_pods, request.old_object), decode_object(_pods, request.object)
        return Verdict(review_changed_pod(old, new, by_deviceshare=request.user_info.username == self._identity))

    def _validate_group(self, request: Request) -> Verdict:
        if request.sub_resource:
            return ALLOWED  # the status is guarded by RBAC; whoever has the right may need it to repair
        if request.operation == "CREATE":
            return Verdict(review_new_group(decode_object(_groups, request.object)))
        if request.operation == "UPDATE":
            old, new = decode_object(_groups, request.old_object), decode_object(_groups, request.object)
            return Verdict(review_changed_group(old, new))
        if request.operation == "DELETE":
            group = decode_object(_groups, request.old_object)
            if not self._pods.synced:
                return Verdict(f"deviceshare doesn't know yet which pods use {group.name!r}: try again soon", code=503)
            return Verdict(review_deleted_group(group, self._pods.values()))
        return ALLOWED

    def _validate_node_devices(self, request: Request) -> Verdict:
        if request.user_info.username != self._agent:
            return ALLOWED
        if request.operation != "UPDATE":
            return Verdict("an agent only reports on a NodeDevices that is there; the leader makes and deletes them")
        old, new = decode_object(_wholes, request.old_object), decode_object(_wholes, request.object)
        return Verdict(review_report(old, new, request.user_info.node))


def _concerns_us(raw: Raw) -> bool:
    if bytes(raw) == b"null":
        return False
    metadata = decode_object(_concerns, raw).metadata
    return concerns(metadata.labels, metadata.annotations)


def _ephemeral_names(raw: Raw) -> set[str]:
    return {container.name for container in decode_object(_drafts, raw).spec.ephemeral_containers or ()}


def _handler(kind: str, judge: Callable[[Request], Verdict]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            review = decode(await request.read(), kind)
        except BadReview as error:
            log.warning("Refused a request that is no review", path=request.path, error=str(error))
            raise web.HTTPBadRequest(text=f"{error}\n") from error
        try:
            verdict = judge(review)
        except Unreadable as error:
            verdict = Verdict(str(error), code=400)
        response = web.Response(body=encode(review, verdict), content_type="application/json")
        response[RESULT] = "refused" if verdict.refusal else "ok"
        return response

    return handle
