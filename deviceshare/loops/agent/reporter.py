"""The report of the node's hardware in its NodeDevices, written only when it has changed.

Every write makes a bind that is claiming on this node at the moment retry, and thousands of agents write to one API
server: there is no heartbeat, but for a report with turns every ten minutes (turn_reports.py). The fields are the
agent's own (server-side apply), so no write conflicts; a report that was changed by another writer is written again.
"""

import msgspec
import structlog
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.agent.ports import Writer
from deviceshare.loops.kinds import NODE_DEVICES
from deviceshare.loops.ports import NotFound
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)


class Reporter:
    """Keeps `status.hardware` of one node's NodeDevices as it is wanted, while `run` runs."""

    def __init__(self, writer: Writer, node: OwnNode) -> None:
        self.reports = 0
        """Writes so far."""
        self.fault = "nothing was reported yet"
        """Why the API server doesn't have the report, or ""."""
        self._writer = writer
        self._node = node
        self._wanted: Hardware | None = None
        # What was written last and what the API server kept of it: a CRD older than the agent drops fields.
        self._written = self._kept = Hardware()
        self._missing = self._cut = False
        self._queue: Queue[str] = Queue("report", self._reconcile, workers=1)
        self.run = self._queue.run
        node.ledgers.subscribe(lambda change: self._queue.add(change.key))

    def want(self, hardware: Hardware) -> None:
        """Reports this, unless it is reported already."""
        if hardware != self._wanted:
            self._wanted = hardware
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
            made = await self._writer.apply(
                NODE_DEVICES, self._node.name, body, manager=contract.AGENT, subresource="status"
            )
        except NotFound:
            self._miss()  # The watch will report its addition.
            return
        self.reports += 1
        self._log_report(wanted)
        self._written, self._kept = wanted, made.status.hardware
        self._missing, self.fault = False, ""
        self._node.ledgers.put(made)
        cut, self._cut = self._cut, made.status.hardware != wanted
        if self._cut and not cut:
            log.warning("API server kept a part of the report only: apply the CRDs of this version")

    def _log_report(self, wanted: Hardware) -> None:
        if replace(wanted, turns=None) == replace(self._written, turns=None):
            log.debug("Reported turns", queues=wanted.turns.count if wanted.turns else 0)
            return
        unhealthy = sum(bool(part.unhealthy) for part in wanted.devices)
        log.info("Reported hardware", devices=len(wanted.devices), unhealthy=unhealthy, driver=wanted.driver)

    def _miss(self) -> None:
        self.fault = "the node has no NodeDevices yet"
        if not self._missing:
            self._missing = True
            log.info("Found no NodeDevices to report into; waiting for the leader to create it", node=self._node.name)
