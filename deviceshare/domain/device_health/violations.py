"""Violations: containers that use more than their share, or devices that aren't theirs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain.device_health.containers import NodeProcess
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import MAX_OVERUSES, MAX_TRESPASSES, Overuse, Trespass
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.rooms import mib, units, used

# Over-use: containers that use more of a device's memory than their share and a tolerance, and for how long.
# Shares are those of the node's ledger, by the UID of the pod, which the kernel's control groups name: what a pod
# says of itself counts for nothing. Memory of a process whose pod isn't known is nobody's use.

LEAST_TOLERANCE_MIB: Final = 1024
"""For each container: the CUDA context and libraries, which are beside what a framework's own limit counts. PyTorch's
were 610 MiB on an H100 (docs/reliability.md)."""
DEFAULT_TOLERANCE_PERCENT: Final = 10
"""Of the share, where that is more."""
DEFAULT_GRACE_SECONDS: Final = 60
LONGEST_PAUSE_SECONDS: Final = 15.0
"""Between two readings of one streak."""
OLDEST_READING_SECONDS: Final = 10.0
"""By which somebody may be evicted."""
READINGS: Final = 2
"""In a row, until it is an over-use: one may be of a program that is about to end."""
OVER_SECONDS: Final = 60.0
"""Without a reading that exceeds, until it has ended."""
AMOUNTS_SECONDS: Final = 60.0
"""Between two reports of other amounts."""
NOTICEABLE_PERCENT: Final = 10
"""Of the share: by less an amount doesn't count as another."""
OVERUSE_CURE: Final = "limit what the program allocates, or ask for a larger share"

ShareKey = tuple[str, Device, str]
"""Whose use of what it is: the UID of a pod, a device, and a container's name or ""."""


class ShareUse(Struct, frozen=True):
    """What a container uses of a device and what it may use, or all of a pod's containers together."""

    device: Device
    """In the node's present numbering."""
    pod: str
    """`namespace/name`"""
    pod_uid: str
    container: str
    """"" for the whole pod, where memory is used that can't be assigned to a container with a share of the device."""
    used_mib: int
    limit_mib: int
    containers: int = 1
    """How many containers' shares the limit is made of."""

    @property
    def key(self) -> ShareKey:
        return self.pod_uid, self.device, self.container


def share_uses(ledger: NodeDevices, processes: Iterable[NodeProcess]) -> list[ShareUse]:
    """The use of every share on the node whose size in MiB is known, sorted by pod, device and container."""
    taken: defaultdict[tuple[str, Device], Counter[str]] = defaultdict(Counter)
    for each in processes:
        taken[each.container.pod_uid, each.device][each.container.name] += each.use.memory_mib or 0
    uses: list[ShareUse] = []
    for uid, claim in sorted(ledger.claims.items(), key=lambda each: (each[1].pod, each[0])):
        by_device: dict[Device, list[Share]] = {}
        for share in claim.shares:
            by_device.setdefault(ledger.present(share.device), []).append(share)
        pod = claim.holder(uid).name
        for device, shares in sorted(by_device.items()):
            if not (size := ledger.memory_of(device)):
                continue
            mine, names = taken[uid, device], sorted({share.container for share in shares})
            for name in names:
                limit = limit_of_container((share for share in shares if share.container == name), size)
                uses.append(ShareUse(device, pod, uid, name, mine[name], limit))
            if any(memory for name, memory in mine.items() if name not in names):
                limit = mib(used(shares, size), size)
                uses.append(ShareUse(device, pod, uid, "", mine.total(), limit, len(names)))
    return uses


def limit_of_container(shares: Iterable[Share], size: int) -> int:
    """MiB of what one container may use of a device with so many MiB; 0 where that isn't known."""
    return mib(sum(units(share, size) or 0 for share in shares), size)


class Streak(NamedTuple):
    """Readings in a row that exceeded, by a monotonic clock, in seconds.

    Who is to be evicted must have exceeded its share in every reading of a grace period. What wasn't read can't count
    against anybody: a pause between two readings ends a streak, as does one reading within the bounds.
    """

    since: float
    until: float
    readings: int = 1

    def next(self, read_at: float) -> "Streak":
        """With another reading that exceeded."""
        if 0 <= read_at - self.until <= LONGEST_PAUSE_SECONDS:
            return Streak(self.since, read_at, self.readings + 1)
        return Streak(read_at, read_at)

    def is_over(self, grace: float, now: float) -> bool:
        """Whether a grace period is over, by a reading that still says something."""
        lasted = self.until - self.since >= grace and self.readings > 1
        return lasted and 0 <= now - self.until <= OLDEST_READING_SECONDS


