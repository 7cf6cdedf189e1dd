"""The health of devices: a state machine from one report of a node's hardware to the next.

An unhealthy device looks healthy as soon as no program uses it, so it stays marked until there is a sign: the node
rebooted, the driver had lost the device and shows it again (it was reset), or a person declared this one finding
resolved. The marks are kept only in the report itself, so they survive the agent's process.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import NodeDevices

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 94, 109})
"""Errors that a program causes or that end with it. All others make the device unhealthy, unknown ones too.

The list is that of NVIDIA's own device plugin, and 94: an ECC error contained to one program.
https://docs.nvidia.com/deploy/xid-errors/
"""

LOST: Final = "the driver does not show it any more"
SILENT: Final = "the driver does not answer"


class Change(Struct, frozen=True):
    """A device that became unhealthy (`part.unhealthy` says why) or that recovered, as this `sign` shows."""

    part: Part
    sign: str = ""


class Examination(Struct, frozen=True):
    """The devices to report, and the changes since the last report."""

    parts: list[Part]
    changes: list[Change]


def examine(
    known: Hardware,
    seen: Sequence[Part] | None,
    *,
    boot_id: str,
    faults: Mapping[str, str],
    dealt_with: Collection[str],
    now: str,
) -> Examination:
    """The next report of the devices.

    `known` is the last report. `seen` is what the driver shows, None when it doesn't answer at all; `boot_id` is the
    kernel's, "" when it can't be read. `faults` maps UUIDs to new faults, `dealt_with` holds the findings, as
    `UUID@SINCE`, that a person has declared resolved; `now` is RFC 3339.
    """
    rebooted = bool(known.boot_id and boot_id and known.boot_id != boot_id)
    before = {_key(part): part for part in known.devices}
    shown = {_key(part): part for part in seen or () if not part.lost}
    parts, changes = [], []
    for key, part in sorted({**before, **shown}.items(), key=_order):
        old, there = before.get(key, part), key in shown
        resolved = finding(old) in dealt_with
        sign = _sign(old, there, resolved, rebooted) if old.unhealthy else ""
        if resolved and sign and shown and not there:
            changes.append(Change(replace(old, unhealthy="", since=""), sign))
            continue  # It was removed from the node. A driver that shows no device at all doesn't prove that.
        marked = bool(old.unhealthy and not sign)
        missing = "" if there else SILENT if seen is None else LOST
        fault = faults.get(part.uuid) or ("" if marked else missing)
        mark = (fault, now) if fault else (old.unhealthy, old.since) if marked else ("", "")
        lost = bool(missing) and (old.lost or missing == LOST or fault == SILENT)
        examined = replace(part, unhealthy=mark[0], since=mark[1], lost=lost)
        if fault or sign:
            changes.append(Change(examined, "" if fault else sign))
        parts.append(examined)
    return Examination(parts, changes)


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


def findings_of(annotation: str) -> frozenset[str]:
    """The findings that the annotation `contract.RECOVERED` names."""
    return frozenset(filter(None, (word.strip() for word in annotation.split(","))))


def reported_repaired(ledger: NodeDevices) -> frozenset[str]:
    """The findings that people reported as repaired: by the annotation or, with fewer rights, the status."""
    return findings_of(ledger.metadata.annotations.get(contract.RECOVERED, "")) | frozenset(ledger.status.recovered)


def _key(part: Part) -> tuple[str, str]:
    return part.resource, part.uuid or str(part.index)


def _order(entry: tuple[tuple[str, str], Part]) -> tuple[str, int, str]:
    return entry[1].resource, entry[1].index, entry[1].uuid
