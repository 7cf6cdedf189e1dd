"""Which devices may be handed out: a state machine from one report of a node's hardware to the next.

A broken device looks well again as soon as nobody uses it, so a mark, once made, only goes by a sign: the node was
started anew, the driver had lost the device and shows it again (it was reset), or a person said that this one finding
is dealt with. The marks live in the report itself and nowhere else, so they outlive the process that made them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Hardware, Part

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 94, 109})
"""Errors that a program brings about or that end with it. All others count against the device, unknown ones too.

The list is that of NVIDIA's own device plugin, and 94: an ECC error contained to one program.
https://docs.nvidia.com/deploy/xid-errors/
"""

LOST: Final = "the driver does not show it any more"
SILENT: Final = "the driver does not answer"


class Change(Struct, frozen=True):
    """A device that was found unhealthy, for which `part.unhealthy` says why; or that recovered, by this `sign`."""

    part: Part
    sign: str = ""


class Examination(Struct, frozen=True):
    """The devices as they shall be reported, and what is new about them."""

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
    """The devices after a look at them.

    `known` is the last report. `seen` is what the driver shows, None when it doesn't answer at all; `boot_id` is the
    kernel's, "" when it can't be read. `faults` tells what is newly wrong by UUID, `dealt_with` holds the findings,
    as `UUID@SINCE`, that a person has dealt with; `now` is RFC 3339.
    """
    started_anew = bool(known.boot_id and boot_id and known.boot_id != boot_id)
    before = {_key(part): part for part in known.devices}
    shown = {_key(part): part for part in seen or () if not part.lost}
    parts, changes = [], []
    for key, part in sorted({**before, **shown}.items(), key=_order):
        old, there = before.get(key, part), key in shown
        said = finding(old) in dealt_with
        sign = _sign(old, there, said, started_anew) if old.unhealthy else ""
        if said and sign and shown and not there:
            changes.append(Change(replace(old, unhealthy="", since=""), sign))
            continue  # It was taken out. While the driver shows nothing at all, who can tell?
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


def _sign(old: Part, there: bool, said: bool, started_anew: bool) -> str:
    """Why a marked device is well again, or ""."""
    if said:
        return f"the annotation {contract.RECOVERED} says so"
    if started_anew:
        return "the node was started anew"
    return "the driver shows it again" if there and old.lost else ""


def finding(part: Part) -> str:
    """The name of what was found: `UUID@SINCE`."""
    return f"{part.uuid}@{part.since}"


def findings_of(annotation: str) -> frozenset[str]:
    """The findings that the annotation `contract.RECOVERED` names."""
    return frozenset(filter(None, (word.strip() for word in annotation.split(","))))


def _key(part: Part) -> tuple[str, str]:
    return part.resource, part.uuid or str(part.index)


def _order(entry: tuple[tuple[str, str], Part]) -> tuple[str, int, str]:
    return entry[1].resource, entry[1].index, entry[1].uuid
