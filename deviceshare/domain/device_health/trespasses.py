"""Trespasses: processes on devices of a group, or of pods with shares, that belong to none of their pods.

The environment that deviceshare sets is a runtime's convention: a privileged container, or a program on the node, sees
every device. What can't be prevented is detected, by what a process can't choose: the kernel's control groups, PIDs and
start times, and the UIDs of the API server. Names are for people only.
"""

from collections.abc import Iterable

from msgspec import Struct

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import MAX_TRESPASSES, Trespass
from deviceshare.domain.objects.ledger import NodeDevices


class Suspect(Struct, frozen=True):
    """The identity of a trespasser: a pod as a whole, or one process outside of any pod.

    A pod may restart its processes under other names and PIDs; it stays the same pod.
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
    """Of the group whose devices the pod received; empty for any other pod."""
    cgroup_uid: str = ""
    """The pod's as its control group names it; empty for a process outside of any pod."""
    started: int = 0
    """When the process started, in ticks since the node booted; with the PID it identifies one process."""
    container: str = ""
    """Of the pod; "" where it isn't known."""
    memory_mib: int = 0
    """0 where the driver doesn't say."""

    @property
    def suspect(self) -> Suspect:
        return Suspect(self.cgroup_uid) if self.cgroup_uid else Suspect("", self.pid, self.started)


def trespassers(ledger: NodeDevices, occupants: Iterable[Occupant]) -> list[Occupant]:
    """The processes on claimed devices that belong neither to a pod of a group that claims them nor to one with shares.

    Devices that a rebind replaced count as the group's, as long as its pods may use them. A pod has its shares by its
    own UID, and its annotations count for nothing.
    """
    members: dict[Device, set[str]] = {}
    sharers: dict[Device, set[str]] = {}
    for uid, claim in ledger.claims.items():
        for device in ledger.reserved(claim):
            (sharers if claim.shares else members).setdefault(device, set()).add(uid)
    return [
        each
        for each in occupants
        if (each.device in members or each.device in sharers)
        and each.holder_uid not in members.get(each.device, ())
        and each.pod_uid not in sharers.get(each.device, ())
    ]


def as_trespass(occupant: Occupant) -> Trespass:
    """The entry in the report, without the PID, which is of no use to its readers."""
    return Trespass(occupant.device.resource, occupant.device.index, process=occupant.name, pod=occupant.pod)


def written(found: Iterable[Trespass]) -> list[Trespass]:
    """The report's list: no duplicates, in a stable order, at most MAX_TRESPASSES."""
    rows = sorted(set(found), key=lambda row: (row.resource, row.index, row.pod, row.process))
    return rows[:MAX_TRESPASSES]
