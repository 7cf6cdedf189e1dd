"""What an agent answers the containers of its node's pods, over HTTP: each its own, known by its address.

Every container on the node reaches this server, and so does whoever reaches the node. It is another server than the
agent's own, which reports all pods. Nothing that a request says of itself is believed, so there is nothing to steal: no
token, no name, no X-Forwarded-For.
"""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from deviceshare.agent.own_node import OwnNode
from deviceshare.agent.turns import TurnConnection, Turns
from deviceshare.domain import contract
from deviceshare.domain.answers.pod_view import POD_COLUMNS, PodView, pod_lines, pod_rows, pod_view
from deviceshare.domain.device_health.containers import NODES_OWN, SHARED, NodePod
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import GPU_MEM, GROUP, POD, Holder
from deviceshare.domain.objects.usage import Usage
from deviceshare.domain.turns.program_queue import UNACKNOWLEDGED, queue_of
from deviceshare.domain.turns.turn_client import BadTurnRequest, script, turn_request
from deviceshare.domain.wording import printable
from deviceshare.flags import Address
from deviceshare.metrics import ServerMetrics
from deviceshare.web import messages
from deviceshare.web.messages import Client, Handler, HttpRequest, Refusal, Repeats, Response, Route
from deviceshare.web.server import Server

log = structlog.get_logger(__name__)

TIMEOUT: Final = 10.0
"""Seconds for a request, PATIENCE_SECONDS included. A stream removes it (`Streams`)."""
CONNECTIONS: Final = 512
CONNECTIONS_OF_ADDRESS: Final = 32
"""A few more than MAX_STREAMS_OF_POD. A node runs 110 pods, unless its kubelet is told otherwise."""
MAX_STREAMS: Final = 256
"""Half of the server's connections: the others are left for short answers."""
MAX_STREAMS_OF_POD: Final = 24
PATIENCE_SECONDS: Final = 5.0
"""For a pod or its claim that isn't known here yet: kubelets report an address about a second after they gave it."""
AGAIN_SECONDS: Final = 1.0
"""Between two attempts, where no watch reports a change: processes start and end without one."""
MAX_WAITING: Final = 64
"""Requests that wait so at once; further ones are refused without a wait, and may ask again."""
MAX_WAITING_OF_ADDRESS: Final = 4
MAX_BODY: Final = 1024
"""Bytes. Questions have their parameters in the query."""
_HELD: Final = CONNECTIONS * 4096
"""Bytes of all requests under way: a stream's stay until it ends."""
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_JSON: Final = "application/json"
ENDED: Final = "the address of a pod that has no process any more"
"""So that the next pod has it, which isn't known here yet."""
_DOCS: Final = "see docs/inside.md"
_NO_DEVICES: Final = (
    "pod {pod} has no devices of deviceshare. A pod joins a SharedDeviceGroup by the annotation {group}, set when it is"
    " created (kubectl get sdg), and has a part of a device by a limit such as {share}"
)
_NO_CLAIM: Final = "pod {pod} has {what} on node {node}. See why: kubectl describe ndev {node}"


class Caller(Struct, frozen=True):
    """A pod that asks, with what the API server says of it and the node's ledger of its devices."""

    pod: NodePod
    holder: Holder
    ledger: NodeDevices
    """As it was when the caller was recognized."""

    @property
    def meta(self) -> ObjectMeta:
        return self.pod.metadata


class Unrecognized(Exception):
    """It isn't known, so far, which pod asks or what it holds; the text says why and what to do."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final
        """Whether waiting can't help."""


