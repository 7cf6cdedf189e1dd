"""Inventory: the devices that a node offers to groups and shares, and why it offers no more."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices, described, devices_of
from deviceshare.domain.objects.hardware import NOTHING_PUBLISHED, Hardware, Part, Publication, Withheld
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.placement import shared_resources
from deviceshare.domain.placement.shared_resources import Annotated, Counted, Listed
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

# DRA obstacles: devices that nobody gets by the word of DRA drivers, whichever source numbers the node's devices.
# Where an agent reports and a DRA driver publishes, the agent's numbers and its word on health count, and a device
# that only one of them knows is nobody's: it may be on its way to a virtual machine, be split, or be another node's.
# An annotation of the node that names devices overrules that, but nothing else here.

UNPUBLISHED: Final = "deviceshare's agent sees it, but the node's DRA driver doesn't publish it"
UNSEEN: Final = "the node's DRA driver publishes it, but deviceshare's agent doesn't see it"
_COMPARE: Final = "compare kubectl get resourceslices with nvidia-smi on the node"
_NAME: Final = f"{_COMPARE}, or name the node's devices (kubectl annotate node NODE {contract.INVENTORY_ANNOTATION}=…)"


def kept_by_dra(
    devices: Iterable[Device], hardware: Hardware, published: Publication, annotated: Collection[str]
) -> tuple[Devices, tuple[Withheld, ...]]:
    """The devices that may be allocated, and what may not; `annotated` are the resources of the annotation."""
    devices = tuple(devices)
    barred: list[Withheld] = []
    for each in (*published.withheld, *_contradictions(hardware, published, annotated)):
        mine = _meant(each, devices, hardware)
        devices = tuple(device for device in devices if device not in mine)
        barred.append(Withheld(each.resource, each.reason, each.cure, sorted(each.devices or mine)))
    return devices, tuple(barred)


def _meant(each: Withheld, devices: Devices, hardware: Hardware) -> set[Device]:
    """Which of the devices it is about: those that it names, or all of its vendor's."""
    vendor = vendors.vendor_of(each.resource)
    if not each.devices:
        return {device for device in devices if vendors.vendor_of(device.resource) is vendor}
    named = {hardware.identity(device) for device in each.devices}
    return {device for device in devices if hardware.identity(device) in named}


def _contradictions(hardware: Hardware, published: Publication, annotated: Collection[str]) -> Iterable[Withheld]:
    """What only one of the two knows. Where there is no agent, or no driver, there is one word only."""
    if hardware.published or not hardware.devices:
        return
    for resource in sorted(published.resources - set(annotated)):
        there = {part.uuid: part.device for part in published.devices if part.resource == resource and not part.lost}
        seen = {part.uuid: part for part in hardware.devices if part.resource == resource}
        if not seen:
            continue
        if only := [part.device for uuid, part in seen.items() if uuid not in there and not part.lost]:
            yield Withheld(resource, UNPUBLISHED, _NAME, sorted(only))
        if unseen := [device for uuid, device in there.items() if uuid not in seen]:
            yield Withheld(resource, UNSEEN, _COMPARE, sorted(unseen))


# Devices that serve shares only, or groups only, by a node's annotations `share-devices` and `group-devices`.
# Both have the format that shared_resources.py reads. Whoever names a device in one of them wants it kept from
# the others, so while an annotation can't be read, or both name one device, nobody new gets any device of that
# vendor there.

_SHAREABLE: Final = sorted({resource for dialect in DIALECTS.values() for resource in dialect.devices})
_MOST_RESOURCES: Final = 8
"""Named by one annotation; no vendor has more on a node."""


def correction(annotation: str) -> str:
    """What to do about an annotation with a fault."""
    return f"correct it (kubectl annotate node NODE --overwrite {annotation}=nvidia.com/gpu=1-3)"


