"""The hand-over: the words that name a container's devices to its node's container runtime.

NVIDIA's runtime in its legacy mode takes numbers and UUIDs in the variable. In mode `cdi`, and where NVIDIA's NRI
plugin injects devices, only qualified CDI names (`KIND=DEVICE`) work, and a bare number or UUID keeps the container
from starting. Which of these a node understands is known from the node alone: from what its agent reports, from the
node's label, or from the cluster's setting. The leader decides it for each node and writes it into the node's ledger,
so that whoever binds there uses the same words.

https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/cdi.html
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.hardware import Hardware, Withheld
from deviceshare.domain.placement.inventory import Offer
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

AUTO: Final = "auto"
INDEX: Final = "index"
UUID: Final = "uuid"
CDI: Final = "cdi"
STYLES: Final = (AUTO, INDEX, UUID, CDI)
NONE: Final = "none"


class HandoverSetting(Struct, frozen=True):
    """What the cluster's administrator says of all nodes; a node's label wins over `style`."""

    style: str = AUTO
    kind: str = ""
    """The CDI kind to use; empty means the first of the vendor's kinds that the node can resolve."""
    runtime_class: str = ""
    """The RuntimeClass that pods of groups get, unless they name one; "" where none is needed, or none exists."""


DEFAULT: Final = HandoverSetting()


class Handover(NamedTuple):
    """How one node's devices of one vendor are handed over, or why they can't be."""

    words: str
    """`index`, `uuid`, the CDI kind that qualifies each device's name, or `none`; "" where nothing is known of the
    node, and then it is UUIDs as soon as an agent reports them, and numbers until then."""
    obstacle: str = ""
    """Why no device of the vendor can be handed over on the node, with the cure: where it is `none`."""


def apply(
    offer: Offer, labels: Mapping[str, str], hardware: Hardware, setting: HandoverSetting
) -> tuple[Offer, dict[str, str]]:
    """What remains of a node's offer once what can't be handed over is withheld; and the words for each vendor."""
    offered = vendors.vendors_of(device.resource for device in offer.devices)
    decided = {vendor.name: decide(vendor, labels, hardware, setting) for vendor in offered}
    words = {name: each.words for name, each in decided.items() if each.words}
    silent = mute(offer.devices, words)
    withheld = [
        Withheld(resource, decided[vendor.name].obstacle, devices=[d for d in silent if d.resource == resource])
        for resource in sorted({device.resource for device in silent})
        if (vendor := vendors.vendor_of(resource))
    ]
    devices = tuple(device for device in offer.devices if device not in silent)
    return offer._replace(devices=devices, withheld=(*offer.withheld, *withheld)), words


def mute(devices: Iterable[Device], handover: Mapping[str, str]) -> Devices:
    """Those that can't be handed over at all."""
    return tuple(device for device in devices if _words(device, handover) == NONE)


def as_claimed(devices: Iterable[Device], handover: Mapping[str, str]) -> Devices:
    """The devices as a claim names them: by number alone where pods' annotations do.

    The claim follows the annotations, since these are what containers open after a reboot, too.
    """
    return tuple(
        replace(device, uuid="") if _words(device, handover) == INDEX else device for device in sorted(devices)
    )


def unspeakable(devices: Iterable[Device], handover: Mapping[str, str]) -> Devices:
    """Those claimed by number where the node's runtime takes nothing but UUIDs."""
    return tuple(
        device
        for device in devices
        if not device.uuid
        and is_kind(words := _words(device, handover))
        and not any(words in vendor.numbered_kinds for vendor in vendors.VENDORS)
    )


def is_kind(words: str) -> bool:
    """Whether these are the words of a hand-over by CDI."""
    return "/" in words


def _words(device: Device, handover: Mapping[str, str]) -> str:
    vendor = vendors.vendor_of(device.resource)
    return handover.get(vendor.name, "") if vendor else ""


def decide(vendor: Vendor, labels: Mapping[str, str], hardware: Hardware, setting: HandoverSetting) -> Handover:
    """How the vendor's devices on a node with these labels and this report of its agent are handed over."""
    style = labels.get(contract.HANDOVER_LABEL) or setting.style
    if style not in STYLES:
        return Handover(NONE, f"the node's label {contract.HANDOVER_LABEL}={style} is none of {listed(STYLES)}")
    uuids = [part.uuid for part in hardware.devices if vendors.vendor_of(part.resource) is vendor and not part.lost]
    named = bool(uuids) and all(uuids)
    if not vendor.kinds:
        if labels.get(contract.HANDOVER_LABEL) == CDI:
            return Handover(NONE, f"{vendor.env} takes no CDI names, and {_LABELLED_CDI}")
        style = AUTO  # Whatever the cluster's setting says of others: its runtime knows the variable only.
    elif style == AUTO and hardware.runtime == CDI:
        style = CDI
    if style == AUTO:
        return Handover(UUID if named else "")
    if style == INDEX and hardware.published and named:
        return Handover(NONE, f"{_OTHER_NUMBERS}: use uuid, or run deviceshare's agent: {_AGENT}")
    if style == UUID and not named:
        return Handover(NONE, f"hand-over by uuid needs UUIDs, which the node's agent reports: {_AGENT}")
    return _by_cdi(vendor, hardware, setting.kind, named=named) if style == CDI else Handover(style)


def _by_cdi(vendor: Vendor, hardware: Hardware, wanted: str, *, named: bool) -> Handover:
    kind = wanted or vendor.kinds[0]
    if not named:
        # Without UUIDs only a kind that also names devices by their numbers will do.
        if kind in vendor.numbered_kinds:
            return Handover(kind)
        return Handover(NONE, f"hand-over by CDI needs UUIDs, which the node's agent reports: {_AGENT}")
    if hardware.cdi_kinds is None:
        return Handover(kind)  # the agent doesn't see the specifications: the setting is all that is known
    usable = [each for each in ([wanted] if wanted else vendor.kinds) if each in hardware.cdi_kinds]
    if usable:
        return Handover(usable[0])
    return Handover(
        NONE,
        "no CDI specification on the node names all its devices by UUID as"
        f" {wanted or listed(vendor.kinds, link='or')}: have the device plugin write one (CDI enabled, its device ID"
        f" strategy uuid), or run {vendor.cdi_tool}",
    )


_LABELLED_CDI: Final = (
    f"the node's label {contract.HANDOVER_LABEL}=cdi asks for them: kubectl label node NODE {contract.HANDOVER_LABEL}-"
)
_OTHER_NUMBERS: Final = "hand-over by index needs the runtime's numbers, and ResourceSlices have others"
_AGENT: Final = "install the chart with agent.enabled=true"