_NEVER: Final = Streak(float("-inf"), float("-inf"))


class Overuses:
    """The shares that are exceeded, and what of it is reported. Mutable, but pure: times are passed in.

    What a program uses moves with each reading, and each write of the report makes a bind that is claiming on the node
    at the moment retry. So an over-use is over only when no reading of a while has shown it, and amounts are reported
    again only when they differ by much, and not often. The metrics have each reading's.
    """

    def __init__(self, tolerance: int = DEFAULT_TOLERANCE_PERCENT) -> None:
        """`tolerance` is in percent of a share."""
        self._tolerance = tolerance
        self.rows: list[Overuse] = []
        """To be reported."""
        self.streaks: dict[ShareKey, Streak] = {}
        """Of the shares that the last reading exceeds."""
        self._reported: dict[ShareKey, tuple[Overuse, float]] = {}
        """With the time of the last reading that exceeded, by a monotonic clock."""
        self._earlier: dict[tuple[str, str, str, int], Overuse] = {}
        self._amounts_at = float("-inf")

    def remember(self, rows: Iterable[Overuse]) -> None:
        """Resumes from the report of the agent before this one: nothing in it is withdrawn before it has ended."""
        self.rows = list(rows)
        self._earlier = {(row.pod, row.container, row.resource, row.index): row for row in self.rows}

    def bound(self, use: ShareUse) -> int:
        """MiB up to which the use is tolerated."""
        return use.limit_mib + max(use.limit_mib * self._tolerance // 100, LEAST_TOLERANCE_MIB * use.containers)

    def take(self, uses: Sequence[ShareUse], read_at: float, now: float, time: str) -> list[ShareUse]:
        """Takes in the use of every share on the node; those that are exceeded.

        `read_at` and `now` are by a monotonic clock, in seconds; `time` is now in RFC 3339.
        """
        exceeding = {use.key: use for use in uses if use.used_mib > self.bound(use)}
        self.streaks = {key: self.streaks.get(key, _NEVER).next(read_at) for key in exceeding}
        for use in uses:
            if row := self._earlier.get((use.pod, use.container, use.device.resource, use.device.index)):
                self._reported.setdefault(use.key, (row, now))
        self._earlier = {}
        for key, use in exceeding.items():
            if key in self._reported:
                self._reported[key] = self._reported[key][0], now
            elif self.streaks[key].readings >= READINGS:
                where = use.device.resource, use.device.index, use.pod, use.container
                self._reported[key] = Overuse(*where, use.used_mib, use.limit_mib, time), now
        shared = {use.key[:2] for use in uses}
        self._reported = {
            key: (row, last)
            for key, (row, last) in self._reported.items()
            if now - last < OVER_SECONDS and key[:2] in shared
        }
        if now - self._amounts_at >= AMOUNTS_SECONDS:
            for key, (row, last) in self._reported.items():
                if key in exceeding and _differs(row, use := exceeding[key]):
                    self._reported[key] = replace(row, used_mib=use.used_mib, limit_mib=use.limit_mib), last
                    self._amounts_at = now
        rows = (row for row, _ in self._reported.values())
        ordered = sorted(rows, key=lambda row: (row.resource, row.index, row.pod, row.container))
        self.rows = ordered[:MAX_OVERUSES]
        return list(exceeding.values())


def _differs(row: Overuse, use: ShareUse) -> bool:
    much = max(use.limit_mib * NOTICEABLE_PERCENT // 100, 1)
    return row.limit_mib != use.limit_mib or abs(row.used_mib - use.used_mib) >= much


# Trespasses: processes on devices of a group, or of pods with shares, that belong to none of their pods.
# The environment that deviceshare sets is a runtime's convention: a privileged container, or a program on the node,
# sees every device. What can't be prevented is detected, by what a process can't choose: the kernel's control groups,
# PIDs and start times, and the UIDs of the API server. Names are for people only.

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
        """Takes in a reading; returns the trespasses that stayed."""
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
