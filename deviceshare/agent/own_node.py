"""The agent's own node: its mirrors, its recorder of Events, its clocks, its report, and the agent's few writes."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.device_health.containers import NodePod, NodePods
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement.device_states import Use, device_states
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.ports import Kind, Mirror, NotFound, Recorder, Subject
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

T = TypeVar("T")

NODE_PODS: Final = Kind("v1", "Pod", "pods", NodePod, namespaced=True)


def pod_subject(key: str, uid: str) -> Subject:
    """The pod `namespace/name` with this UID as the subject of an Event."""
    namespace, _, name = key.rpartition("/")
    return Subject(PODS, name, namespace, uid)


class Writer(Protocol):
    """What agents write, beside events. Every call is bounded in time and raises an `ApiError`."""

    async def apply(
        self, kind: Kind[T], name: str, body: Mapping[str, Any], *, manager: str, subresource: str = ""
    ) -> T:
        """Server-side apply, by force."""
        ...

    async def evict(self, namespace: str, pod: str, *, uid: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class OwnNode:
    """What the agent's parts share."""

    name: str
    ledgers: Mirror[NodeDevices]
    """Of this node alone, as `pods` are."""
    pods: Mirror[NodePod]
    recorder: Recorder
    writer: Writer
    now: Callable[[], str]
    """The time, RFC 3339."""
    left_out: frozenset[str] = frozenset()
    """The namespaces whose pods the webhooks don't review: what those say of themselves is not believed."""
    clock: Callable[[], float] = time.monotonic

    @cached_property
    def report(self) -> "Report":
        """What is told of it in its NodeDevices."""
        return Report(self)

    @property
    def ledger(self) -> NodeDevices | None:
        return self.ledgers.get(self.name)

    def present_pods(self) -> NodePods:
        """Its pods and their containers at this moment."""
        return NodePods(self.name, self.pods.values(), self.left_out)

    def groups(self) -> dict[tuple[str, int], str]:
        """The groups that hold its devices, by the devices' resource and number."""
        # A lost device's number may be another's now.
        states = () if self.ledger is None else (each for each in device_states(self.ledger) if not each.lost)
        held = (each for each in states if each.use in (Use.HELD, Use.RELEASING) and each.group)
        return {(each.device.resource, each.device.index): each.group for each in held}


class Report:
    """Has `status.hardware` of the node's NodeDevices say what the agent's parts tell, while `run` runs.

    Every write makes a bind that is claiming on this node at the moment retry, and thousands of agents write to one API
    server: there is no heartbeat, but for a report with turns every ten minutes (`TurnReports`). The fields are the
    agent's own (server-side apply), so no write conflicts; a report that another writer changed is written again.
    """

    def __init__(self, node: OwnNode) -> None:
        self._node = node
        self.known = Hardware()
        """What was told, and of the rest what the agent before this one reported."""
        self.resumed = False
        """Whether its report has been read. Until then nothing is judged by `known`, and nothing written."""
        self._told: set[str] = set()
        self.reports = 0
        """Writes so far."""
        self.fault = "nothing was reported yet"
        """Why the API server doesn't have the report, or ""."""
        self._wanted: Hardware | None = None
        # What was written last and what the API server kept of it: a CRD older than the agent drops fields.
        self._written = self._kept = Hardware()
        self._missing = self._cut = False
        self._queue: Queue[str] = Queue("report", self._reconcile, workers=1)
        self.run = self._queue.run
        self._node.ledgers.subscribe(lambda change: self._queue.add(change.key))

    @property
    def written(self) -> Hardware | None:
        """What the API server has of this agent; None while something else is being written."""
        return self._kept if self._wanted == self._written else None

    @property
    def judged(self) -> Hardware | None:
        """What is known, once it is what this agent found of the devices."""
        return self.known if "devices" in self._told else None

    def resume(self, reported: Hardware) -> None:
        """Resumes from the report of the agent before this one."""
        self.known = replace(reported, **{name: getattr(self.known, name) for name in self._told})
        self.resumed = True
        self.tell()

    def tell(self, **parts: Any) -> None:
        """Reports these fields of Hardware from now on, unless they are reported already.

        The first report waits for the devices and for what plugins allocated: else each restart of an agent would make
        it unknown for a moment.
        """
        self._told |= parts.keys()
        self.known = replace(self.known, **parts)
        if self.resumed and self._told.issuperset(("devices", "allocations")) and self.known != self._wanted:
            self._wanted = self.known
            self._queue.add(self._node.name)

    async def _reconcile(self, _: str) -> None:
        wanted, ledger = self._wanted, self._node.ledger
        if wanted is None:
            return
        if ledger is None:
            self._miss()
        elif ledger.status.hardware == wanted or (wanted, ledger.status.hardware) == (self._written, self._kept):
            self.fault = ""
        else:
            await self._write(wanted)

    async def _write(self, wanted: Hardware) -> None:
        body = {"status": {"hardware": msgspec.to_builtins(wanted)}}
        try:
            name, manager = self._node.name, contract.AGENT
            made = await self._node.writer.apply(NODE_DEVICES, name, body, manager=manager, subresource="status")
        except NotFound:
            self._miss()  # The watch will report its addition.
            return
        self.reports += 1
        if replace(wanted, turns=None) == replace(self._written, turns=None):
            log.debug("Reported turns", queues=wanted.turns.count if wanted.turns else 0)
        else:
            unhealthy = sum(bool(part.unhealthy) for part in wanted.devices)
            log.info("Reported hardware", devices=len(wanted.devices), unhealthy=unhealthy, driver=wanted.driver)
        self._written, self._kept = wanted, made.status.hardware
        self._missing, self.fault = False, ""
        self._node.ledgers.put(made)
        cut, self._cut = self._cut, made.status.hardware != wanted
        if self._cut and not cut:
            log.warning("API server kept a part of the report only: apply the CRDs of this version")

    def _miss(self) -> None:
        self.fault = "the node has no NodeDevices yet"
        if not self._missing:
            self._missing = True
            log.info("Found no NodeDevices to report into; waiting for the leader to create it", node=self._node.name)
