"""The scheduler extender: filter, prioritize, preempt and bind.

https://github.com/kubernetes/design-proposals-archive/blob/main/scheduling/scheduler_extender.md

When deviceshare can't answer yet it returns an `Error`: kube-scheduler retries the pod after a backoff. After an empty
list of nodes it would wait until something in the cluster changes, five minutes at worst.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog
from aiohttp import web

from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import missing, pod_obstacle, request_of
from deviceshare.domain.placement.shapes import Filtered
from deviceshare.loops.ports import ApiError, Mirror
from deviceshare.loops.protocol.bind import Refused
from deviceshare.web.extender_api import (
    ARGUMENTS,
    BINDING,
    PREEMPTION,
    error_result,
    filter_result,
    named_nodes,
    preemption_result,
    scores_result,
)
from deviceshare.web.origins import LOOPBACK, OwnNames, check_json, check_origin
from deviceshare.web.quoting import quoted
from deviceshare.web.server import RESULT

log = structlog.get_logger(__name__)

MAX_BODY = 128 * 1024 * 1024
"""Bytes of a request; 5,000 whole nodes are 40 MB."""
MAX_AT_ONCE = 192 * 1024 * 1024
"""Bytes of all requests under way. A kube-scheduler calls filter and prioritize one at a time; binds are small."""
MAX_CONNECTIONS = 256
"""A kube-scheduler uses one for each bind under way."""
TIMEOUT = 14.0
"""Seconds for a request; kube-scheduler's httpTimeout for the extender is 15."""

STARTING = "deviceshare has not read the cluster's state yet; kube-scheduler retries the pod"


class Binds(Protocol):
    """What the extender needs of the Binder."""

    def remember(self, pod: Pod) -> None: ...

    def deviceless(self, uid: str) -> bool: ...

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None: ...


@dataclass(frozen=True)
class Extender:
    """Answers kube-scheduler from the fleet."""

    fleet: Fleet
    groups: Mirror[Group]
    binder: Binds
    fault: Callable[[], str]
    """Why no pod may be placed now, such as STARTING; "" while nothing is in the way."""
    guard: PodGuard = PodGuard()  # noqa: RUF009 it is never changed
    own_names: OwnNames | None = LOOPBACK

    def routes(self) -> list[web.RouteDef]:
        """The extender's paths, for a Server of `MAX_BODY` bytes and `TIMEOUT` seconds."""
        return [
            web.post("/filter", self._decoded(self._filter)),
            web.post("/prioritize", self._decoded(self._prioritize)),
            web.post("/preempt", self._decoded(self._preempt)),
            web.post("/bind", self._decoded(self._bind)),
        ]

    async def _filter(self, body: bytes) -> web.Response:
        arguments = ARGUMENTS.decode(body)
        names, whole = named_nodes(arguments)
        pod = self.guard(arguments.pod)
        self.binder.remember(pod)
        if not pod.wants_devices and not pod.left_out:
            return _json(filter_result(names, {}, whole))
        if fault := self.fault():
            return _json(error_result(fault), "not-ready")
        fits, refused = self._place(pod, names)
        return _json(filter_result(fits, refused, whole), "ok" if fits else "no-fit")

    def _place(self, pod: Pod, names: Sequence[str]) -> Filtered:
        group = self.groups.get(pod.group) if pod.group else None
        request, obstacle = request_of(pod, group), pod_obstacle(pod, group, self.fleet.namespaces)
        if obstacle or request is None:
            return Filtered([], {obstacle or missing(pod): list(names)})
        return self.fleet.filter(request, names)

    async def _prioritize(self, body: bytes) -> web.Response:
        arguments = ARGUMENTS.decode(body)
        names, _ = named_nodes(arguments)
        pod = arguments.pod
        request = request_of(pod, self.groups.get(pod.group) if pod.group else None)
        scores = self.fleet.prioritize(request, names) if request else dict.fromkeys(names, 0)
        return _json(scores_result(scores))

    async def _preempt(self, body: bytes) -> web.Response:
        """Allows evictions only on nodes that pass filter already: evicting a pod releases no device of a claim."""
        asked = PREEMPTION.decode(body)
        pod, victims = self.guard(asked.pod), asked.victims
        if not pod.wants_devices and not pod.left_out:
            return _json(preemption_result(victims))
        if fault := self.fault():
            # Preemption's result has no field `Error`. At any status but 200 kube-scheduler evicts no pod.
            return _json(error_result(fault), "not-ready", status=503)
        fits = self._place(pod, list(victims)).fits
        return _json(preemption_result({node: victims[node] for node in fits}), "ok" if fits else "no-fit")

    async def _bind(self, body: bytes) -> web.Response:
        asked = BINDING.decode(body)
        if (fault := self.fault()) and not self.binder.deviceless(asked.pod_uid):
            return _json(error_result(fault), "not-ready")
        try:
            await self.binder.bind(asked.pod_namespace, asked.pod_name, asked.pod_uid, asked.node)
        except (Refused, ApiError) as error:
            result = "refused" if isinstance(error, Refused) else "api-error"
            pod = quoted(f"{asked.pod_namespace}/{asked.pod_name}")
            log.warning("Refused to bind pod", pod=pod, node=quoted(asked.node), reason=str(error))
            return _json(error_result(f"deviceshare: {error}"), result)
        return _json(error_result(""))

    def _decoded(
        self, answer: Callable[[bytes], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Answers malformed JSON with 400 and its position, and refuses requests forged through browsers."""

        async def handler(request: web.Request) -> web.Response:
            check_origin(request, self.own_names)
            check_json(request)
            try:
                return await answer(await request.read())
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                message = f"not a request of a kube-scheduler (k8s.io/kube-scheduler/extender/v1): {quoted(error)}"
                return _json(error_result(message), "malformed", status=400)

        return handler


def _json(body: bytes, result: str = "ok", status: int = 200) -> web.Response:
    response = web.Response(body=body, status=status, content_type="application/json")
    response[RESULT] = result
    return response
