"""The fleet in numbers, for metrics."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.fleet import Fleet
from deviceshare.domain.groups import PENDING, Group

FREE, HELD, RELEASING, LOST = "free", "held", "releasing", "lost"


class DeviceCount(NamedTuple):
    """How many devices of one resource on one node are in one state.

    `held` by a group, `releasing` while a deleted group's last pods still use them, `lost` when a claim names devices
    that the node no longer has, else `free`.
    """

    node: str
    resource: str
    state: str
    number: int


def count_devices(fleet: Fleet) -> Iterable[DeviceCount]:
    """Every node, resource and state that there is."""
    for name in fleet.names():
        ledger = fleet.ledger(name)
        if ledger is None:
            continue
        present = set(ledger.devices)
        states = Counter((device.resource, FREE) for device in ledger.free())
        for claim in ledger.claims.values():
            state = RELEASING if claim.releasing else HELD
            states.update((device.resource, state if device in present else LOST) for device in claim.devices)
        for (resource, state), number in sorted(states.items()):
            yield DeviceCount(name, resource, state, number)


def count_groups(groups: Iterable[Group]) -> dict[str, int]:
    """Groups by phase; one that nobody looked at yet is Pending."""
    return dict(Counter(group.status.phase or PENDING for group in groups))
