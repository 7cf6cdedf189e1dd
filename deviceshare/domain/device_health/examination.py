"""Examination: what readings of a device say of its health."""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.device_health.containers import ProcessUse
from deviceshare.domain.objects.hardware import Hardware, Link, Part
from deviceshare.domain.objects.ledger import NodeDevices

# A reading of a node's devices: what their driver shows at one moment, and what the kernel does of the processes.


class DriverTrouble(Exception):
    """A driver that can't be used, or that refuses; the text says why, and what to do."""


class Inventory(Struct, frozen=True):
    """The devices that answer, without marks of their health."""

    driver: str
    """The driver's version."""
    devices: list[Part]
    links: list[Link]
    silent: Mapping[int, str]
    """Why the device with this index doesn't answer; only an earlier inventory can identify it."""


class DeviceUse(Struct, frozen=True):
    """The use of one device. None stands for what its driver doesn't report."""

    index: int
    uuid: str
    memory_used_mib: int | None = None
    """Without what the driver reserves, where it reports that separately."""
    memory_total_mib: int | None = None
    utilization: int | None = None
    """Percent of the driver's last sample period in which a kernel ran; GPUs split by MIG have none."""
    processes: list[ProcessUse] = field(default_factory=list)
    """Each once, by PID."""


class Xid(Struct, frozen=True):
    """An error that the driver reported, perhaps one of several for one fault."""

    uuid: str
    """Empty where the driver doesn't name the device."""
    number: int
    text: str


class Reading(Struct, frozen=True):
    inventory: Inventory | None = None
    """None while the driver doesn't answer: `trouble` then says why."""
    uses: list[DeviceUse] = field(default_factory=list)
    xids: list[Xid] = field(default_factory=list)
    """Since the last reading."""
    boot_id: str = ""
    trouble: str = ""
    cdi_kinds: list[str] | None = None
    """As `Hardware.cdi_kinds`; of interest only where there are devices, and so is `runtime`."""
    runtime: str = ""
    read_at: float | None = None
    """When the reading of `uses` began, in seconds of the monotonic clock; None for now."""

    @property
    def devices(self) -> list[Part]:
        return self.inventory.devices if self.inventory else []


# The health of devices: a state machine from one report of a node's hardware to the next.

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 94, 109})
"""Errors that a program causes or that end with it. All others make the device unhealthy, unknown ones too.

The list is that of NVIDIA's own device plugin, and 94: an ECC error contained to one program.
https://docs.nvidia.com/deploy/xid-errors/
"""
LOST: Final = "the driver does not show it any more"
SILENT: Final = "the driver does not answer"


class Change(NamedTuple):
    """A device that became unhealthy (`part.unhealthy` says why) or that recovered, as this `sign` shows."""

    part: Part
    sign: str = ""


def examine(
    known: Hardware, reading: Reading, *, faults: Mapping[str, str], repaired: Collection[str], now: str
) -> tuple[Hardware, list[Change]]:
    """The next report of the devices, and what has changed since the last one, `known`.

    `faults` maps UUIDs to new faults, `repaired` holds the findings, as `UUID@SINCE`, that a person has declared
    resolved; `now` is RFC 3339.
    """
    seen = reading.inventory
    rebooted = bool(known.boot_id and reading.boot_id and known.boot_id != reading.boot_id)
    before = {_key(part): part for part in known.devices}
    shown = {_key(part): part for part in reading.devices if not part.lost}
    parts, changes = [], []
    every = {**before, **shown}
    for key, part in sorted(every.items(), key=lambda each: (each[1].resource, each[1].index, each[1].uuid)):
        old, there = before.get(key, part), key in shown
        resolved = finding(old) in repaired
        sign = _sign(old, there, resolved, rebooted) if old.unhealthy else ""
        if resolved and sign and shown and not there:
            changes.append(Change(replace(old, unhealthy="", since=""), sign))
            continue  # It was removed from the node. A driver that shows no device at all doesn't prove that.
        marked = bool(old.unhealthy and not sign)
        missing = "" if there else LOST if seen else SILENT
        why = seen.silent.get(old.index) if seen and missing and not old.unhealthy else ""
        fault = faults.get(part.uuid) or ("" if marked else f"{missing}: {why}" if why else missing)
        mark = (fault, now) if fault else (old.unhealthy, old.since) if marked else ("", "")
        lost = bool(missing) and (old.lost or missing == LOST or fault == SILENT)
        examined = replace(part, unhealthy=mark[0], since=mark[1], lost=lost)
        if fault or sign:
            changes.append(Change(examined, "" if fault else sign))
        parts.append(examined)
    # Links to a device that is lost say nothing, and its number may be another's.
    hardware = Hardware(
        driver=seen.driver if seen else "",
        boot_id=reading.boot_id or known.boot_id,
        devices=parts,
        links=seen.links if seen else [],
        cdi_kinds=reading.cdi_kinds if seen else known.cdi_kinds,
        runtime=reading.runtime if seen else known.runtime,
    )
    return hardware, changes


def _sign(old: Part, there: bool, resolved: bool, rebooted: bool) -> str:
    """Why an unhealthy device counts as healthy again, or ""."""
    if resolved:
        return "deviceshare recover reported its repair"
    if rebooted:
        return "the node rebooted"
    return "the driver shows it again" if there and old.lost else ""


def finding(part: Part) -> str:
    """The name of a device's fault: `UUID@SINCE`."""
    return f"{part.uuid}@{part.since}"


def reported_repaired(ledger: NodeDevices) -> frozenset[str]:
    """The findings that people reported as repaired: by the annotation or, with fewer rights, the status."""
    annotation = ledger.metadata.annotations.get(contract.RECOVERED, "")
    return frozenset(filter(None, (word.strip() for word in annotation.split(",")))) | frozenset(
        ledger.status.recovered
    )


def _key(part: Part) -> tuple[str, str]:
    return part.resource, part.uuid or str(part.index)
