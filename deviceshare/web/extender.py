"""The kube-scheduler extender over HTTP: filter, prioritize and bind, in the wire format of each Kubernetes version."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import structlog
from msgspec import Raw, Struct, field

from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.object_decoder import ObjectDecoder
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import missing, pod_obstacle, request_of
from deviceshare.domain.placement.shapes import Filtered
from deviceshare.loops.ports import ApiError, Mirror
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.replica.binder import Binder
from deviceshare.web.messages import Handler, HttpRequest, Response, Route, check_json, check_origin, quoted

# Questions and answers of the scheduler extender protocol, JSON with Go's capitalised keys.
# https://github.com/kubernetes/kube-scheduler/blob/master/extender/v1/types.go; `nodeCacheCapable` decides whether
# nodes come as `NodeNames` or, whole, as `Nodes`.


class NodeList(Struct, frozen=True):
    """Whole nodes are sent back as they came, so they are never decoded beyond their names."""

    items: list[Raw] | None = None  # Go writes an empty list as null


class Arguments(Struct, frozen=True, rename="pascal"):
    """The request of filter and prioritize."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class Binding(Struct, frozen=True):
    """The request of bind."""

    pod_name: str = field(name="PodName")
    pod_namespace: str = field(name="PodNamespace")
    pod_uid: str = field(name="PodUID")
    node: str = field(name="Node")


class _Metadata(Struct, frozen=True):
    name: str
    uid: str = ""


class _Whole(Struct, frozen=True):
    """The part of a whole node or pod that is read."""

    metadata: _Metadata


class Victims(Struct, frozen=True):
    """The pods that would be evicted on one node."""

    pods: list[_Whole] | None = field(default=None, name="Pods")
    disruptions: int = field(default=0, name="NumPDBViolations")

    @property
    def meta(self) -> dict[str, Any]:
        """The same by UID, as kube-scheduler takes it back."""
        pods = [{"UID": victim.metadata.uid} for victim in self.pods or ()]
        return {"Pods": pods, "NumPDBViolations": self.disruptions}


class Preemption(Struct, frozen=True, rename="pascal"):
    """The request of preempt: the nodes where kube-scheduler would evict pods to make room for this one."""

    pod: Pod
    node_name_to_victims: dict[str, Victims] | None = None
    node_name_to_meta_victims: dict[str, dict[str, Any]] | None = None

    @property
    def victims(self) -> dict[str, dict[str, Any]]:
        """By node, as they are sent back; whole pods come where `nodeCacheCapable` is false."""
        if self.node_name_to_meta_victims is not None:
            return self.node_name_to_meta_victims
        return {node: victims.meta for node, victims in (self.node_name_to_victims or {}).items()}


# Each raises msgspec.DecodeError, which names the position in the JSON.
ARGUMENTS: Final = ObjectDecoder(Arguments)
BINDING: Final = ObjectDecoder(Binding)
PREEMPTION: Final = ObjectDecoder(Preemption)
_WHOLE: Final = ObjectDecoder(_Whole)


def named_nodes(arguments: Arguments) -> tuple[Sequence[str], dict[str, Raw] | None]:
    """The nodes' names; and whole nodes by name where the scheduler sent those and expects them back.

    Raises:
        msgspec.DecodeError: a node has no name.
    """
    if arguments.node_names is not None:
        return arguments.node_names, None
    items = arguments.nodes.items if arguments.nodes else None
    whole = {_WHOLE.decode(item).metadata.name: item for item in items or ()}
    return list(whole), whole


def filter_result(
    fits: Sequence[str], refused: Mapping[Reason, Sequence[str]], whole: Mapping[str, Raw] | None, *, since_1_21: bool
) -> bytes:
    """The answer to filter, with names or whole nodes as the request has them; `refused` are nodes by reason.

    Preempting pods resolves no refusal of deviceshare, since evicting one doesn't end a claim. Releases that know
    `FailedAndUnresolvableNodes` (1.21 and later) prefer it; for older ones, which read `FailedNodes`, both are set.
    """
    texts = [(_for_events(str(reason)), nodes) for reason, nodes in refused.items()]
    failed = Raw(msgspec.json.encode({node: text for text, nodes in texts for node in nodes}))
    answer: dict[str, object] = {"FailedAndUnresolvableNodes": failed, "Error": ""}
    if not since_1_21:
        answer["FailedNodes"] = failed
    if whole is None:
        answer["NodeNames"] = fits
    else:
        answer["Nodes"] = {"items": [whole[name] for name in fits]}
    return msgspec.json.encode(answer)


