"""The fleet in numbers, for metrics."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import PENDING, Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement.fleet import Fleet

FREE, HELD, RELEASING, LOST = "free", "held", "releasing", "lost"
UNHEALTHY, ALLOCATED, FORMER, SPLIT, LEFT = "unhealthy", "allocated", "former", "split", "left"
WITHHELD = "withheld"


class DeviceCount(NamedTuple):
    """How many devices of one resource on one node are in one state.

    `held` by a group, `releasing` while a deleted group's last pods still use them, `former` when they were replaced
    but pods may still hold them, `lost` when a claim names devices that the node no longer has, `allocated` by the
    vendor's device plugin; those that nobody holds are `unhealthy`, `split` by MIG, `left` to the plugin,
    `withheld` from groups or `free`.
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
        states = Counter((device.resource, state) for device, state in _states(ledger).items())
        for (resource, state), number in sorted(states.items()):
            yield DeviceCount(name, resource, state, number)


def _states(ledger: NodeDevices) -> dict[Device, str]:
    """The state of each device that the node has or somebody holds; where several are true, the last one here."""
    present = {*ledger.devices, *ledger.kept_out}
    states = dict.fromkeys(ledger.devices, FREE)
    states |= dict.fromkeys(ledger.left(), LEFT)
    states |= dict.fromkeys(ledger.kept_out, WITHHELD)
    states |= dict.fromkeys(ledger.split(), SPLIT)
    states |= dict.fromkeys(ledger.unhealthy(), UNHEALTHY)
    states |= dict.fromkeys(ledger.allocated(), ALLOCATED)
    for claim in ledger.claims.values():
        state = RELEASING if claim.releasing else HELD
        states |= {ledger.present(device): FORMER for device in claim.former}
        states |= {device: state if device in present else LOST for device in ledger.held(claim)}
    return states


def count_groups(groups: Iterable[Group]) -> dict[str, int]:
    """Groups by phase; one that nobody looked at yet is Pending."""
    return dict(Counter(group.status.phase or PENDING for group in groups))
