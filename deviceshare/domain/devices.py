"""Devices and the three ways they are written down: in a claim, in a group's status, in a container's environment."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from deviceshare.domain import contract


class Device(Struct, frozen=True, order=True):
    """One physical device of a node, named as its vendor counts it: by resource and index from 0."""

    resource: str
    index: int

    def __str__(self) -> str:
        return f"{self.resource} {self.index}"


Devices = tuple[Device, ...]
"""A set of devices of one node, sorted by resource and index."""


def devices_of(counts: Mapping[str, int]) -> Devices:
    """Every device of an inventory of resource → count."""
    return tuple(Device(resource, index) for resource in sorted(counts) for index in range(counts[resource]))


def selected(devices: Iterable[Device]) -> dict[str, str]:
    """The shape of `status.selectedDevices`: `{"nvidia.com/gpu": "0,1"}`."""
    indices: dict[str, list[int]] = {}
    for device in sorted(devices):
        indices.setdefault(device.resource, []).append(device.index)
    return {resource: ",".join(map(str, numbers)) for resource, numbers in indices.items()}


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


def visible(devices: Iterable[Device]) -> dict[str, str]:
    """What each vendor's runtime is told: pod annotation → comma-separated indices.

    A vendor of whom there is no device is left out; its variable is then empty, which every runtime reads as none.
    """
    texts = {}
    for resource, indices in selected(devices).items():
        vendor = contract.vendor_of(resource)
        if vendor is not None:
            texts[vendor.annotation] = indices
    return texts
