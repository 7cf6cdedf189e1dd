"""The agent's reconciler: from each reading of the node's devices to their health, its report and its usage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from deviceshare.agent.allocations import Allocations
from deviceshare.agent.memory_limits import LimitsOutcome
from deviceshare.agent.own_node import OwnNode
from deviceshare.agent.violations import Violations
from deviceshare.domain import contract
from deviceshare.domain.device_health.containers import NodeProcess
from deviceshare.domain.device_health.examination import APPLICATION_XIDS, Reading, Xid, examine, reported_repaired
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part, ReportedTurns
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.usage import (
    MINUTES,
    UNKNOWN,
    DeviceHour,
    DeviceProcess,
    DeviceUsage,
    NodeUse,
    ShareMemory,
    Usage,
)
from deviceshare.loops.kinds import NODE_DEVICES, node_subject
from deviceshare.loops.ports import NotFound
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

PATIENCE: Final = 2
"""Readings in a row from a driver that doesn't answer, until its devices are unhealthy: it may only be restarting."""
BLIND_SECONDS: Final = 60.0
"""Without a reading for so long, the agent doesn't do its work. A driver that hangs is reported earlier."""
MINUTE: Final = 60.0
"""Seconds."""
MOST_DEVICES: Final = 256
"""Whose last hour is remembered; more than any node has."""


class DeviceHealth:
    """The health of the node's devices: by what is read of them, their errors, and what was reported before.

    The marks of unhealthy devices are read back from the last report before anything is judged, so that an agent that
    is restarted, or a node whose agent is replaced, forgets none.
    """

    def __init__(self, node: OwnNode, on_xid: Callable[[Xid], object]) -> None:
        self._node = node
        self._on_xid = on_xid
        self.known: Hardware | None = None
        """The devices as they were judged last, or by the agent before this one. Until it is set nothing is judged."""
        self._faults: dict[str, str] = {}
        self._silent = 0
        self._trouble: str | None = None

    @property
    def devices(self) -> list[Part]:
        """The devices that are known."""
        return self.known.devices if self.known else []

    def misses_device(self) -> bool:
        """Whether one is known to be lost."""
        return any(part.lost for part in self.devices)

    def judge(self, reading: Reading) -> Hardware | None:
        """The devices with their marks; None while that can't be decided yet."""
        self._take_xids(reading)
        self._log_trouble(reading)
        self._silent = 0 if reading.inventory else self._silent + 1
        if self.known is None or 0 < self._silent < PATIENCE:
            return None
        ledger = self._node.ledger
        repaired = reported_repaired(ledger) if ledger else frozenset()
        self.known, changes = examine(self.known, reading, faults=self._faults, repaired=repaired, now=self._node.now())
        self._faults = {}
        for part, sign in changes:
            self._tell(part, sign)
        return self.known

    def _take_xids(self, reading: Reading) -> None:
        for xid in reading.xids:
            self._on_xid(xid)
            if xid.number in APPLICATION_XIDS:
                log.info("Driver reported an error of an application", uuid=xid.uuid, xid=xid.number, text=xid.text)
                continue
            log.warning("Driver reported an error of a device", uuid=xid.uuid, xid=xid.number, text=xid.text)
            # Where the driver doesn't say which device it is, it may be any.
            devices = reading.devices or self.devices
            self._faults.update(dict.fromkeys([xid.uuid] if xid.uuid else [each.uuid for each in devices], xid.text))

    def _tell(self, part: Part, sign: str) -> None:
        """Of a device that became unhealthy or, with a sign of it, recovered."""
        subject, name = node_subject(self._node.name), f"{part.resource} {part.index} ({part.uuid})"
        if sign:
            log.info("Device recovered", uuid=part.uuid, index=part.index, sign=sign)
            self._node.recorder.note(subject, "DeviceRecovered", f"{name} is healthy again: {sign}")
        else:
            log.warning("Device is unhealthy", uuid=part.uuid, index=part.index, reason=part.unhealthy)
            cure = f"reset it or reboot the node, or: deviceshare recover {self._node.name} {part.index}"
            message = f"{name} is no longer allocated: {part.unhealthy}; when it is repaired, {cure}"
            self._node.recorder.warn(subject, "DeviceUnhealthy", message)

    def _log_trouble(self, reading: Reading) -> None:
        if reading.trouble != self._trouble:
            self._trouble = reading.trouble
            if reading.trouble:
                log.warning("Agent failed to read the devices", trouble=reading.trouble)
            elif reading.inventory:
                log.info("Agent read the devices", driver=reading.inventory.driver, devices=len(reading.devices))


