"""The agent's reconciler: from each reading of the node's devices to their health, its report and its usage."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from msgspec import convert
from msgspec.structs import replace

from deviceshare.agent.own_node import OwnNode
from deviceshare.agent.violations import Violations
from deviceshare.domain.device_health.containers import NodeProcess
from deviceshare.domain.device_health.examination import APPLICATION_XIDS, Reading, Xid, examine, reported_repaired
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Part
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
from deviceshare.loops.kinds import node_subject

log = structlog.get_logger(__name__)

PATIENCE: Final = 2
"""Readings in a row from a driver that doesn't answer, until its devices are unhealthy: it may only be restarting."""
BLIND_SECONDS: Final = 60.0
"""Without a reading for so long, the agent doesn't do its work. A driver that hangs is reported earlier."""
MINUTE: Final = 60.0
"""Seconds."""
MOST_DEVICES: Final = 256
"""Whose last hour is remembered; more than any node has."""


@dataclass(eq=False)
class DeviceMonitor:
    """Judges the health of the node's devices by what is read of them, and whose processes are on them.

    The marks of unhealthy devices are read back from the last report before anything is judged, so that an agent that
    is restarted, or a node whose agent is replaced, forgets none.
    """

    node: OwnNode
    violations: Violations
    on_xid: Callable[[Xid], object] = lambda _: None
    """Called with every Xid error."""

    def __post_init__(self) -> None:
        self._faults: dict[str, str] = {}
        """What errors said since the devices were judged last, by UUID."""
        self._silent = 0
        self._trouble: str | None = None
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
        if not self.node.report.resumed and ledger and not ledger.metadata.hides("status.hardware"):
            reported = ledger.status.hardware
            self.violations.trespasses.remember(reported.trespasses)
            self.violations.overuses.remember(reported.overuses)
            self.node.report.resume(reported)
        self._judge(reading)
        self._take_use(reading, self.node.report.known.devices if self.node.report.resumed else reading.devices)
        # At the end: an agent that fails to judge what it reads doesn't do its work either.
        self._taken = self.node.clock()

    def _judge(self, reading: Reading) -> None:
        """Reports the devices with their marks, unless that can't be decided yet."""
        self._take_xids(reading)
        self._log_trouble(reading)
        self._silent = 0 if reading.inventory else self._silent + 1
        if not self.node.report.resumed or 0 < self._silent < PATIENCE:
            return
        known, ledger = self.node.report.known, self.node.ledger
        repaired = reported_repaired(ledger) if ledger else frozenset()
        seen, changes = examine(known, reading, faults=self._faults, repaired=repaired, now=self.node.now())
        self._faults = {}
        for part, sign in changes:
            self._tell(part, sign)
        of_driver = {"driver": seen.driver, "cdi_kinds": seen.cdi_kinds, "runtime": seen.runtime}
        self.node.report.tell(boot_id=seen.boot_id, devices=seen.devices, links=seen.links, **of_driver)

    def _take_xids(self, reading: Reading) -> None:
        for xid in reading.xids:
            self.on_xid(xid)
            if xid.number in APPLICATION_XIDS:
                log.info("Driver reported an error of an application", uuid=xid.uuid, xid=xid.number, text=xid.text)
                continue
            log.warning("Driver reported an error of a device", uuid=xid.uuid, xid=xid.number, text=xid.text)
            # Where the driver doesn't say which device it is, it may be any.
            devices = reading.devices or self.node.report.known.devices
            self._faults.update(dict.fromkeys([xid.uuid] if xid.uuid else [each.uuid for each in devices], xid.text))

    def _tell(self, part: Part, sign: str) -> None:
        """Of a device that became unhealthy or, with a sign of it, recovered."""
        subject, name = node_subject(self.node.name), f"{part.resource} {part.index} ({part.uuid})"
        if sign:
            log.info("Device recovered", uuid=part.uuid, index=part.index, sign=sign)
            self.node.recorder.note(subject, "DeviceRecovered", f"{name} is healthy again: {sign}")
        else:
            log.warning("Device is unhealthy", uuid=part.uuid, index=part.index, reason=part.unhealthy)
            cure = f"reset it or reboot the node, or: deviceshare recover {self.node.name} {part.index}"
            message = f"{name} is no longer allocated: {part.unhealthy}; when it is repaired, {cure}"
            self.node.recorder.warn(subject, "DeviceUnhealthy", message)

    def _log_trouble(self, reading: Reading) -> None:
        if reading.trouble != self._trouble:
            self._trouble = reading.trouble
            if reading.trouble:
                log.warning("Agent failed to read the devices", trouble=reading.trouble)
            elif reading.inventory:
                log.info("Agent read the devices", driver=reading.inventory.driver, devices=len(reading.devices))

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
            self.node.report.tell(trespasses=self.violations.trespasses.rows, overuses=self.violations.overuses.rows)
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
        hour = [round(sum(read[each]) / len(read[each])) if each in read else UNKNOWN for each in minutes]
        return replace(convert(device, DeviceHour, from_attributes=True), hour=hour)


def _key(device: DeviceUsage) -> str:
    return device.uuid or f"{device.resource} {device.index}"
