"""The agent's report on its node, `status.hardware` of its NodeDevices: what it consists of, and its writer."""

from typing import Any

import msgspec
import structlog
from msgspec.structs import replace

from deviceshare.agent.own_node import OwnNode
from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import NotFound
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)


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