class AnnotationFault(NamedTuple):
    """What is wrong with an annotation of a node."""

    annotation: str
    text: str
    barred: tuple[Vendor, ...] = ()
    """The vendors of which nobody new gets a device because of it."""

    def __str__(self) -> str:
        return f"{self.annotation}: {self.text}"


class Offer(NamedTuple):
    """Devices for groups and shares, and devices that aren't for them."""

    devices: Devices = ()
    withheld: tuple[Withheld, ...] = ()
    faults: tuple[AnnotationFault, ...] = ()
    """What is wrong with the node's annotations."""
    for_shares: Devices = ()
    """The devices that serve shares only; likewise `for_groups`. Others serve either."""
    for_groups: Devices = ()

    @property
    def untold(self) -> tuple[Withheld, ...]:
        """What is withheld for another reason than a fault, nor on purpose."""
        texts = [fault.text for fault in self.faults]
        return tuple(
            each for each in self.withheld if each.reason != KEPT_OUT and not any(text in each.reason for text in texts)
        )


def _dedicated(annotations: Mapping[str, str], hardware: Hardware, devices: Iterable[Device]) -> Offer:
    """What the annotations of a node, whose agent reports this, make of these devices, which are sorted."""
    shares, faults_of_shares = _named(contract.SHARE_DEVICES, annotations, hardware)
    groups, faults_of_groups = _named(contract.GROUP_DEVICES, annotations, hardware)
    faults = [*faults_of_shares, *faults_of_groups]
    taken = {hardware.identity(device) for device in groups}
    twice = [device for device in shares if hardware.identity(device) in taken]
    for vendor in vendors.vendors_of(device.resource for device in twice):
        mine = described(device for device in twice if vendor.supplies(device.resource))
        text = f"{mine} are in {contract.GROUP_DEVICES}, too; name each device in one of them"
        faults.append(AnnotationFault(contract.SHARE_DEVICES, text, (vendor,)))

    def wrong(resource: str) -> list[AnnotationFault]:
        # Nobody new gets any devices of the resource, until the annotations are corrected.
        return [each for each in faults if any(vendor.supplies(resource) for vendor in each.barred)]

    def sound(found: Iterable[Device]) -> Devices:
        return tuple(device for device in sorted(found) if not wrong(device.resource))

    refused = []
    for resource, some in groupby(devices, key=attrgetter("resource")):
        if why := wrong(resource):
            reason = f"the node's annotation {'; '.join(map(str, why))}"
            refused.append(Withheld(resource, reason, correction(why[0].annotation), list(some)))
    return Offer(sound(devices), tuple(refused), tuple(faults), sound(shares), sound(groups))


def _named(
    annotation: str, annotations: Mapping[str, str], hardware: Hardware
) -> tuple[list[Device], list[AnnotationFault]]:
    """The devices that one annotation names, and what is wrong with it."""
    words = shared_resources.read_annotated(annotations.get(annotation, ""))
    if len(words.resources) > _MOST_RESOURCES:
        return [], [AnnotationFault(annotation, f"it names more than {_MOST_RESOURCES} resources", vendors.VENDORS)]
    devices: list[Device] = []
    # Which vendor's devices were meant is unknown: those of any that it doesn't name otherwise may be.
    unnamed = tuple(vendor for vendor in vendors.VENDORS if not any(map(vendor.supplies, words.resources)))
    faults = [AnnotationFault(annotation, text, unnamed) for text in words.faults]
    for resource, entry in words.resources.items():
        # A device that is lost for a while stays what it was.
        there = [part.device for part in hardware.devices if part.resource == resource]
        found, wrong = shared_resources.named_devices(resource, entry, there, agent=bool(there))
        devices += found
        if annotation == contract.SHARE_DEVICES and resource not in _SHAREABLE:
            wrong.append(f"{resource}: shares are parts of {listed(_SHAREABLE)} only")
        faults += [AnnotationFault(annotation, text, tuple(vendors.vendors_of([resource]))) for text in wrong]
    return devices, faults


# The devices that a node offers to groups and shares, and those that it doesn't, each with the reason.

