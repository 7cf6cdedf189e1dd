"""Numbers of devices and groups, for metrics."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.objects.groups import PENDING, Group
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


def count_groups(groups: Iterable[Group]) -> dict[str, int]:
    """Groups by phase; one that nobody looked at yet is Pending."""
    return dict(Counter(group.status.phase or PENDING for group in groups))
