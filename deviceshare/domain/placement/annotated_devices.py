"""The format of node annotations that name devices, such as `deviceshare.io/devices`: what a node has for groups.

    nvidia.com/gpu=4                        the four devices 0 to 3
    nvidia.com/gpu=1-3                      these devices; 0 is kept out
    nvidia.com/gpu=0,2-3,amd.com/gpu=2      a comma joins a list, until the next resource
    nvidia.com/gpu=5-5                      device 5 alone: one whole number is how many, not which
    nvidia.com/gpu=GPU-8a56a4bc-…           by UUID, where the node's agent reports these

An entry that can't be read is never guessed: nobody then gets anything of that resource.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.wording import listed

MOST: Final = 1024
"""Devices of one resource on a node: more than any machine has, and a bound on what a text may make us count."""

_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT: Final = re.compile(r"[0-9]{1,9}")
DEVICE_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,80}")


class Listed(NamedTuple):
    """What the annotation names of one resource."""

    indices: frozenset[int] = frozenset()
    uuids: frozenset[str] = frozenset()
    fault: str = ""
    """Why the entry can't be read, or ""."""


class Named(NamedTuple):
    """The devices that an entry means on a node, and why it can't be read as it stands."""

    devices: tuple[Device, ...]
    faults: tuple[str, ...] = ()


class Annotated(NamedTuple):
    """The whole annotation; `faults` are of what belongs to no resource that is known."""

    resources: Mapping[str, Listed]
    faults: list[str]


def read(text: str) -> Annotated:
    """The annotation's value, as the grammar above says."""
    entries: list[tuple[str, list[str]]] = []
    for word in filter(None, (each.strip() for each in text.split(","))):
        resource, equals, value = word.partition("=")
        if equals or not entries:
            entries.append((resource.strip(), [value.strip()]))
        else:
            entries[-1][1].append(word)
    found: dict[str, Listed] = {}
    faults = []
    for resource, values in entries:
        if not vendors.vendor_of(resource):
            faults.append(f"unknown resource {resource[:80]!r} (known: {listed(vendors.known_resources())})")
        elif resource in found:
            found[resource] = Listed(fault=f"{resource} is named twice; name it once")
        else:
            found[resource] = _parsed(resource, values)
    return Annotated(found, faults)


def _parsed(resource: str, values: list[str]) -> Listed:
    too_many = Listed(fault=f"{resource}: no node has more than {MOST} devices of one resource")
    if len(values) == 1 and _COUNT.fullmatch(values[0]):
        count = int(values[0])
        return Listed(frozenset(range(count))) if count <= MOST else too_many
    indices: set[int] = set()
    uuids = set()
    for value in values:
        if DEVICE_UUID.fullmatch(value):
            uuids.add(value)
            continue
        if not (match := _RANGE.fullmatch(value)):
            wants = "a number of devices, a list such as 0,2-3, or UUIDs"
            return Listed(fault=f"{resource} wants {wants}, not {','.join(values)[:80]!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return Listed(fault=f"{resource}: the range {value} ends before it begins")
        if last >= MOST:
            return too_many
        indices.update(range(first, last + 1))
    return Listed(frozenset(indices), frozenset(uuids))


def named(resource: str, entry: Listed, there: Iterable[Device], *, agent: bool) -> Named:
    """The devices meant, where these of the resource are there; `agent` reports them with UUIDs."""
    faults = [entry.fault] if entry.fault else []
    by_uuid = {device.uuid: device for device in there if device.uuid}
    if entry.uuids and not agent:
        faults.append(f"{resource}: only deviceshare's agent knows UUIDs; run it on the node, or give numbers")
    elif missing := sorted(entry.uuids - by_uuid.keys()):
        faults.append(f"{resource}: the node has no {listed(missing, link='or')}; see kubectl get ndev -o yaml")
    # By its UUID where that is how it was named: the number may be another device's after a reboot.
    chosen = [by_uuid[uuid] for uuid in entry.uuids & by_uuid.keys()]
    numbers = entry.indices - {device.index for device in chosen}
    return Named(tuple(sorted([*chosen, *(Device(resource, index) for index in numbers)])), tuple(faults))