def preemption_result(victims: Mapping[str, dict[str, Any]]) -> bytes:
    """The answer to preempt: pods may be evicted on these nodes only; with no nodes, none is."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def error_response(message: str, result: str = "", status: int = 200) -> Response:
    """The answer to filter or bind that failed: kube-scheduler records the message and retries the pod."""
    return Response(msgspec.json.encode({"Error": _for_events(message)}), status, result=result)


def _for_events(text: str) -> str:
    """kube-scheduler takes its event's text for a format (client-go's `Eventf`): "5% of" came out "5%!o(MISSING)f"."""
    return text.replace("%", " percent")


# The scheduler extender: filter, prioritize, preempt and bind.

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


@dataclass(frozen=True)
class Extender:
    """Answers kube-scheduler from the fleet."""

    fleet: Fleet
    groups: Mirror[Group]
    binder: Binder
    fault: Callable[[], str]
    """Why no pod may be placed now, such as STARTING; "" while nothing is in the way."""
    guard: PodGuard = PodGuard()  # noqa: RUF009 it is never changed
    own_name: str | None = ""
    """See `check_origin`."""
    since_1_21: Callable[[], bool] = lambda: False
    """Whether kube-scheduler is of 1.21 or later, for certain."""

    def routes(self) -> list[Route]:
        """The extender's paths, for a Server of `MAX_BODY` bytes and `TIMEOUT` seconds."""
        return [
            Route("POST", "/filter", self._decoded(self._filter)),
            Route("POST", "/filter-best", self._decoded(partial(self._filter, only_best=True))),
            Route("POST", "/prioritize", self._decoded(self._prioritize)),
            Route("POST", "/preempt", self._decoded(self._preempt)),
            Route("POST", "/bind", self._decoded(self._bind)),
        ]

    async def _filter(self, body: bytes, *, only_best: bool = False) -> Response:
        """With `only_best` just the nodes to which prioritize gives the most, which then isn't asked (decision 28).

        For a kube-scheduler without other extenders: one that is asked later might refuse them.
        """
        arguments = ARGUMENTS.decode(body)
        names, whole = named_nodes(arguments)
        pod = self.guard(arguments.pod)
        self.binder.remember(pod)
        if not pod.bound_by_us and not pod.left_out:
            return Response(filter_result(names, {}, whole, since_1_21=self.since_1_21()))
        if fault := self.fault():
            return error_response(fault, "not-ready")
        fits, refused = self._place(pod, names, only_best=only_best)
        answer = filter_result(fits, refused, whole, since_1_21=self.since_1_21())
        return Response(answer, result="ok" if fits else "no-fit")

    def _place(self, pod: Pod, names: Sequence[str], *, only_best: bool = False) -> Filtered:
        group = self.groups.get(pod.group) if pod.group else None
        request, obstacle = request_of(pod, group), pod_obstacle(pod, group, self.fleet.namespaces)
        if obstacle or request is None:
            return Filtered([], {obstacle or missing(pod): list(names)})
        found = self.fleet.filter(request, names)
        if only_best and len(found.fits) > 1:
            return found._replace(fits=self.fleet.best(request, found.fits))
        return found

    async def _prioritize(self, body: bytes) -> Response:
        arguments = ARGUMENTS.decode(body)
        names, _ = named_nodes(arguments)
        pod = arguments.pod
        request = request_of(pod, self.groups.get(pod.group) if pod.group else None)
        scores = self.fleet.prioritize(request, names) if request else dict.fromkeys(names, 0)
        return Response(msgspec.json.encode([{"Host": node, "Score": score} for node, score in scores.items()]))

    async def _preempt(self, body: bytes) -> Response:
        """Allows evictions only on nodes that pass filter already: evicting a pod releases no device of a claim."""
        asked = PREEMPTION.decode(body)
        pod, victims = self.guard(asked.pod), asked.victims
        if not pod.bound_by_us and not pod.left_out:
            return Response(preemption_result(victims))
        if fault := self.fault():
            # Preemption's result has no field `Error`. At any status but 200 kube-scheduler evicts no pod.
            return error_response(fault, "not-ready", status=503)
        fits = self._place(pod, list(victims)).fits
        allowed = preemption_result({node: victims[node] for node in fits})
        return Response(allowed, result="ok" if fits else "no-fit")

    async def _bind(self, body: bytes) -> Response:
        asked = BINDING.decode(body)
        if (fault := self.fault()) and not self.binder.deviceless(asked.pod_uid):
            return error_response(fault, "not-ready")
        try:
            await self.binder.bind(asked.pod_namespace, asked.pod_name, asked.pod_uid, asked.node)
        except (Refused, ApiError) as error:
            result = "refused" if isinstance(error, Refused) else "api-error"
            pod = quoted(f"{asked.pod_namespace}/{asked.pod_name}")
            log.warning("Refused to bind pod", pod=pod, node=quoted(asked.node), reason=str(error))
            return error_response(f"deviceshare: {error}", result)
        return error_response("")

    def _decoded(self, answer: Callable[[bytes], Awaitable[Response]]) -> Handler:
        """Answers malformed JSON with 400 and its position, and refuses requests forged through browsers."""

        async def handler(request: HttpRequest) -> Response:
            check_origin(request, self.own_name)
            check_json(request)
            try:
                return await answer(request.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                message = f"not a request of a kube-scheduler (k8s.io/kube-scheduler/extender/v1): {quoted(error)}"
                return error_response(message, "malformed", status=400)

        return handler