class Callers:
    """Recognizes callers. Subscribes to the node's mirrors; their owner runs them.

    A pod that has just started is known to its node before it is known here; it is waited for, for a moment.
    """

    def __init__(self, node: OwnNode, may_run: Callable[[str], Awaitable[bool]]) -> None:
        """`may_run` says whether a process of the pod with this UID may run on the node (process_table.py)."""
        self._node = node
        self._may_run = may_run
        self._changed = asyncio.Event()
        self._waiting = Counter[str]()
        self._repeats = Repeats()
        node.pods.subscribe(lambda _: self._wake())
        node.ledgers.subscribe(lambda _: self._wake())

    async def caller(self, request: HttpRequest) -> Caller:
        """The pod that asks, which has devices of a holder; returns within `PATIENCE_SECONDS`.

        Raises:
            Refusal: 403, it isn't known which pod asks, or it has no devices, and the text says why and what to do; or
                503, the agent doesn't know the node's pods at the moment.
        """
        address = request.client.address
        try:
            return await self._patiently(address)
        except Unrecognized as unknown:
            self._repeats.write(log.info, "Refused a caller", peer=address, reason=str(unknown))
            if not self._node.pods.synced or not self._node.ledgers.synced:
                text = "the agent is out of touch with the API server, so it may not know this pod: ask again\n"
                raise Refusal(503, text, {"Retry-After": "5"}) from unknown
            raise Refusal(403, f"{unknown}\n") from unknown

    async def _patiently(self, address: str) -> Caller:
        until, waits = monotonic() + PATIENCE_SECONDS, Counter[str]()
        try:
            while True:
                changed = self._changed
                try:
                    return await self._recognize(address)
                except Unrecognized as unknown:
                    crowded = self._waiting.total() >= MAX_WAITING or self._waiting[address] >= MAX_WAITING_OF_ADDRESS
                    if unknown.final or monotonic() >= until or (crowded and not waits):
                        raise
                if not waits:
                    waits = Counter([address])
                    self._waiting += waits
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(AGAIN_SECONDS, until - monotonic())):
                        await changed.wait()
        finally:
            self._waiting -= waits  # drops the addresses that don't wait any more

    async def _recognize(self, address: str) -> Caller:
        pods, name = self._node.present_pods(), self._node.name
        pod = pods.at(address)
        if isinstance(pod, NodePod):
            runs, uid = await self._may_run(pod.metadata.uid), pod.metadata.uid
            pods = self._node.present_pods()  # as they are by now
            pod = pods.at(address)
            if not runs or (isinstance(pod, NodePod) and pod.metadata.uid != uid):
                pod = ENDED
        if isinstance(pod, str):
            raise _nobody(address, pod, name)
        key, ledger = pod.metadata.key, self._node.ledger
        # A static pod was never bound, so it has nothing, whatever its mirror pod says.
        holder = "" if pod.mirrored else pods.holder_uid(pod)
        if not holder:  # No binding follows for a pod that has an address.
            raise Unrecognized(_NO_DEVICES.format(pod=key, group=contract.GROUP, share=GPU_MEM), final=True)
        own = holder == pod.metadata.uid
        claim = ledger.claims.get(holder) if ledger else None
        # Shares are of one pod, and never another's, whatever that one says.
        if ledger is None or claim is None or (claim.shares and not own):
            group = "devices by its annotations, but its group holds none"
            what = "a share by its annotations, but none" if own else group
            raise Unrecognized(_NO_CLAIM.format(pod=key, what=what, node=name))
        return Caller(pod, claim.holder(holder), ledger)

    def _wake(self) -> None:
        # Those that wait now go on; those that come later wait for the next change.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _nobody(address: str, instead: str, node: str) -> Unrecognized:
    what = f"the request comes from {address}, {instead} on node {node}"
    if instead == NODES_OWN:
        cure = "programs of the node and pods with hostNetwork can't be told apart: ask from a pod without hostNetwork"
        return Unrecognized(f"{what}; {cure}, or from elsewhere: deviceshare inspect", final=True)
    if instead in (SHARED, ENDED):
        return Unrecognized(f"{what}; ask again in a moment, or {_DOCS}")
    return Unrecognized(f"{what}; ask the agent of the pod's own node, at $DEVICESHARE_AGENT ({_DOCS})")


