"""What is shown of a pod."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from itertools import dropwhile, groupby
from typing import Final

from msgspec import Raw, Struct, field
from msgspec.structs import asdict, replace

from deviceshare.domain.device_health.violations import limit_of_container
from deviceshare.domain.objects.hardware import ReportedProgram, ReportedTurns
from deviceshare.domain.objects.ledger import ENFORCED, INTERCEPTED, NodeDevices
from deviceshare.domain.objects.shares import WHOLE, Holder
from deviceshare.domain.objects.usage import MINUTES, UNKNOWN, DeviceProcess, DeviceUsage, NodeUse, Usage
from deviceshare.domain.placement.device_states import DeviceState, Sharer, Use, device_states, held_by
from deviceshare.domain.placement.rooms import capacity, mib, units, used
from deviceshare.domain.wording import listed

# Turns for people: who has the turn of a group or of a device, and which programs wait, as the node's agent reported.
# An agent that stopped says nothing more, so each view has the time of its report, and says which of its pods are
# gone.


class TurnPlayer(ReportedProgram, frozen=True, rename="camel", omit_defaults=True):
    """A program that has the turn or waits for it. Times are RFC 3339, "" where they aren't known."""

    gone: bool = False
    """Whether there is no such pod any more: its node's agent hasn't reported that."""


class TurnView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The turns of one group, or of pods with shares of one device. Without a holder none is given at present."""

    group: str = ""
    resource: str = ""
    index: int | None = None
    """With the resource: the device, where it isn't a group's."""
    reported: str = ""
    """When the agent reported this, RFC 3339. While there are turns it does so every ten minutes at least."""
    holder: TurnPlayer | None = None
    waiting: list[TurnPlayer] = field(default_factory=list)
    """The next one first."""
    waiting_count: int = 0
    """Of all that wait; the list may have fewer."""

    @property
    def of(self) -> str:
        """Whose turns: the group's name, or the device as `nvidia.com/gpu 0`."""
        return self.group or f"{self.resource} {'' if self.index is None else self.index}".strip()


def turn_views(turns: ReportedTurns | None, pods: Container[str], group_uid: str = "") -> list[TurnView]:
    """A view of each reported queue, or of those of one group; `pods` are those that there are, as `namespace/name`."""
    if turns is None:
        return []

    def player(each: ReportedProgram) -> TurnPlayer:
        return TurnPlayer(**asdict(each), gone=each.pod not in pods)

    views = []
    for queue in turns.queues:
        if group_uid in ("", queue.uid):
            holder, waiting = player(queue.holder) if queue.holder else None, [*map(player, queue.waiting)]
            number = max(queue.waiting_count, len(waiting))
            views.append(TurnView(queue.group, queue.resource, queue.index, turns.time, holder, waiting, number))
    return views


def standings(turns: ReportedTurns | None, pod: str) -> list[str]:
    """What one pod has to do with turns: which it has, which it waits for and who has those."""
    views = turn_views(turns, (pod,))
    has = [f"has that of {_since(view.of, view.holder)}" for view in views if view.holder and view.holder.pod == pod]
    waits = [
        f"waits for that of {_since(view.of, each)}; {f'pod {view.holder.pod}' if view.holder else 'nobody'} has it"
        f"{f', and {ahead} wait in front' if ahead else ''}"
        for view in views
        for ahead, each in enumerate(view.waiting)
        if each.pod == pod
    ]
    return has + waits


def _since(what: str, player: TurnPlayer) -> str:
    return f"{what} since {player.since}" if player.since else what


# The use of the cluster's devices as the page shows it: each device now, and the last hour as far as it is drawn.

DETAILED: Final = 256
"""With more devices than this, only nodes get the last hour: their tiles are too small for lines."""


class UseView(Struct, frozen=True, rename="camel"):
    """The content of `/ui/use`."""

    seconds: float
    """After which to ask again."""
    agents: int
    """How many there are."""
    nodes: list[Raw]
    """A NodeUse of each whose agent has answered, by name. Encoded once, when it answered: thousands at each look
    would delay kube-scheduler."""


def view_of_use(report: NodeUse, *, detailed: bool) -> NodeUse:
    """What the page shows of a node; numbers that no driver reports are left out."""
    devices = []
    for each in report.devices:
        known = each.utilization is not None and 0 <= each.utilization <= 100
        hour = [min(max(percent, UNKNOWN), 100) for percent in each.hour[-MINUTES:]]
        devices.append(replace(each, utilization=each.utilization if known else None, hour=hour))
    shown = devices if detailed else [replace(each, hour=[]) for each in devices]
    return replace(report, devices=shown, hour=_mean(each.hour for each in devices))


