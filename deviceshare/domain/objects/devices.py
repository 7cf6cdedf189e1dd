"""Devices, and their formats in a claim, in a group's status and in a container's environment."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, to_builtins

from deviceshare.domain import vendors
from deviceshare.domain.wording import listed

Identity = tuple[str, str | int]
"""A device of a node: the variable that names it to a container, and its UUID, or its index where that is unknown.

Two resources behind one variable, such as `huawei.com/Ascend910` and `huawei.com/Ascend310P`, share their devices.
"""


class Device(Struct, frozen=True, gc=False, order=True, omit_defaults=True):
    """One physical device of a node, named as its vendor counts it: by resource and index from 0.

    `uuid` is known where the node's agent reports it. A reboot may change the index, never the UUID.
    """

    resource: str
    index: int
    uuid: str = ""

    def __str__(self) -> str:
        return f"{self.resource} {self.index}"

    @property
    def identity(self) -> Identity:
        """The device's identity on its node, whatever its resource is called: what its vendor's variable names."""
        vendor = vendors.vendor_of(self.resource)
        return vendor.env if vendor else self.resource, self.uuid or self.index


Devices = tuple[Device, ...]
"""A set of devices of one node, sorted by resource and index."""


def as_json(parts: Iterable[Any]) -> list[dict[str, Any]]:
    """Devices, or shares of them, as the API server stores them."""
    stored: list[dict[str, Any]] = to_builtins(sorted(parts))
    return stored


def devices_of(counts: Mapping[str, int]) -> Devices:
    """Every device of an inventory of resource → count."""
    return tuple(Device(resource, index) for resource in sorted(counts) for index in range(counts[resource]))


def identities(devices: Iterable[Device]) -> set[Identity]:
    """The identities of these."""
    return {device.identity for device in devices}


def selected(devices: Iterable[Device]) -> dict[str, str]:
    """Devices in the format of `status.selectedDevices`: `{"nvidia.com/gpu": "0,1"}`."""
    return {
        resource: ",".join(str(device.index) for device in mine) for resource, mine in _by_resource(devices).items()
    }


def described(devices: Iterable[Device] | Mapping[str, str]) -> str:
    """Devices, or what `selected` makes of them, in a sentence: `amd.com/gpu 2 and nvidia.com/gpu 0,1`."""
    chosen = devices if isinstance(devices, Mapping) else selected(devices)
    return listed(f"{resource} {indices}" for resource, indices in sorted(chosen.items()))


def parse_selected(texts: Mapping[str, str]) -> Devices:
    """The inverse of `selected`.

    Raises:
        ValueError: an entry isn't a comma-separated list of device indices.
    """
    devices = []
    for resource, text in texts.items():
        for number in text.split(","):
            if not number.isdecimal():
                raise ValueError(f"{resource}: {text!r} is not a list of device indices such as 0,1")
            devices.append(Device(resource, int(number)))
    return tuple(sorted(devices))


def visible(devices: Iterable[Device], handover: Mapping[str, str]) -> dict[str, str]:
    """What each vendor's runtime reads: pod annotation → the devices' names, with commas.

    The names are UUIDs where the devices have them, else numbers. `handover` maps vendors' names to the words that the
    node's runtime accepts (handover.py); a CDI kind there qualifies each name, and adds the CDI annotation. A vendor
    without a device is left out; its variable is then empty, which every runtime reads as none, and its CDI annotation
    is absent.
    """
    texts = {}
    for resource, mine in _by_resource(devices).items():
        vendor = vendors.vendor_of(resource)
        if vendor is None:
            continue
        words = handover.get(vendor.name, "")
        named = all(device.uuid for device in mine)
        names = [device.uuid if named else str(device.index) for device in mine]
        kind = f"{words}=" if "/" in words else ""
        texts[vendor.annotation] = ",".join(kind + name for name in names)
        if kind and vendor.cdi_annotation:
            texts[vendor.cdi_annotation] = texts[vendor.annotation]
    return texts


def with_uuids(devices: Devices, annotations: Mapping[str, str]) -> Devices:
    """Devices read back from `selected`, with the UUIDs that `visible` wrote beside them in the same order."""
    known = []
    for resource, mine in _by_resource(devices).items():
        vendor = vendors.vendor_of(resource)
        words = annotations.get(vendor.annotation, "").split(",") if vendor else []
        names = [word.rpartition("=")[2] for word in words]
        named = len(names) == len(mine) and not any(name.isdecimal() or not name for name in names)
        known += [
            Device(resource, device.index, name if named else "")
            for device, name in zip(mine, names if named else [""] * len(mine), strict=True)
        ]
    return tuple(sorted(known))


def _by_resource(devices: Iterable[Device]) -> dict[str, list[Device]]:
    mine: dict[str, list[Device]] = {}
    for device in sorted(devices):
        mine.setdefault(device.resource, []).append(device)
    return mine
