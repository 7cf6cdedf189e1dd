"""Who uses a device that is somebody else's.

The environment that deviceshare sets is a runtime's convention: a privileged container, or a program on the node, sees
every device. What can't be prevented is found out, by what its subject can't choose: the kernel's control groups,
PIDs and start times, and the UIDs of the API server. Names are for people only.
"""

from collections.abc import Iterable

from msgspec import Struct

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import MAX_TRESPASSES, Trespass
from deviceshare.domain.objects.ledger import NodeDevices


class Suspect(Struct, frozen=True):
    """Who somebody is, whatever it calls itself: a pod as a whole, or one process outside of any pod.

    A pod may start its processes again under other names and PIDs as often as it likes; it stays the same pod.
    """

    pod_uid: str = ""
    """As its control group names it."""
    pid: int = 0
    started: int = 0


class Occupant(Struct, frozen=True):
    """A process with memory on a device, in the node's present numbering."""

    device: Device
    pid: int
    name: str
    pod: str = ""
    """`namespace/name`; empty for a process outside of any pod."""
    pod_uid: str = ""
    """The API server's; empty where it shows no such pod."""
    holder_uid: str = ""
    """Of the group whose devices the pod was given; empty for any other pod."""
    cgroup_uid: str = ""
    """The pod's as its control group names it; empty for a process outside of any pod."""
    started: int = 0
    """When the process started, in ticks since the node did; with the PID it names one process for ever."""

    @property
    def suspect(self) -> Suspect:
        return Suspect(self.cgroup_uid) if self.cgroup_uid else Suspect("", self.pid, self.started)


def trespassers(ledger: NodeDevices, occupants: Iterable[Occupant]) -> list[Occupant]:
    """The processes on claimed devices that belong to no pod of a group that claims them.

    Devices before a rebind count as the group's, as long as its pods may use them.
    """
    holders: dict[Device, set[str]] = {}
    for uid, claim in ledger.claims.items():
        for device in ledger.reserved(claim):
            holders.setdefault(device, set()).add(uid)
    return [each for each in occupants if each.device in holders and each.holder_uid not in holders[each.device]]


def as_trespass(occupant: Occupant) -> Trespass:
    """What is written down of it: its PID says nothing to a reader."""
    return Trespass(occupant.device.resource, occupant.device.index, process=occupant.name, pod=occupant.pod)


def written(found: Iterable[Trespass]) -> list[Trespass]:
    """As they are reported: alike ones once, in an order that is always the same, no more than are read."""
    rows = sorted(set(found), key=lambda row: (row.resource, row.index, row.pod, row.process))
    return rows[:MAX_TRESPASSES]