def _mean(hours: Iterable[list[int]]) -> list[int]:
    """Minute by minute, the last ones of all beside each other."""
    padded = [[UNKNOWN] * (MINUTES - len(hour)) + hour for hour in hours]
    means = []
    for minute in zip(*padded, strict=True):
        known = [each for each in minute if each != UNKNOWN]
        means.append(round(sum(known) / len(known)) if known else UNKNOWN)
    return [*dropwhile(lambda each: each == UNKNOWN, means)]


# What one pod may see of its node: its devices, its processes on them, and the pods that share them with it.

NONE: Final = "-"
POD_COLUMNS: Final = ("DEVICE", "UTIL", "MEMORY (MiB)", "MODEL / PROCESS", "PID", "UUID / CONTAINER OR POD")
SHOWN_MATES: Final = 8

Cells = tuple[str, ...]


class MateUse(Struct, frozen=True, rename="camel"):
    """What another pod of the same holder uses of a device."""

    pod: str
    """`namespace/name`"""
    memory_mib: int
    processes: int


class PartView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a container has of a device, and what of it it uses."""

    container: str
    memory_mib: int | None = None
    """None where the device's memory isn't known."""
    percent: int = 0
    """Of the device."""
    used_mib: int = 0


class PodDeviceView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device of the pod, or of the container that `deviceshare smi` runs in."""

    resource: str
    index: int
    """The node's number for it; a container may count its own devices from 0."""
    uuid: str = ""
    model: str = ""
    memory_used_mib: int | None = None
    """By all pods that use the device, or, where the pod has a part of it, by this pod; None where it can't be read."""
    memory_total_mib: int | None = None
    """The device's, or the pod's part."""
    utilization: int | None = None
    """Percent of the driver's last sample period in which it was busy; None where the pod has a part of it."""
    part_mib: int | None = None
    """The pod's part of the memory, where it doesn't have the whole device."""
    part_percent: int | None = None
    parts: list[PartView] = field(default_factory=list)
    """What each container with a part has."""
    unhealthy: str = ""
    """What is wrong with it."""
    former: bool = False
    """Whether a rebind replaced it; the pod may use it until it ends."""
    processes: list[DeviceProcess] = field(default_factory=list)
    """The pod's own."""
    mates: list[MateUse] = field(default_factory=list)


