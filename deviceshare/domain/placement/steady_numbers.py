"""Steady numbers: a claim goes on meaning its devices when another source begins or ceases to number the node's.

ResourceSlices number devices as the kernel does, a device plugin and an agent as the driver's library does. A UUID is
the same in all of them. So nobody new gets devices while a claim names some by a number of the one kind and only the
other kind is known; and what a claim names by UUID stays known while it is held, published or not.
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Part
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.publication import Publication
from deviceshare.domain.objects.withheld import Withheld
from deviceshare.domain.wording import listed

_SHOWN: Final = 3


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
