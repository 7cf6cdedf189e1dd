"""Who uses a device that is somebody else's.

The environment that deviceshare sets is a runtime's convention: a privileged container, or a program on the node, sees
every device. What can't be prevented is found out.
"""

from collections.abc import Iterable

from msgspec import Struct

from deviceshare.domain.devices import Device
from deviceshare.domain.hardware import MAX_TRESPASSES, Trespass
from deviceshare.domain.ledger import NodeDevices


class Occupant(Struct, frozen=True):
    """A process with memory on a device, in the node's present numbering."""

    device: Device
    pid: int
    name: str
    pod: str = ""
    """`namespace/name`; empty for a process outside of any pod."""
    pod_uid: str = ""
    group_uid: str = ""
    """Of the group whose devices the pod was given; empty for any other pod."""


def trespassers(ledger: NodeDevices, occupants: Iterable[Occupant]) -> list[Occupant]:
    """The processes on claimed devices that belong to no pod of a group that claims them.

    Devices before a rebind count as the group's, as long as its pods may use them.
    """
    holders: dict[Device, set[str]] = {}
    for uid, claim in ledger.claims.items():
        for device in ledger.reserved(claim):
            holders.setdefault(device, set()).add(uid)
    return [each for each in occupants if each.device in holders and each.group_uid not in holders[each.device]]


def as_trespass(occupant: Occupant) -> Trespass:
    """What is written down of it: its PID says nothing to a reader."""
    return Trespass(occupant.device.resource, occupant.device.index, process=occupant.name, pod=occupant.pod)


def written(found: Iterable[Occupant]) -> list[Trespass]:
    """As they are reported: alike processes once, in an order that doesn't change by itself, no more than are read."""
    rows = sorted(set(map(as_trespass, found)), key=lambda row: (row.resource, row.index, row.pod, row.process))
    return rows[:MAX_TRESPASSES]
