"""The devices that a node offers to groups and shares, and those that it doesn't, each with the reason.

The sources, by precedence: the node's annotation (for all of a vendor's devices), the node's agent, the ResourceSlices
of DRA drivers (hardware.py), and what else the cluster knows of the node (counted_devices.py). A vendor's variable
numbers all its devices in one row, so of resources that share a variable and have the same numbers none is offered.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices, devices_of
from deviceshare.domain.objects.hardware import NOTHING_PUBLISHED, Hardware, Part, Publication, Withheld
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement import annotated_devices, counted_devices, dedicated_devices, dra_obstacles
from deviceshare.domain.placement.annotated_devices import Annotated, Listed
from deviceshare.domain.placement.counted_devices import Counted
from deviceshare.domain.placement.dedicated_devices import AnnotationFault, correction
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed as enumerated

KEPT_OUT: Final = "kept out by the node's annotation"
_UNREAD: Final = f"the node's annotation {contract.INVENTORY_ANNOTATION} can't be read"
_CORRECT: Final = correction(contract.INVENTORY_ANNOTATION)


class Offer(NamedTuple):
    """Devices for groups and shares, and devices that aren't for them."""

    devices: Devices = ()
    withheld: tuple[Withheld, ...] = ()
    faults: tuple[AnnotationFault, ...] = ()
    """What is wrong with the node's annotations."""
    for_shares: Devices = ()
    """Those that serve shares only; likewise `for_groups`. Others serve either."""
    for_groups: Devices = ()

    @property
    def untold(self) -> tuple[Withheld, ...]:
        """What is withheld for another reason than a fault, nor on purpose."""
        texts = [fault.text for fault in self.faults]
        return tuple(
            each for each in self.withheld if each.reason != KEPT_OUT and not any(text in each.reason for text in texts)
        )


def take(node: Node, reported: Hardware, published: Publication = NOTHING_PUBLISHED) -> Offer:
    """The node's offer, from all sources.

    Args:
        node: with its annotations, labels and allocatable resources.
        reported: by its agent; empty where there is none.
        published: by DRA drivers.
    """
    hardware = published.behind(reported)
    words = annotated_devices.read(node.metadata.annotations.get(contract.INVENTORY_ANNOTATION, ""))
    seen: dict[str, list[Part]] = {}
    for part in hardware.devices:
        seen.setdefault(part.resource, []).append(part)
    counts = {r: each for r, each in counted_devices.count(node).items() if each.overrules or r not in seen}
    found = [_of_vendor(vendor, words, seen, counts) for vendor in vendors.VENDORS]
    dedicated = dedicated_devices.read(node.metadata.annotations, hardware)
    every = sorted(device for each in found for device in each.devices)
    allowed, barred = dra_obstacles.kept(every, hardware, published, words.resources)
    devices, refused = dedicated.split(allowed)
    faults = (*map(_fault, words.faults), *(fault for each in found for fault in each.faults), *dedicated.faults)
    withheld = (*(withheld for each in found for withheld in each.withheld), *barred, *refused)
    return Offer(devices, withheld, faults, dedicated.for_shares, dedicated.for_groups)


def _fault(text: str) -> AnnotationFault:
    return AnnotationFault(contract.INVENTORY_ANNOTATION, text)


def _of_vendor(
    vendor: Vendor, words: Annotated, seen: Mapping[str, list[Part]], counts: Mapping[str, Counted]
) -> Offer:
    there = {r: _there(r, seen.get(r), counts.get(r)) for r in (*seen, *counts) if vendors.vendor_of(r) is vendor}
    listed = {r: entry for r, entry in words.resources.items() if vendors.vendor_of(r) is vendor}
    if words.faults and not listed:
        reason = f"{_UNREAD}: {words.faults[0]}"
        return Offer(withheld=tuple(Withheld(r, reason, _CORRECT, list(devices)) for r, devices in there.items()))
    if listed:
        found = {r: _annotated(r, entry, there.get(r, ()), agent=r in seen) for r, entry in listed.items()}
        found |= {
            r: Offer(withheld=(Withheld(r, KEPT_OUT, devices=list(there[r])),)) for r in there.keys() - found.keys()
        }
    else:
        found = {r: _counted(r, devices, counts.get(r)) for r, devices in there.items()}
    numbers = Counter(device.index for each in found.values() for device in each.devices)
    if len(found) > 1 and (not listed or max(numbers.values(), default=0) > 1):
        names = sorted(listed or found)
        reason = f"{enumerated(names)} share {vendor.env} and may be the same devices"
        example = f"{contract.INVENTORY_ANNOTATION}={names[0]}=0-3,{names[1]}=4-7"
        cure = f"name one of them, or other devices of each (kubectl annotate node NODE --overwrite {example})"
        found = {r: Offer(withheld=(Withheld(r, reason, cure),), faults=each.faults) for r, each in found.items()}
    return Offer(
        tuple(device for each in found.values() for device in each.devices),
        # What one resource keeps out may be offered as another.
        tuple(
            replace(withheld, devices=[device for device in withheld.devices if device.index not in numbers])
            for _, each in sorted(found.items())
            for withheld in each.withheld
        ),
        tuple(fault for each in found.values() for fault in each.faults),
    )


def _there(resource: str, parts: Iterable[Part] | None, counted: Counted | None) -> Devices:
    """All that are known to be there, for groups or not; with UUIDs where an agent reports them."""
    if parts is not None:
        return tuple(part.device for part in parts if not part.lost)
    return devices_of({resource: counted.number}) if counted and counted.number else ()


def _counted(resource: str, devices: Devices, counted: Counted | None) -> Offer:
    if counted and counted.trouble:
        return Offer(withheld=(Withheld(resource, counted.trouble, counted.cure, list(devices)),))
    return Offer(tuple(Device(resource, device.index) for device in devices))


def _annotated(resource: str, entry: Listed, there: Devices, *, agent: bool) -> Offer:
    devices, faults = annotated_devices.named(resource, entry, there, agent=agent)
    chosen = {device.index: device for device in devices}
    kept_out = [device for device in there if device.index not in chosen]
    unread = bool(faults and not chosen)
    reason = f"{_UNREAD}: {'; '.join(faults)}" if unread else KEPT_OUT
    withheld = (Withheld(resource, reason, _CORRECT if unread else "", kept_out),) if kept_out or not chosen else ()
    return Offer(tuple(chosen.values()), withheld, tuple(map(_fault, faults)))
