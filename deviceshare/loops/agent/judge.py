"""The health of the node's devices: by what is seen of them, their errors, and what was reported before.

The marks of unhealthy devices are read back from the last report before anything is judged, so that an agent that is
restarted, or a node whose agent is replaced, forgets none.
"""

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from deviceshare.domain.device_health.examination import APPLICATION_XIDS, LOST, Change, examine, reported_repaired
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.agent.ports import Sight, Xid
from deviceshare.loops.api_objects import node_subject

log = structlog.get_logger(__name__)

PATIENCE: Final = 2
"""Looks in a row at a driver that doesn't answer, until its devices count as unhealthy: it may only be restarting."""


class Judge:
    """Keeps the marks of one node's devices."""

    def __init__(self, node: OwnNode, *, on_xid: Callable[[Xid], object] = lambda _: None) -> None:
        """`on_xid` is called with every Xid error."""
        self.known: Hardware | None = None
        """The devices as they were judged last; None until it is known how an earlier agent judged them."""
        self._node = node
        self._on_xid = on_xid
        self._faults: dict[str, str] = {}
        self._silent = 0
        self._trouble: str | None = None

    def remember(self, reported: Hardware) -> None:
        """Resumes from the marks of the last report. Without it nothing is judged."""
        self.known = reported

    def judge(self, sight: Sight) -> Hardware | None:
        """The devices with their marks; None while that can't be decided yet."""
        self._take_xids(sight)
        self._log_trouble(sight)
        self._silent = self._silent + 1 if sight.parts is None else 0
        if self.known is None or 0 < self._silent < PATIENCE:
            return None
        ledger = self._node.ledger
        examined = examine(
            self.known,
            sight.parts,
            boot_id=sight.boot_id,
            faults={**self._losses(self.known, sight), **self._faults},
            dealt_with=reported_repaired(ledger) if ledger else frozenset(),
            now=self._node.now(),
        )
        self._faults = {}
        silent = sight.parts is None
        # Links to a device that is lost say nothing, and its number may be another's.
        self.known = Hardware(
            driver=sight.driver,
            boot_id=sight.boot_id or self.known.boot_id,
            devices=examined.parts,
            links=list(sight.links),
            cdi_kinds=self.known.cdi_kinds if silent else sight.cdi_kinds,
            runtime=self.known.runtime if silent else sight.runtime,
        )
        self._record(examined.changes)
        return self.known

    def _take_xids(self, sight: Sight) -> None:
        for xid in sight.xids:
            self._on_xid(xid)
            if xid.number in APPLICATION_XIDS:
                log.info("Driver reported an error of an application", uuid=xid.uuid, xid=xid.number, text=xid.text)
                continue
            log.warning("Driver reported an error of a device", uuid=xid.uuid, xid=xid.number, text=xid.text)
            # Where the driver doesn't say which device it is, it may be any.
            uuids = [xid.uuid] if xid.uuid else [part.uuid for part in sight.parts or self._devices()]
            self._faults.update(dict.fromkeys(uuids, xid.text))

    def _losses(self, known: Hardware, sight: Sight) -> dict[str, str]:
        """The driver's own reasons for devices that it doesn't show any more."""
        shown = {part.uuid for part in sight.parts or ()}
        return {
            part.uuid: f"{LOST}: {sight.absent[part.index]}"
            for part in known.devices
            if part.uuid not in shown and not part.unhealthy and part.index in sight.absent
        }

    def _devices(self) -> Iterable[Part]:
        return self.known.devices if self.known else ()

    def _record(self, changes: Iterable[Change]) -> None:
        subject = node_subject(self._node.name)
        for change in changes:
            part = change.part
            name = f"{part.resource} {part.index} ({part.uuid})"
            if change.sign:
                log.info("Device recovered", uuid=part.uuid, index=part.index, sign=change.sign)
                self._node.recorder.note(subject, "DeviceRecovered", f"{name} is healthy again: {change.sign}")
            else:
                log.warning("Device is unhealthy", uuid=part.uuid, index=part.index, reason=part.unhealthy)
                cure = f"reset it or reboot the node, or: deviceshare recover {self._node.name} {part.index}"
                message = f"{name} is no longer allocated: {part.unhealthy}; when it is repaired, {cure}"
                self._node.recorder.warn(subject, "DeviceUnhealthy", message)

    def _log_trouble(self, sight: Sight) -> None:
        if sight.trouble != self._trouble:
            self._trouble = sight.trouble
            if sight.trouble:
                log.warning("Agent failed to read the devices", trouble=sight.trouble)
            else:
                log.info("Agent read the devices", driver=sight.driver, devices=len(sight.parts or ()))
