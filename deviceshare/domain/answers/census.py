"""Numbers of devices, groups and waiting pods, for metrics."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.answers.device_parts import allocated
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import PENDING, Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.device_state import Health, Use
from deviceshare.domain.placement.fleet import Fleet


class DeviceCount(NamedTuple):
    """How many devices of one resource on one node are used so and are in this health."""

    node: str
    resource: str
    use: Use
    health: Health
    number: int


def count_devices(fleet: Fleet) -> Iterable[DeviceCount]:
    """Every node, resource, use and health that there is."""
    for name in fleet.names():
        found = Counter((each.device.resource, each.use, each.health) for each in fleet.states(name))
        for (resource, use, health), number in sorted(found.items()):
            yield DeviceCount(name, resource, use, health, number)


def allocated_twice(fleet: Fleet) -> dict[str, int]:
    """Devices that groups or shares have and that others allocated, too, by who did."""
    twice = [state for name in fleet.names() for state in fleet.states(name) if state.allocated_twice]
    return {
        "device-plugin": sum(bool(state.pod) for state in twice),
        "resource-claim": sum(bool(state.resource_claim) for state in twice),
    }


def claimed_twice(fleet: Fleet) -> dict[str, int]:
    """Devices about which claims contradict each other, by node."""
    found = {name: sum(bool(state.claimed_twice) for state in fleet.states(name)) for name in fleet.names()}
    return {name: number for name, number in found.items() if number}


class DeviceMemory(NamedTuple):
    """The memory of one device, in MiB, and how much of it is allocated."""

    node: str
    device: Device
    capacity: int
    allocated: int


def device_memory(fleet: Fleet) -> Iterable[DeviceMemory]:
    """Every device that a node has and of which the memory is known."""
    for name in fleet.names():
        for state in fleet.states(name):
            if state.memory_mib and not state.lost:
                yield DeviceMemory(name, state.device, state.memory_mib, allocated(state).memory_mib)


def count_waiting(pods: Iterable[Pod]) -> dict[str, int]:
    """Pods without a node that a scheduler may try, by what they want."""
    waiting = [pod for pod in pods if pod.pending and not pod.gates]
    shares = sum(not pod.group for pod in waiting)
    return {"group": len(waiting) - shares, "share": shares}


def count_groups(groups: Iterable[Group]) -> dict[str, int]:
    """Groups by phase; one that nobody looked at yet is Pending."""
    return dict(Counter(group.status.phase or PENDING for group in groups))