class Endpoint(NamedTuple):
    """One question that pods may ask. Its handler recognizes the caller."""

    path: str
    help: str
    """What it answers, in one line."""
    handler: Handler
    method: str = "GET"


def pods_server(address: Address, endpoints: Sequence[Endpoint], metrics: ServerMetrics) -> Server:
    """The server of these endpoints, with its limits and the help at `/`."""
    width = max((len(each.path) for each in endpoints), default=0)
    text = (
        "deviceshare's agent on this node answers the pods of the node, each about its own devices:\n\n"
        + "".join(f"  {each.path:{width}}  {each.help}\n" for each in endpoints)
        + "\nFor example: curl -s $DEVICESHARE_AGENT/smi, or wget -qO- $DEVICESHARE_AGENT/smi\n"
    )

    nothing_here = f"There is nothing here, or not by this method.\n\n{text}"
    helping = Route("GET", "/", partial(_tell, text)), Route("*", "*", partial(_tell, nothing_here, status=404))
    return Server(
        "pods",
        *address,
        [*(Route(each.method, each.path, each.handler) for each in endpoints), *helping],
        metrics,
        max_body=MAX_BODY,
        timeout=TIMEOUT,
        connections=CONNECTIONS,
        per_address=CONNECTIONS_OF_ADDRESS,
        at_once=_HELD,
        flag="--serve-pods",
    )


async def _tell(text: str, _: HttpRequest, *, status: int = 200) -> Response:
    return plain(text, status=status)


def plain(text: str, *, status: int = 200) -> Response:
    """A text for people. Names in it are `printable` already (domain/objects/printable.py)."""
    return messages.plain(text, status, _HEADERS)


# `/smi`: the devices of the pod that asks, as text or, where the header `Accept` prefers it, as JSON.


def smi_endpoint(node: OwnNode, callers: Callers, usage: Callable[[], Usage]) -> Endpoint:
    """`usage` returns the agent's last reading of all devices of the node."""

    async def smi(request: HttpRequest) -> Response:
        caller = await callers.caller(request)
        # A pod with shares of its own shares nothing with others.
        mates = node.present_pods().mates(caller.pod) if caller.holder.kind == GROUP else []
        pod = Holder(caller.meta.uid, POD, caller.meta.key)
        view = pod_view(usage(), caller.ledger, pod, caller.holder, mates)
        return _as_json(view) if prefers_json(request.headers.get("accept", "")) else plain(drawn(view))

    return Endpoint("/smi", "This pod's devices, its processes on them, and who shares them; also as JSON.", smi)


def drawn(view: PodView) -> str:
    """The view as text, without anything that a terminal obeys."""
    lines = [printable(line) for line in pod_lines(view)]
    return "\n".join([*lines, "", *_aligned([POD_COLUMNS, *pod_rows(view.devices)]), ""])


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _as_json(view: PodView) -> Response:
    # ASCII: a terminal obeys none of what JSON may leave unescaped.
    text = json.dumps(msgspec.to_builtins(view), indent=1, ensure_ascii=True).replace("\x7f", "\\u007f")
    return Response(f"{text}\n".encode(), headers={**_HEADERS, **messages.JSON})


def prefers_json(accept: str) -> bool:
    """Whether the header names JSON, and no text that it likes better (RFC 9110, 12.5.1)."""
    weights: dict[str, float] = {}
    for part in accept[:1024].split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        weights[name] = max(weights.get(name, 0.0), _weight(parameters))
    text = max(weights.get(name, 0.0) for name in ("text/plain", "text/*"))
    return weights.get(_JSON, 0.0) > text


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0


