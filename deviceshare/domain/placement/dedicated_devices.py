"""Devices that serve shares only, or groups only, by a node's annotations `share-devices` and `group-devices`.

Both have the format of annotated_devices.py. Whoever names a device in one of them wants it kept from the others, so
while an annotation can't be read, or both name one device, nobody new gets any device of that vendor there.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices, described
from deviceshare.domain.objects.hardware import Hardware, Withheld
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.placement import annotated_devices
from deviceshare.domain.placement.annotated_devices import Listed
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

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

    def __str__(self) -> str:
        return f"{self.annotation}: {self.text}"


class _Barred(NamedTuple):
    """A vendor of which nobody new gets a device, and the fault for which that is so."""

    vendor: Vendor
    fault: AnnotationFault


class Dedicated(NamedTuple):
    """What the annotations say together."""

    for_shares: Devices = ()
    for_groups: Devices = ()
    barred: tuple[_Barred, ...] = ()
    faults: tuple[AnnotationFault, ...] = ()

    def split(self, devices: Iterable[Device]) -> tuple[Devices, tuple[Withheld, ...]]:
        """The devices that may be allocated, and those that must not until the annotations are corrected."""
        kept: list[Device] = []
        refused: dict[str, list[Device]] = {}
        for device in devices:
            (refused.setdefault(device.resource, []) if self._why(device.resource) else kept).append(device)
        return tuple(kept), tuple(_withheld(r, mine, self._why(r)) for r, mine in refused.items())

    def _why(self, resource: str) -> list[AnnotationFault]:
        return [each.fault for each in self.barred if each.vendor.supplies(resource)]


def _withheld(resource: str, devices: list[Device], faults: list[AnnotationFault]) -> Withheld:
    reason = f"the node's annotation {'; '.join(map(str, faults))}"
    return Withheld(resource, reason, correction(faults[0].annotation), devices)


class _Reading(NamedTuple):
    """One annotation's devices, its faults, and of which vendors nobody gets devices because of them."""

    devices: list[Device]
    barred: list[_Barred]
    faults: list[AnnotationFault]


def read(annotations: Mapping[str, str], hardware: Hardware) -> Dedicated:
    """The annotations of a node, whose agent reports this."""
    shares = _named(contract.SHARE_DEVICES, annotations, hardware)
    groups = _named(contract.GROUP_DEVICES, annotations, hardware)
    barred, faults = [*shares.barred, *groups.barred], [*shares.faults, *groups.faults]
    taken = {hardware.identity(device) for device in groups.devices}
    twice = [device for device in shares.devices if hardware.identity(device) in taken]
    for vendor in vendors.vendors_of(device.resource for device in twice):
        mine = described(device for device in twice if vendor.supplies(device.resource))
        text = f"{mine} are in {contract.GROUP_DEVICES}, too; name each device in one of them"
        faults.append(AnnotationFault(contract.SHARE_DEVICES, text))
        barred.append(_Barred(vendor, faults[-1]))
    ill = [each.vendor for each in barred]

    def sound(found: _Reading) -> Devices:
        return tuple(d for d in sorted(found.devices) if not any(vendor.supplies(d.resource) for vendor in ill))

    return Dedicated(sound(shares), sound(groups), tuple(barred), tuple(faults))


def _named(annotation: str, annotations: Mapping[str, str], hardware: Hardware) -> _Reading:
    words = annotated_devices.read(annotations.get(annotation, ""))
    if len(words.resources) > _MOST_RESOURCES:
        fault = AnnotationFault(annotation, f"it names more than {_MOST_RESOURCES} resources")
        return _Reading([], [_Barred(vendor, fault) for vendor in vendors.VENDORS], [fault])
    devices: list[Device] = []
    faults = [AnnotationFault(annotation, text) for text in words.faults]
    # Which vendor's devices were meant is unknown: those of any that it doesn't name otherwise may be.
    unnamed = [vendor for vendor in vendors.VENDORS if not any(map(vendor.supplies, words.resources))]
    barred = [_Barred(vendor, fault) for vendor in unnamed for fault in faults]
    for resource, entry in words.resources.items():
        found = _of_resource(annotation, resource, entry, hardware)
        devices += found.devices
        wrong = [AnnotationFault(annotation, text) for text in found.faults]
        barred += [_Barred(vendor, fault) for vendor in vendors.vendors_of([resource]) for fault in wrong]
        faults += wrong
    return _Reading(devices, barred, faults)


def _of_resource(annotation: str, resource: str, entry: Listed, hardware: Hardware) -> annotated_devices.Named:
    # A device that is lost for a while stays what it was.
    there = [part.device for part in hardware.devices if part.resource == resource]
    found = annotated_devices.named(resource, entry, there, agent=bool(there))
    if annotation == contract.SHARE_DEVICES and resource not in _SHAREABLE:
        return found._replace(faults=(*found.faults, f"{resource}: shares are parts of {listed(_SHAREABLE)} only"))
    return found
