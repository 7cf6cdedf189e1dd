"""DRA obstacles: devices that nobody gets by the word of DRA drivers, whichever source numbers the node's devices.

Where an agent reports and a DRA driver publishes, the agent's numbers and its word on health count, and a device that
only one of them knows is nobody's: it may be on its way to a virtual machine, be split, or be another node's. An
annotation of the node that names devices overrules that, but nothing else here.
"""

from collections.abc import Collection, Iterable
from typing import Final

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.hardware import Hardware, Publication, Withheld

UNPUBLISHED: Final = "deviceshare's agent sees it, but the node's DRA driver doesn't publish it"
UNSEEN: Final = "the node's DRA driver publishes it, but deviceshare's agent doesn't see it"
_COMPARE: Final = "compare kubectl get resourceslices with nvidia-smi on the node"
_NAME: Final = f"{_COMPARE}, or name the node's devices (kubectl annotate node NODE {contract.INVENTORY_ANNOTATION}=…)"


def kept(
    devices: Iterable[Device], hardware: Hardware, published: Publication, listed: Collection[str]
) -> tuple[Devices, tuple[Withheld, ...]]:
    """Those of the devices that may be allocated, and what may not; `listed` are the resources of the annotation."""
    devices = tuple(devices)
    barred: list[Withheld] = []
    for each in (*published.withheld, *_contradictions(hardware, published, listed)):
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


def _contradictions(hardware: Hardware, published: Publication, listed: Collection[str]) -> Iterable[Withheld]:
    """What only one of the two knows. Where there is no agent, or no driver, there is one word only."""
    if hardware.published or not hardware.devices:
        return
    for resource in sorted(published.resources - set(listed)):
        there = {part.uuid: part.device for part in published.devices if part.resource == resource and not part.lost}
        seen = {part.uuid: part for part in hardware.devices if part.resource == resource}
        if not seen:
            continue
        only = [part.device for uuid, part in seen.items() if uuid not in there and not part.lost]
        if only:
            yield Withheld(resource, UNPUBLISHED, _NAME, sorted(only))
        if unseen := [device for uuid, device in there.items() if uuid not in seen]:
            yield Withheld(resource, UNSEEN, _COMPARE, sorted(unseen))
