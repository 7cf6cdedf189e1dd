"""Trespasses: processes on devices of a group, or of pods with shares, that belong to none of their pods.

The environment that deviceshare sets is a runtime's convention: a privileged container, or a program on the node, sees
every device. What can't be prevented is detected, by what a process can't choose: the kernel's control groups, PIDs and
start times, and the UIDs of the API server. Names are for people only.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from deviceshare.domain.device_health.containers import NodeProcess
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import MAX_TRESPASSES, Trespass
from deviceshare.domain.objects.ledger import NodeDevices

MEMORY: Final = 12
"""Readings for which a trespasser is remembered: a minute."""

_Key = tuple[Device, tuple[str, int, int]]
"""A device, and who is on it (`NodeProcess.identity`)."""


class FoundTrespass(NamedTuple):
    """One that stayed: of a pod the process that has run for longest, or a process outside of any."""

    process: NodeProcess
    row: Trespass
    """In the report, with the name that the process had first: another name is no news."""
    news: bool
    seen_before: bool
    """By this agent itself: one before it may have seen another pod of this name."""


class _Remembered(NamedTuple):
    reading: int
    name: str
    reported: bool


class Trespasses:
    """Compares each reading with those before.

    A process seen once may be about to end, or belong to a pod that the watch hasn't reported yet: it counts when it is
    seen again within a minute. Neither another name, nor a new process, nor a pause between two readings hides it.
    """

    def __init__(self) -> None:
        self.rows: list[Trespass] = []
        """To be reported: no duplicates, in a stable order, at most MAX_TRESPASSES."""
        self._readings = 0
        self._remembered: dict[_Key, _Remembered] = {}
        self._stayed: set[_Key] = set()
        self._earlier: list[Trespass] = []

    def remember(self, reported: list[Trespass]) -> None:
        """Resumes from the report of the agent before this one, so that nothing in it is withdrawn."""
        self.rows = self._earlier = reported

    def accuses(self, process: NodeProcess) -> bool:
        """Whether the process, or its pod, trespassed on the device in the last reading, and in one before."""
        return (process.device, process.identity) in self._stayed

    def take(self, ledger: NodeDevices, processes: Iterable[NodeProcess]) -> list[FoundTrespass]:
        """Those that stayed."""
        self._readings += 1
        found: dict[_Key, NodeProcess] = {}
        for each in sorted(trespassers(ledger, processes), key=lambda each: (each.use.started, each.use.pid)):
            found.setdefault((each.device, each.identity), each)
        seen = {identity for _, identity in self._remembered}
        stayed = []
        for key, process in found.items():
            earlier = self._reported_earlier(process)
            known = self._remembered.get(key) or _Remembered(0, earlier.process if earlier else process.use.name, False)
            stays = key[1] in seen or earlier is not None
            if stays:
                news = not known.reported and not earlier
                stayed.append(FoundTrespass(process, _row(process, known.name), news, key[1] in seen))
            self._remembered[key] = _Remembered(self._readings, known.name, known.reported or stays)
        oldest = self._readings - MEMORY
        self._remembered = {key: known for key, known in self._remembered.items() if known.reading > oldest}
        self._earlier = []
        self._stayed = {(each.process.device, each.process.identity) for each in stayed}
        rows = {each.row for each in stayed}
        self.rows = sorted(rows, key=lambda row: (row.resource, row.index, row.pod, row.process))[:MAX_TRESPASSES]
        return stayed

    def _reported_earlier(self, process: NodeProcess) -> Trespass | None:
        """The row of an earlier agent's report that may mean this one. Rows hold names only."""
        pod, device = process.container.pod, process.device
        alike = (
            row for row in self._earlier if (row.resource, row.index, row.pod) == (device.resource, device.index, pod)
        )
        return next((row for row in alike if pod or row.process == process.use.name), None)


def trespassers(ledger: NodeDevices, processes: Iterable[NodeProcess]) -> list[NodeProcess]:
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
        for each in processes
        if (each.device in members or each.device in sharers)
        and each.container.holder_uid not in members.get(each.device, ())
        and each.container.pod_uid not in sharers.get(each.device, ())
    ]


def _row(process: NodeProcess, name: str) -> Trespass:
    """Without the PID, which is of no use to its readers."""
    return Trespass(process.device.resource, process.device.index, process=name, pod=process.container.pod)