class Reporter:
    """Keeps `status.hardware` of one node's NodeDevices as it is wanted, while `run` runs.

    Every write makes a bind that is claiming on this node at the moment retry, and thousands of agents write to one API
    server: there is no heartbeat, but for a report with turns every ten minutes (`TurnReports`). The fields are the
    agent's own (server-side apply), so no write conflicts; a report that another writer changed is written again.
    """

    def __init__(self, node: OwnNode) -> None:
        self._node = node
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


@dataclass(eq=False)
class DeviceMonitor:
    """Judges readings, and has their results reported."""

    node: OwnNode
    violations: Violations
    allocations: Allocations
    on_xid: Callable[[Xid], object] = lambda _: None
    """Called with every Xid error."""

    def __post_init__(self) -> None:
        self.hardware: Hardware | None = None
        """What is to be reported; None until that is known."""
        self.turns: ReportedTurns | None = None
        """The part of it that is about turns."""
        self.limits = LimitsOutcome()
        """What was found of memory limits."""
        self.health = DeviceHealth(self.node, self.on_xid)
        self.reporter = Reporter(self.node)
        self.usage = Usage(self.node.name)
        """By the last reading."""
        self.last_hour = LastHour(self.node.clock)
        self._taken = self.node.clock()

    def fault(self) -> str:
        """Why the agent doesn't do its work, or ""."""
        blind = self.node.clock() - self._taken
        return f"the last look at the devices was {blind:.0f} s ago" if blind > BLIND_SECONDS else ""

    def take(self, reading: Reading) -> None:
        """Judges what was read. Called on the event loop; never blocks."""
        ledger = self.node.ledger
        if self.health.known is None and ledger and not ledger.metadata.hides("status.hardware"):
            self._remember(ledger.status.hardware)
        judged = self.health.judge(reading)
        self._take_use(reading, self.health.devices if self.health.known else reading.devices)
        if judged is not None:
            self.hardware = judged
        self.report()
        # At the end: an agent that fails to judge what it reads doesn't do its work either.
        self._taken = self.node.clock()

    def _remember(self, reported: Hardware) -> None:
        """Resumes from the report of the agent before this one."""
        self.health.known = reported
        self.violations.trespasses.remember(reported.trespasses)
        self.violations.overuses.remember(reported.overuses)
        self.allocations.remember(reported.allocations)
        self.turns = reported.turns
        if self.limits == LimitsOutcome():  # until the first look; pods that need a node that enforces wait for none
            self.limits = LimitsOutcome(reported.memory_limits, reported.counts_only, tuple(reported.limits))

    def take_turns(self, turns: ReportedTurns | None) -> None:
        """Reports who has turns and which programs wait, once it is known what an earlier agent reported."""
        if self.health.known is not None and turns != self.turns:
            self.turns = turns
            self.report()

    def take_limits(self, outcome: LimitsOutcome) -> None:
        """Reports what was found of memory limits."""
        self.limits = outcome
        self.report()

    def report(self) -> None:
        """Reports what is known by now. To be called when a part of it has changed."""
        if self.hardware is None or not self.allocations.asked:
            return
        self.hardware = replace(
            self.hardware,
            allocations=self.allocations.known,
            placeholders=bool(self.allocations.placeholders),
            trespasses=self.violations.trespasses.rows,
            overuses=self.violations.overuses.rows,
            turns=self.turns,
            memory_limits=self.limits.mode,
            counts_only=self.limits.obstacle,
            limits=list(self.limits.reports),
        )
        self.reporter.want(self.hardware)

    def _take_use(self, reading: Reading, devices: list[Part]) -> None:
        ledger, pods = self.node.ledger or NodeDevices(), self.node.present_pods()
        parts = {part.uuid: part for part in devices}
        read = [(part, ledger.present(part.device), use) for use in reading.uses if (part := parts.get(use.uuid))]
        on = {
            device: [NodeProcess(device, each, pods.container_of(each.group)) for each in use.processes]
            for _, device, use in read
        }
        shares: dict[Device, list[ShareMemory]] = {}
        # While pods or claims aren't known, their processes would all look like strangers.
        if self.node.pods.synced and ledger.node and not ledger.metadata.unreadable:
            read_at = self.node.clock() if reading.read_at is None else reading.read_at
            for use in self.violations.take(ledger, [each for some in on.values() for each in some], read_at):
                exceeded = use.key in self.violations.overuses.streaks
                row = ShareMemory(use.pod, use.container, use.used_mib, use.limit_mib, exceeded)
                shares.setdefault(use.device, []).append(row)
        usages = [
            DeviceUsage(
                part.resource,
                part.index,
                part.uuid,
                part.model,
                memory_used_mib=use.memory_used_mib or 0,
                memory_total_mib=use.memory_total_mib or part.memory_mib,
                utilization=use.utilization,
                processes=[self._process(each) for each in on[device]],
                shares=shares.get(device, []),
            )
            for part, device, use in read
        ]
        self.usage = Usage(self.node.name, self.node.now(), usages)
        self.last_hour.take(self.usage)

    def _process(self, process: NodeProcess) -> DeviceProcess:
        use, container = process.use, process.container
        known = use.pid, use.name, use.memory_mib or 0, container.pod, container.name
        return DeviceProcess(*known, trespass=self.violations.trespasses.accuses(process))