KEPT_OUT: Final = "kept out by the node's annotation"
_UNREAD: Final = f"the node's annotation {contract.INVENTORY_ANNOTATION} can't be read"
_CORRECT: Final = correction(contract.INVENTORY_ANNOTATION)


def take(node: Node, reported: Hardware, published: Publication = NOTHING_PUBLISHED) -> Offer:
    """The node's offer, from its own fields, from what its agent `reported`, and from what DRA drivers published."""
    hardware = published.behind(reported)
    words = shared_resources.read_annotated(node.metadata.annotations.get(contract.INVENTORY_ANNOTATION, ""))
    seen: dict[str, list[Part]] = {}
    for part in hardware.devices:
        seen.setdefault(part.resource, []).append(part)
    counts = {r: each for r, each in shared_resources.count_devices(node).items() if each.overrules or r not in seen}
    found = [_of_vendor(vendor, words, seen, counts) for vendor in vendors.VENDORS]
    every = sorted(device for each in found for device in each.devices)
    allowed, barred = kept_by_dra(every, hardware, published, words.resources)
    offer = _dedicated(node.metadata.annotations, hardware, allowed)
    faults = (*map(_fault, words.faults), *(fault for each in found for fault in each.faults), *offer.faults)
    withheld = (*(withheld for each in found for withheld in each.withheld), *barred, *offer.withheld)
    return offer._replace(withheld=withheld, faults=faults)


def _fault(text: str) -> AnnotationFault:
    return AnnotationFault(contract.INVENTORY_ANNOTATION, text)


def _of_vendor(
    vendor: Vendor, words: Annotated, seen: Mapping[str, list[Part]], counts: Mapping[str, Counted]
) -> Offer:
    there = {r: _there(r, seen.get(r), counts.get(r)) for r in (*seen, *counts) if vendors.vendor_of(r) is vendor}
    named = {r: entry for r, entry in words.resources.items() if vendors.vendor_of(r) is vendor}
    if words.faults and not named:
        reason = f"{_UNREAD}: {words.faults[0]}"
        return Offer(withheld=tuple(Withheld(r, reason, _CORRECT, list(devices)) for r, devices in there.items()))
    if named:  # what it doesn't name is kept out
        found = {
            r: _annotated(r, named.get(r, Listed()), there.get(r, ()), agent=r in seen) for r in {**named, **there}
        }
    else:
        found = {r: _counted(r, devices, counts.get(r)) for r, devices in there.items()}
    numbers = Counter(device.index for each in found.values() for device in each.devices)
    if len(found) > 1 and (not named or max(numbers.values(), default=0) > 1):
        names = sorted(named or found)
        reason = f"{listed(names)} share {vendor.env} and may be the same devices"
        example = f"{contract.INVENTORY_ANNOTATION}={names[0]}=0-3,{names[1]}=4-7"
        cure = f"name one of them, or other devices of each (kubectl annotate node NODE --overwrite {example})"
        found = {r: Offer(withheld=(Withheld(r, reason, cure),), faults=each.faults) for r, each in found.items()}
    withheld = (each for _, offer in sorted(found.items()) for each in offer.withheld)
    return Offer(
        tuple(device for each in found.values() for device in each.devices),
        # What one resource keeps out may be offered as another.
        tuple(replace(each, devices=[d for d in each.devices if d.index not in numbers]) for each in withheld),
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
    devices, faults = shared_resources.named_devices(resource, entry, there, agent=agent)
    chosen = {device.index: device for device in devices}
    kept_out = [device for device in there if device.index not in chosen]
    unread = bool(faults and not chosen)
    reason = f"{_UNREAD}: {'; '.join(faults)}" if unread else KEPT_OUT
    withheld = (Withheld(resource, reason, _CORRECT if unread else "", kept_out),) if kept_out or not chosen else ()
    return Offer(tuple(chosen.values()), withheld, tuple(map(_fault, faults)))
