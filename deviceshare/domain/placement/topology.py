"""The topology of a node's devices: how they are joined, and which of them are joined best.

A set is better if more of its pairs are joined by NVLink, then by NVLinks in number, then if more pairs share a PCIe
switch, then a NUMA node; of equals the one with the lowest indices.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final, NamedTuple

from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.hardware import NUMA, NVLINK, SWITCH, Link

EXHAUSTIVE: Final = 2_000
"""Sets that are all compared, a few milliseconds' work: any of up to 12 devices. Of more, sets are grown one by one."""


class Closeness(NamedTuple):
    """How well a set of devices is connected; the greater the better."""

    nvlink_pairs: int = 0
    lanes: int = 0
    switch_pairs: int = 0
    numa_pairs: int = 0


Pairs = Mapping[tuple[str, int, int], Link]


def closest(candidates: Sequence[Device], count: int, links: Iterable[Link], kept: Devices = ()) -> Devices:
    """The `count` best connected of the candidates, which are sorted and of one resource, at least `count`.

    `kept` are devices that the group has already and keeps: being close to them counts as well.
    """
    pairs = _pairs(links, {device.resource for device in candidates})
    if not pairs or count == 0 or count == len(candidates):
        return tuple(candidates[:count])
    sets: Iterable[Devices] = combinations(candidates, count)
    if comb(len(candidates), count) > EXHAUSTIVE:
        sets = (_grown(first, candidates, count, pairs, kept) for first in candidates)
    # max takes the first of equals, so the lowest indices win.
    return max(sets, key=lambda chosen: _closeness((*kept, *chosen), pairs))


def closeness(devices: Iterable[Device], links: Iterable[Link]) -> Closeness:
    """How well these devices, of one or several resources, are connected."""
    chosen = tuple(devices)
    return _closeness(chosen, _pairs(links, {device.resource for device in chosen}))


def reason(devices: Iterable[Device], links: Iterable[Link]) -> str:
    """How these devices are connected, for people; "" where that is unknown, or there is but one."""
    chosen, known = tuple(devices), tuple(links)
    pairs = comb(len(chosen), 2)
    if not pairs or not known:
        return ""
    found = closeness(chosen, known)
    if found.nvlink_pairs == pairs:
        return "all joined by NVLink"
    if found.nvlink_pairs + found.switch_pairs == pairs and not found.nvlink_pairs:
        return "all behind one PCIe switch"
    if found.numa_pairs == pairs:
        return "all on one NUMA node"
    numbers = (found.nvlink_pairs, found.switch_pairs, found.numa_pairs)
    named = zip(numbers, ("by NVLink", "by a PCIe switch", "by their NUMA node"), strict=True)
    joined = [(number, how) for number, how in named if number]
    if not joined:
        return "not close to one another"
    if pairs == 1:
        return f"joined {joined[0][1]}"
    return f"of {pairs} pairs joined: {', '.join(f'{number} {how}' for number, how in joined)}"


def _grown(first: Device, candidates: Sequence[Device], count: int, pairs: Pairs, kept: Devices) -> Devices:
    chosen, rest = [first], [device for device in candidates if device != first]
    while len(chosen) < count:
        best = max(rest, key=lambda device: _closeness((*kept, *chosen, device), pairs))
        chosen.append(best)
        rest.remove(best)
    return tuple(sorted(chosen))


def _closeness(devices: Sequence[Device], pairs: Pairs) -> Closeness:
    keys = (_pair(a.resource, a.index, b.index) for a, b in combinations(devices, 2) if a.resource == b.resource)
    found = [link for key in keys if (link := pairs.get(key))]
    kinds = [link.kind for link in found]
    return Closeness(kinds.count(NVLINK), sum(link.lanes for link in found), kinds.count(SWITCH), kinds.count(NUMA))


def _pairs(links: Iterable[Link], resources: Container[str]) -> Pairs:
    return {_pair(link.resource, link.a, link.b): link for link in links if link.resource in resources}


def _pair(resource: str, a: int, b: int) -> tuple[str, int, int]:
    return resource, min(a, b), max(a, b)