class LastHour:
    """The utilization of each device in each minute of the last hour, in memory; a restarted agent begins anew."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that never go back."""
        self._clock = clock
        self._read: dict[str, dict[int, list[int]]] = {}
        """By device and minute."""
        self._usage = Usage("")

    def take(self, usage: Usage) -> None:
        """Remembers a reading; a device of which there was none for an hour is forgotten."""
        minute = int(self._clock() // MINUTE)
        self._usage = usage
        for device in usage.devices:
            key = _key(device)
            if device.utilization is not None and (key in self._read or len(self._read) < MOST_DEVICES):
                self._read.setdefault(key, {}).setdefault(minute, []).append(device.utilization)
        for minutes in self._read.values():
            for old in [each for each in minutes if minute - each >= MINUTES]:
                del minutes[old]
        self._read = {key: minutes for key, minutes in self._read.items() if minutes}

    def view(self) -> NodeUse:
        """The last reading with the hour before it."""
        return NodeUse(self._usage.node, self._usage.time, [self._hour(each) for each in self._usage.devices])

    def _hour(self, device: DeviceUsage) -> DeviceHour:
        read, now = self._read.get(_key(device), {}), int(self._clock() // MINUTE)
        minutes = range(max(min(read, default=now + 1), now - MINUTES + 1), now + 1)
        return DeviceHour(
            device.resource,
            device.index,
            device.uuid,
            memory_used_mib=device.memory_used_mib,
            memory_total_mib=device.memory_total_mib,
            utilization=device.utilization,
            hour=[round(sum(read[each]) / len(read[each])) if each in read else UNKNOWN for each in minutes],
        )


def _key(device: DeviceUsage) -> str:
    return device.uuid or f"{device.resource} {device.index}"