class Streams:
    """Long answers: how many may be open at once, in all, for one namespace and for one pod.

    A namespace may have as many open as are still free: one takes half of all, a second half of the rest, and there is
    a place for the next one's first. Who holds a turn has a place in any case, or it would lose the turn with a
    connection.
    """

    def __init__(self) -> None:
        self._open = Counter[tuple[str, str]]()
        """By namespace and UID of the pod, without those that have a place in any case."""

    @contextmanager
    def opened(self, request: HttpRequest, caller: Caller, *, holds: bool = False) -> Iterator[None]:
        """Inside this block the request isn't bounded in time; who streams ends it. `holds`: it has a turn.

        Raises:
            Refusal: 429, the pod has too many streams open, or its namespace has its part of all.
        """
        if holds:  # One at a time: another one of the holder ends it.
            request.client.remove_timeout()
            yield
            return
        text, namespace = "", caller.meta.namespace
        pod, theirs = (namespace, caller.meta.uid), sum(each for key, each in self._open.items() if key[0] == namespace)
        if self._open[pod] >= MAX_STREAMS_OF_POD:
            text = f"pod {caller.meta.key} has {MAX_STREAMS_OF_POD} requests open already: end one of them\n"
        elif theirs >= MAX_STREAMS - self._open.total():
            text = f"the pods of namespace {namespace} have their part of this node's requests open: ask again\n"
        if text:
            raise Refusal(429, text, {"Retry-After": "5"})
        request.client.remove_timeout()
        self._open += Counter([pod])
        try:
            yield
        finally:
            self._open -= Counter([pod])  # drops the pods that have none open any more


class TurnsApi:
    """What pods ask about turns: the script, the stream by which a turn is awaited and held, and its release.

    A stream consists of lines; a client ignores words that it doesn't know:

        wait AGE TEXT     it waits; TEXT says for what
        turn AGE LEASE    it has the turn, for LEASE from when this was sent; repeated, as its heartbeat
        yield             its slice is over, and others wait
        gone TEXT         it has not the turn that it says it has: CMD has to end
        refused TEXT      it gets no turn, and asking again won't help

    AGE is for how long the connection has been open (domain/turns/program_queue.py), both times are in milliseconds.
    Refusals come with status 200: not every wget shows the body of an error.
    """

    def __init__(self, turns: Turns, callers: Callers) -> None:
        self._turns = turns
        self._callers = callers
        self._streams = Streams()

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "/turn.sh", "a script that runs a program in its turn: | sh -s -- --help", partial(_tell, script())
            ),
            Endpoint("/turn", "what the script asks: waits for the turn, and holds it", self._take),
            Endpoint("/turn/over", "what the script says when the turn is over", self._end),
        ]

    async def _take(self, request: HttpRequest) -> Response | None:
        try:
            wanted = turn_request(request.query)
            caller = await self._callers.caller(request)
        except BadTurnRequest as error:
            return _refused(str(error))
        except Refusal as refusal:
            if refusal.response.status != 403:
                raise
            return _refused(str(refusal))
        queue = queue_of(caller.ledger, caller.holder.uid)
        if queue is None:
            text = "has parts of several devices, and pods with shares take turns on one"
            return _refused(f"pod {caller.meta.key} {text}")
        holds = self._turns.has_turn((caller.meta.uid, wanted.token))
        with self._streams.opened(request, caller, holds=holds):
            connection = await self._turns.join(queue, wanted, caller.meta.uid, caller.meta.key)
            try:
                await _stream(request.client, connection)
            finally:
                self._turns.leave(connection)
        return None

    async def _end(self, request: HttpRequest) -> Response:
        caller = await self._callers.caller(request)
        self._turns.release((caller.meta.uid, request.query.get("token", "")))
        return plain("over\n")


def _refused(text: str) -> Response:
    return plain(f"refused {printable(text.strip())}\n")


async def _stream(client: Client, turn: TurnConnection) -> None:
    # A peer that acknowledges nothing is lost soon, not after the kernel's fifteen minutes.
    client.set_option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED * 1000))
    with suppress(ConnectionError):  # as clients end
        await client.begin_stream({"Content-Type": "text/plain", "Cache-Control": "no-store"})
        while (line := await turn.line()) is not None:
            await client.write(f"{line}\n".encode())