class PodView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One pod at one time (RFC 3339)."""

    node: str
    time: str
    pod: str
    """`namespace/name`"""
    holder: str
    """Who has the devices: `group training`, or `pod default/notebook`."""
    devices: list[PodDeviceView] = field(default_factory=list)
    mates: list[str] = field(default_factory=list)
    """The other pods of the holder that run on the node."""
    limits: str = ""
    """Of a pod with shares: whether they are `enforced`, `intercepted` or `counted`."""


def pod_view(usage: Usage, ledger: NodeDevices, pod: Holder, holder: Holder, mates: Collection[str]) -> PodView:
    """What the pod may see of its node's usage: of what it has by the ledger, never by what the pod says.

    All pods of a group have all of its devices, but for those with shares: these have their shares and nothing else.
    """
    states, claim = device_states(ledger), ledger.claims.get(pod.uid)
    if claim and claim.shares:
        mine = ((state, each) for state in states for each in state.sharers if each.uid == pod.uid)
        devices = [_part(_whole(state, usage, pod, mates), each, state.memory_mib) for state, each in mine]
    else:
        devices = [_whole(state, usage, pod, mates) for state in held_by(states, holder.uid)]
        former = (state for state in states if state.use is Use.FORMER and state.uid == holder.uid)
        devices += (replace(_whole(state, usage, pod, mates), former=True) for state in former)
    limits = ledger.limits_of(pod.uid) if claim and claim.shares else ""
    return PodView(usage.node, usage.time, pod.name, str(holder), devices, sorted(mates), limits)


def _whole(state: DeviceState, usage: Usage, pod: Holder, mates: Collection[str]) -> PodDeviceView:
    wanted, part = state.device, state.part
    same = (each for each in usage.devices if (each.resource, each.index) == (wanted.resource, wanted.index))
    known = (each for each in same if wanted.uuid in ("", each.uuid))
    # Nothing of a device that is lost: another may have its number now.
    use = None if part and part.lost else next(known, None)
    processes = use.processes if use else []
    theirs = sorted((each for each in processes if each.pod in mates), key=lambda each: each.pod)
    uses = ((mate, list(mine)) for mate, mine in groupby(theirs, key=lambda each: each.pod))
    return PodDeviceView(
        wanted.resource,
        wanted.index,
        wanted.uuid or (use.uuid if use else ""),
        use.model if use else part.model if part else "",
        memory_used_mib=use.memory_used_mib if use else None,
        memory_total_mib=use.memory_total_mib if use else part.memory_mib if part else None,
        utilization=use.utilization if use else None,
        unhealthy=state.unhealthy,
        processes=[each for each in processes if each.pod == pod.name],
        mates=[MateUse(mate, sum(each.memory_mib for each in mine), len(mine)) for mate, mine in uses],
    )


def _part(whole: PodDeviceView, mine: Sharer, size: int) -> PodDeviceView:
    """The pod's part of a device with so many MiB. What the device's own figures show of others on it is left out."""
    taken = Counter[str]()
    for process in whole.processes:
        taken[process.container] += process.memory_mib
    parts = []
    for name in sorted({share.container for share in mine.shares}):
        own = [share for share in mine.shares if share.container == name]
        percent = WHOLE * sum(units(share, size) or 0 for share in own) // capacity(size)
        parts.append(PartView(name, limit_of_container(own, size) if size else None, percent, taken[name]))
    cost = used(mine.shares, size)
    memory_mib = mib(cost, size) if size else None
    return replace(
        whole,
        memory_used_mib=None if whole.memory_used_mib is None else taken.total(),
        memory_total_mib=memory_mib,
        utilization=None,
        part_mib=memory_mib,
        part_percent=WHOLE * cost // capacity(size),
        parts=parts,
        former=all(share.former for share in mine.shares),
    )


# The lines of tables. Cells are plain and may hold control characters of others' names: who prints them escapes them.


def numbers(device: DeviceUsage | PodDeviceView) -> tuple[str, str, str]:
    """Index, utilization and memory."""
    used = NONE if device.utilization is None else f"{device.utilization}%"
    memory = (NONE if each is None else str(each) for each in (device.memory_used_mib, device.memory_total_mib))
    return str(device.index), used, " / ".join(memory)


def processes(device: DeviceUsage | PodDeviceView) -> Iterator[tuple[str, DeviceProcess]]:
    """Processes with their memory, the largest first."""
    for process in sorted(device.processes, key=lambda each: (-each.memory_mib, each.pid)):
        # 0 means that the driver doesn't report this process's memory.
        yield str(process.memory_mib) if process.memory_mib else NONE, process


def pod_rows(devices: Iterable[PodDeviceView]) -> Iterator[Cells]:
    """The lines of one pod's devices, under POD_COLUMNS: its own processes, and the other pods' together."""
    for device in devices:
        yield *numbers(device), device.model, "", device.uuid
        for memory, process in processes(device):
            yield "", "", memory, process.name or NONE, str(process.pid), process.container
        for mate in device.mates:
            count = f"{mate.processes} process{'es' * (mate.processes > 1)}"
            yield "", "", str(mate.memory_mib) if mate.memory_mib else NONE, count, "", f"pod {mate.pod}"


_LIMITS: Final = {
    ENFORCED: "enforced: what it allocates beyond fails",
    INTERCEPTED: "intercepted: HAMi-core has what it allocates beyond fail, unless the program evades it",
}


def pod_lines(view: PodView) -> Iterator[str]:
    """The sentences above and below a pod's table."""
    alone = view.holder == f"pod {view.pod}"
    yield f"pod {view.pod}{'' if alone else f' of {view.holder}'} on node {view.node}, {view.time or 'not read yet'}"
    if view.mates:
        yield f"shares its devices with {listed([f'pod {each}' for each in view.mates], most=SHOWN_MATES)}"
    if view.limits:
        yield f"its limits of device memory are {_LIMITS.get(view.limits, 'counted, not enforced')}"
    for device in view.devices:
        name = f"{device.resource} {device.index}"
        if part := _amount(device.part_mib, device.part_percent):
            yield f"has {part} of {name}, of which it uses {sum(each.memory_mib for each in device.processes)} MiB"
        for each in device.parts if len(device.parts) > 1 else ():
            part = _amount(each.memory_mib, each.percent)
            yield f"container {each.container} has {part} of {name}, of which it uses {each.used_mib} MiB"
        if device.former:
            yield f"{name} was replaced: restart the containers of this pod, so that they get the others"
        if device.unhealthy:
            yield f"{name} is unhealthy: {device.unhealthy}"


def _amount(memory_mib: int | None, hundredths: int | None) -> str:
    percent = "" if hundredths is None else f"{hundredths} %"
    memory = "" if memory_mib is None else f"{memory_mib} MiB"
    return f"{memory} ({percent})" if memory and percent else memory or percent
