"""Steady numbers: a claim goes on meaning its devices when another source begins or ceases to number the node's.

ResourceSlices number devices as the kernel does, a device plugin and an agent as the driver's library does. A UUID is
the same in all of them. So nobody new gets devices while a claim names some by a number of the one kind and only the
other kind is known; and what a claim names by UUID stays known while it is held, published or not.

Numbers and UUIDs don't mix: after a reboot a number may mean the device that another claim names by its UUID. While one
claim of a node names devices in the one way, nobody new gets any that would be named in the other (`doubts`).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Part, Publication, Withheld
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.handover import as_claimed, is_kind
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

_SHOWN: Final = 3


def doubts(ledger: NodeDevices) -> Mapping[str, Withheld]:
    """By resource, why any of its devices may be one that a claim names otherwise than a new claim would."""
    by_name: dict[tuple[str, bool], set[str]] = {}
    for claim in ledger.claims.values():
        names: tuple[Device | Share, ...] = (*claim.whole, *claim.former, *claim.shares)
        for each in names:
            by_name.setdefault((each.resource, bool(each.uuid)), set()).add(claim.holder_name)
    named: dict[Vendor | None, dict[bool, set[str]]] = {}
    for (resource, has_uuid), who in by_name.items():
        named.setdefault(vendors.vendor_of(resource), {}).setdefault(has_uuid, set()).update(who)
    found = {}
    for resource in sorted({device.resource for device in ledger.devices}) if named else ():
        others = named.get(vendors.vendor_of(resource), {})
        mine = [device for device in ledger.devices if device.resource == resource]
        for has_uuid in {bool(device.uuid) for device in as_claimed(mine, ledger.status.handover)}:
            if holders := others.get(not has_uuid):
                seen = any(device.uuid for device in mine)
                found[resource] = _doubt(resource, holders, have_uuids=not has_uuid, seen=seen)
    return found


def by_uuid(ledger: NodeDevices, except_of: Collection[str]) -> dict[str, Claim]:
    """The claims by number as they are to be, by UUID, once the agent reports in the boot that the node is in.

    Each container that runs was started in this boot, and opened what its number means in it. The numbers stay reserved
    as former devices until no pod is told them any more (loops/protocol/rebind.py): a reboot may come before that.

    All numbers of a vendor or none: in the next boot those that stay numbers would mean others' cards. And none where a
    number now means what another claim names by UUID, as one does that was restored from a boot nobody remembers.
    `except_of`: UIDs of holders whose pods can't be told.
    """
    numbered = {uid: [each for each in claim.devices if not each.uuid] for uid, claim in ledger.claims.items()}
    whole = {each.uuid for claim in ledger.claims.values() if claim.group for each in claim.devices}
    parts = {each.uuid for claim in ledger.claims.values() if claim.pod and not claim.within for each in claim.devices}
    stays = set[Vendor | None]()
    for uid, devices in numbered.items():
        named, claim = {_named(ledger, device).uuid for device in devices}, ledger.claims[uid]
        others = set[str]() if claim.within else whole | parts if claim.group else whole
        if uid in except_of or named & (others | {""}):
            stays |= _vendors(devices)
    return {
        uid: _with_uuids(ledger, ledger.claims[uid])
        for uid, devices in numbered.items()
        if devices and not _vendors(devices) & stays
    }


def _vendors(devices: Iterable[Device]) -> set[Vendor | None]:
    return {vendors.vendor_of(device.resource) for device in devices}


def _with_uuids(ledger: NodeDevices, claim: Claim) -> Claim:
    before = [device if device.uuid else ledger.present(device) for device in claim.former]
    shares = [s if s.uuid else replace(s, uuid=ledger.present(s.device).uuid) for s in claim.shares]
    whole = [_named(ledger, device) for device in claim.whole]
    numbers = [device for device in claim.devices if not device.uuid]
    return replace(claim, whole=whole, shares=shares, former=[*before, *numbers])


def _named(ledger: NodeDevices, device: Device) -> Device:
    """The device as a new claim names it; without its UUID where containers are told names that can't be changed."""
    vendor = vendors.vendor_of(device.resource)
    if vendor is None or is_kind(ledger.status.handover.get(vendor.name, "")):
        return replace(device, uuid="")
    return as_claimed([ledger.present(device)], ledger.status.handover)[0]


def _doubt(resource: str, names: Collection[str], *, have_uuids: bool, seen: bool) -> Withheld:
    who, recreate = listed(sorted(names), most=_SHOWN), "recreate those"
    if not have_uuids:
        reason = f"claims of this node ({who}) name devices by number, and it is not known which have these now"
        return Withheld(resource, reason, f"if this stays after the node's agent has reported, {recreate}")
    if not seen:
        reason = f"claims of this node ({who}) name devices by UUID, and no agent has reported yet"
        return Withheld(resource, reason, f"run deviceshare's agent there (agent.enabled=true), or {recreate}")
    reason = f"claims of this node ({who}) name devices by UUID, and its hand-over by index names them by number"
    return Withheld(resource, reason, f"let the node hand over by UUID again, or {recreate}")


def steady(now: Publication, ledger: NodeDevices) -> Publication:
    """The publication as it may be written into the ledger, whose claims were made by the one before."""
    if ledger.status.hardware.devices:
        return replace(now, devices=[part for part in now.devices if not part.lost])
    numbered = _numbered(ledger, now)
    if numbered:
        return Publication(now.driver, withheld=[*_without_devices(now), *numbered])
    known, troubled = {part.uuid for part in now.devices}, {each.resource for each in now.withheld if not each.devices}
    held = {device.uuid for claim in ledger.claims.values() for device in _reserved(claim)}
    missing = [part for part in ledger.status.published.devices if part.uuid in held - known]
    if not missing:
        return now
    kept = [part if part.resource in troubled else replace(part, lost=True) for part in missing]
    gone = [] if now.devices or troubled else [_gone(resource) for resource in sorted({p.resource for p in missing})]
    return replace(now, devices=_sorted([*now.devices, *kept]), withheld=[*now.withheld, *gone])


def _reserved(claim: Claim) -> Iterable[Device]:
    """What the claim holds, and what a rebind replaced and its pods may still use, as it is written there."""
    return (*claim.devices, *claim.replaced)


def _numbered(ledger: NodeDevices, now: Publication) -> list[Withheld]:
    """For each published resource of which claims name devices by number alone."""
    found = []
    for resource in sorted(now.resources):
        names = {
            claim.holder_name
            for claim in ledger.claims.values()
            for device in _reserved(claim)
            if device.resource == resource and not device.uuid
        }
        if names:
            who = listed(sorted(names), most=_SHOWN)
            reason = f"{who} hold devices by number, from before ResourceSlices named them, which number otherwise"
            cure = "recreate those, or run deviceshare's agent there (agent.enabled=true)"
            found.append(Withheld(resource, reason, cure))
    return found


def _without_devices(now: Publication) -> list[Withheld]:
    return [each for each in now.withheld if not each.devices]


def _gone(resource: str) -> Withheld:
    reason = "its ResourceSlices are gone, and what else is known of the node numbers devices otherwise"
    cure = "bring its DRA driver back, or recreate what holds devices there"
    return Withheld(resource, reason, cure)


def _sorted(parts: Iterable[Part]) -> list[Part]:
    return sorted(parts, key=lambda part: (part.resource, part.index, part.lost, part.uuid))
