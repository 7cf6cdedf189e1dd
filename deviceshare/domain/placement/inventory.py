"""The devices that a node offers to groups, and those that it doesn't, each with the reason.

The sources, by precedence: the node's annotation (for all of a vendor's devices), the node's agent, and what else the
cluster knows of the node (counted_devices.py). A vendor's variable numbers all its devices in one row, so of resources
that share a variable and have the same numbers none is offered.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices, devices_of
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.withheld import Withheld
from deviceshare.domain.placement import annotated_devices, counted_devices
from deviceshare.domain.placement.annotated_devices import Annotated, Listed
from deviceshare.domain.placement.counted_devices import Counted
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed as enumerated

KEPT_OUT: Final = "kept out by the node's annotation"
_UNREAD: Final = f"the node's annotation {contract.INVENTORY_ANNOTATION} can't be read"
_CORRECT: Final = (
    f"correct it (kubectl annotate node NODE --overwrite {contract.INVENTORY_ANNOTATION}=nvidia.com/gpu=1-3)"
)


class Offer(NamedTuple):
    """Devices for groups, devices that are not for them, and what is wrong with the annotation, a sentence each."""

    devices: Devices = ()
    withheld: tuple[Withheld, ...] = ()
    faults: tuple[str, ...] = ()


def take(node: Node, hardware: Hardware) -> Offer:
    """The node's offer, from all sources."""
    words = annotated_devices.read(node.metadata.annotations.get(contract.INVENTORY_ANNOTATION, ""))
    seen: dict[str, list[Part]] = {}
    for part in hardware.devices:
        seen.setdefault(part.resource, []).append(part)
    counts = {resource: each for resource, each in counted_devices.count(node).items() if resource not in seen}
    found = [_of_vendor(vendor, words, seen, counts) for vendor in vendors.VENDORS]
    return Offer(
        tuple(sorted(device for each in found for device in each.devices)),
        tuple(withheld for each in found for withheld in each.withheld),
        (*words.faults, *(fault for each in found for fault in each.faults)),
    )


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
    faults = [entry.fault] if entry.fault else []
    by_uuid = {device.uuid: device for device in there if device.uuid}
    if entry.uuids and not agent:
        faults.append(f"{resource}: only deviceshare's agent knows UUIDs; run it on the node, or give numbers")
    elif missing := sorted(entry.uuids - by_uuid.keys()):
        faults.append(f"{resource}: the node has no {enumerated(missing, link='or')}; see kubectl get ndev -o yaml")
    # By its UUID where that is how it was named: the number may be another device's after a reboot.
    chosen = {index: Device(resource, index) for index in entry.indices}
    chosen |= {by_uuid[uuid].index: by_uuid[uuid] for uuid in entry.uuids & by_uuid.keys()}
    kept_out = [device for device in there if device.index not in chosen]
    unread = bool(faults and not chosen)
    reason = f"{_UNREAD}: {'; '.join(faults)}" if unread else KEPT_OUT
    withheld = (Withheld(resource, reason, _CORRECT if unread else "", kept_out),) if kept_out or not chosen else ()
    return Offer(tuple(chosen.values()), withheld, tuple(faults))
