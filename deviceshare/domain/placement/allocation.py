"""Fit, choice and score: which devices a request gets on a node, and which node is better.

All or nothing: a request for several resources gets all of them on one node, or none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.hardware import Link
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement import topology
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.placement.device_states import device_states, free_devices, held_by
from deviceshare.domain.placement.rooms import Room
from deviceshare.domain.wording import listed

Preference = tuple[int, int]
"""What nodes are compared by, and by what those that are equal: the less, the fuller (`Shape.preference`)."""
MAX_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (k8s.io/kube-scheduler/extender/v1)."""


class Available(NamedTuple):
    """What can be claimed on a node now."""

    devices: Devices
    links: list[Link]
    """How the node's devices are joined, as far as its agent reports."""
    rooms: tuple[tuple[Device, Room], ...] = ()
    """What is left for shares, of each device that serves any."""


def available(ledger: NodeDevices, within: str = "") -> Available:
    """What nobody holds, by the ledger; with the rooms of the devices of the group `within`, or of nobody's."""
    states = device_states(ledger)
    return Available(free_devices(states), ledger.hardware.links, rooms(states, within))


def rooms(states: Iterable[DeviceState], within: str = "") -> tuple[tuple[Device, Room], ...]:
    """What is left for shares of nobody's devices, or of those that the group with this UID holds."""
    if within:
        return tuple((state.device, state.room_within(within)) for state in held_by(states, within))
    return tuple((state.device, state.room) for state in states if state.shareable)


def shortage(request: Request, free: Mapping[str, int], total: Mapping[str, int]) -> str:
    """What is missing on a node with `free` of `total` devices by resource, or "" when the request fits."""
    return listed(
        f"{count} {resource} ({free.get(resource, 0)} of {total.get(resource, 0)} free)"
        for resource, count in sorted(request.resources.items())
        if free.get(resource, 0) < count
    )


def choose(request: Request, available: Available) -> Devices | None:
    """What meets the request: of each resource the best connected, else the lowest indices; None if none do."""
    chosen: list[Device] = []
    for resource, count in request.resources.items():
        candidates = sorted(device for device in available.devices if device.resource == resource)
        if len(candidates) < count:
            return None
        chosen.extend(topology.closest(candidates, count, available.links))
    return tuple(sorted(chosen))


def meets(request: Request, devices: Iterable[Device]) -> bool:
    """Whether these are what is requested, no more and no less."""
    return Counter(device.resource for device in devices) == request.resources


def scores(strategy: str, preferences: Mapping[str, Preference]) -> dict[str, int]:
    """How good each node is, 0 to `MAX_SCORE`, from what nodes are compared by.

    binpack prefers fuller nodes, spread emptier ones. The best ones alone get `MAX_SCORE`, so that kube-scheduler's own
    scores choose among equals only. Behind them any difference shows, whatever the nodes' sizes, as far as ten steps
    go: past that, neighbouring ranks share a score.
    """
    ordered = sorted(set(preferences.values()), reverse=strategy == "binpack")
    ranks = {preference: rank for rank, preference in enumerate(ordered)}
    best, top = len(ranks) - 1, max(len(ranks) - 2, 1)
    steps = {
        preference: MAX_SCORE if rank == best else round((MAX_SCORE - 1) * rank / top)
        for preference, rank in ranks.items()
    }
    return {node: steps[preference] for node, preference in preferences.items()}
