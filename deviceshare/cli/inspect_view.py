"""The picture of the cluster as tables that fit on a screen, for 3 nodes and for 300."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from deviceshare.cli.ages import age
from deviceshare.cli.folding import SHOWN, folded, natural
from deviceshare.cli.output import Cell, Part, Row, group_name, joined, spaced, styled
from deviceshare.cli.troubles import Trouble, troubles
from deviceshare.cli.turns_table import reported_turns_table
from deviceshare.domain.answers.device_parts import PodPart, gib
from deviceshare.domain.answers.picture import Count, DeviceView, GroupView, NodeView, Picture
from deviceshare.domain.answers.waiting import WaitingPod
from deviceshare.domain.objects.shares import WHOLE
from deviceshare.domain.placement.device_state import Use
from deviceshare.domain.wording import counted, listed

Section = list[Part]

FULL, PARTLY, IDLE, TROUBLED = "full", "partly used", "free", "in trouble"
_URGENCY: Final = (TROUBLED, PARTLY, FULL, IDLE)
_PHASES: Final = {"Bound": "green", "Pending": "yellow", "Degraded": "red", "Terminating": "yellow"}


def view(picture: Picture, *, now: datetime, details: bool, wide: bool) -> list[Part]:
    """The sections, with an empty line between; `details` shows every device and folds nothing."""
    shown = None if details else SHOWN
    sections = [
        _devices(picture, wide=wide) if details else nodes(picture, shown, wide=wide),
        _groups(picture, shown, now, names=details or wide),
        reported_turns_table(picture.nodes, shown, now),
        _troubles(picture, shown),
        _waiting(picture, shown, now),
    ]
    return [*spaced(sections), *total(picture)]


def nodes(picture: Picture, shown: int | None, *, wide: bool) -> Section:
    """A line for each node and resource: who has which devices."""

    def rows(node: NodeView) -> Iterator[Row]:
        name = node.name
        for count in node.counts or [Count("")]:
            mine = [device for device in node.devices if device.resource == count.resource]
            hardware = (
                (_distinct(each.model for each in mine), _distinct(map(_memory, mine)), node.driver) if wide else ()
            )
            used = f"{count.allocated}/{count.total}" if count.resource else ""
            yield name, count.resource, used, *hardware, _who(node, count.resource, mine)
            name = ""

    def states(rest: list[NodeView]) -> str:
        counts = Counter(map(_state, rest))
        return ", ".join(f"{counts[state]} {state}" for state in _URGENCY if counts[state])

    columns = ("NODE", "RESOURCE", "USED", *(("MODEL", "MEMORY", "DRIVER") if wide else ()), "DEVICES")
    by_name = sorted(picture.nodes, key=lambda node: natural(node.name))
    return folded(
        columns, by_name, rows, shown, "node", urgency=lambda node: _URGENCY.index(_state(node)), summary=states
    )


def _state(node: NodeView) -> str:
    if (
        node.obstacle
        or node.opaque
        or node.withheld
        or any(not device.health.sound or device.trespasses or device.overuses for device in node.devices)
    ):
        return TROUBLED
    if all(count.allocated == 0 for count in node.counts):
        return IDLE
    has_room = any(device.use is Use.SHARED and device.allocated_percent < WHOLE for device in node.devices)
    return FULL if all(count.free == 0 for count in node.counts) and not has_room else PARTLY


def _who(node: NodeView, resource: str, devices: list[DeviceView]) -> Cell:
    """Who has which devices, as `notebooks 0,1  shared 2 (11/16 GiB, 68%, 3 pods)  free 3`.

    A device with a `!` is unhealthy or lost.
    """
    held: dict[tuple[str, str], list[DeviceView]] = {}
    for device in devices:
        held.setdefault((device.group, str(_holder(device))), []).append(device)
    words = [
        joined(_holder(mine[0]), " ", joined(*map(_index, mine), between=","), _taken(mine)) for mine in held.values()
    ]
    if node.obstacle:
        words.append(styled(f"({node.obstacle})", "yellow"))
    elif resource in node.opaque:
        words.append(styled("(not allocated: pods have some through the device plugin, unknown which)", "yellow"))
    words += [styled(f"({reason})", "yellow") for reason in node.withheld if not node.counts]
    return joined(*words, between="  ") if words else styled("no devices", "yellow")


def _taken(devices: list[DeviceView]) -> str:
    """How much of shared devices is allocated, and to how many pods; of a group's, how many have parts of them."""
    pods = {part.pod for device in devices for part in device.parts}
    if not pods:
        return ""
    if devices[0].use is not Use.SHARED:
        return f" ({counted(len(pods), 'pod')} with parts)"
    percent = sum(device.allocated_percent for device in devices) / len(devices)
    memory = sum(device.memory_mib for device in devices) if all(device.memory_mib for device in devices) else 0
    allocated = sum(device.allocated_mib for device in devices)
    amount = f"{gib(allocated)}/{gib(memory)} GiB, " if memory else ""
    return f" ({amount}{int(percent)}%, {counted(len(pods), 'pod')})"


def _index(device: DeviceView) -> Cell:
    return str(device.index) if device.health.sound else styled(f"{device.index}!", "red")


def _holder(device: DeviceView) -> Cell:
    if device.group:
        mark = "" if device.use is Use.HELD else f" ({device.use})"
        return joined(group_name(device.group), mark)
    if device.use is Use.CLAIMED:
        return styled(f"claim {device.resource_claim}", "yellow")
    words, style = _NOBODYS.get(device.use, (f"pod {device.pod}", "yellow"))
    return styled(f"{words} for {device.serves}" if device.serves and device.use is Use.FREE else words, style)


_NOBODYS: Final = {
    Use.FREE: ("free", "dim"),
    Use.SHARED: ("shared", "cyan"),
    Use.UNUSABLE: ("unusable", "red"),
    Use.SPLIT: ("split by MIG", "yellow"),
    Use.LEFT: ("device plugin's", "dim"),
    Use.WITHHELD: ("withheld", "dim"),
}


def _devices(picture: Picture, *, wide: bool) -> Section:
    def rows(node: NodeView) -> Iterator[Row]:
        name = node.name
        for device in node.devices:
            hardware = (device.model, _memory(device), device.uuid) if wide else ()
            others = device.pod or device.resource_claim or _counted_parts(device)
            by = group_name(device.group) if device.group else others
            yield name, f"{device.resource} {device.index}", _use(device), by, _health(device), *hardware
            name = ""
            for part in device.parts:
                yield "", "", "", _part(part, device), *("" for _ in (0, *hardware))
        if node.obstacle or node.withheld or not node.devices:
            yield name, "", "", "", styled(node.obstacle or "; ".join(node.withheld) or "no devices", "yellow")

    columns = ("NODE", "DEVICE", "USE", "BY", "HEALTH", *(("MODEL", "MEMORY", "UUID") if wide else ()))
    return folded(columns, sorted(picture.nodes, key=lambda node: natural(node.name)), rows, None, "node")


def _use(device: DeviceView) -> str:
    if device.use is Use.WITHHELD:
        return f"{device.use}: {device.withheld}"
    if device.use is Use.SHARED:
        amount = f"{gib(device.allocated_mib)}/{gib(device.memory_mib)} GiB, " if device.memory_mib else ""
        return f"{device.use} ({amount}{int(device.allocated_percent)}%)"
    return f"{device.use} for {device.serves}" if device.serves and device.use is Use.FREE else device.use


def _counted_parts(device: DeviceView) -> str:
    """How many pods have parts of it."""
    return counted(len(device.parts), "pod") if device.parts else ""


def _part(part: PodPart, device: DeviceView) -> Cell:
    """`team-a/web: 8 GiB`, with its containers where several have some, and what is used where that is more."""
    by_container = ", ".join(f"{name} {asked}" for name, asked in part.containers.items())
    former = ", until it ends: it was moved" if part.former else ""
    asked = f"  {part.pod}: {part.asked}{f' ({by_container})' if len(part.containers) > 1 else ''}{former}"
    over = [each for each in device.overuses if each.pod == part.pod]
    uses = "".join(f", {each.container or 'the pod'} uses {gib(each.used_mib)} GiB" for each in over)
    return joined(asked, styled(uses, "red"))


def _health(device: DeviceView) -> Cell:
    if not device.health.sound:
        return styled(": ".join(filter(None, (device.health, device.unhealthy))), "red")
    return styled("healthy", "green") if device.watched else styled("not watched", "dim")


def _distinct(texts: Iterable[str]) -> str:
    return ", ".join(sorted({*filter(None, texts)}))


def _memory(device: DeviceView) -> str:
    return f"{device.memory_mib / 1024:.0f} GiB" if device.memory_mib else ""


def _groups(picture: Picture, shown: int | None, now: datetime, *, names: bool) -> Section:
    def rows(group: GroupView) -> Iterator[Row]:
        held = " ".join(f"{resource} {indices}" for resource, indices in sorted(group.devices.items()))
        wants = " ".join(f"{count} {resource}" for resource, count in sorted(group.wants.items()))
        yield (
            group_name(group.name),
            styled(group.phase, _PHASES.get(group.phase, "")),
            group.node or styled("-", "dim"),
            held or styled(f"wants {wants}", "dim"),
            joined(
                ", ".join(group.pods) if names and group.pods else str(len(group.pods)),
                styled(f" + {group.waiting} waiting" if group.waiting else "", "yellow"),
                styled(f" + {group.gated} gated" if group.gated else "", "dim"),
                styled(f", idle {idle}" if (idle := age(group.idle_since, now)) else "", "yellow"),
            ),
        )

    columns = ("GROUP", "PHASE", "NODE", "DEVICES", "PODS")
    return folded(
        columns, picture.groups, rows, shown, "group", urgency=lambda group: (not group.ailment, not group.waiting)
    )


def _troubles(picture: Picture, shown: int | None) -> Section:
    def rows(line: Trouble) -> Iterator[Row]:
        yield styled(line.where, "red"), line.what, line.cure

    return folded(("TROUBLE", "WHAT", "WHAT TO DO"), troubles(picture), rows, shown, "trouble")


def _waiting(picture: Picture, shown: int | None, now: datetime) -> Section:
    alike: dict[tuple[str, str], list[WaitingPod]] = {}
    for pod in picture.waiting:
        alike.setdefault((pod.group, pod.reason), []).append(pod)

    def rows(line: tuple[tuple[str, str], list[WaitingPod]]) -> Iterator[Row]:
        (group, reason), pods = line
        first = styled(listed((pod.pod for pod in pods), most=1), "yellow")
        yield first, group_name(group) if group else styled("-", "dim"), age(pods[0].since, now), reason

    columns = ("WAITING", "GROUP", "FOR", "REASON")
    return folded(
        columns, alike.items(), rows, shown, "line", summary=lambda rest: counted(sum(len(p) for _, p in rest), "pod")
    )


def total(picture: Picture) -> list[Cell]:
    """How much of each resource is allocated in the whole cluster."""
    if not picture.nodes:
        return ["No node is shared yet. Share one: kubectl label node NODE deviceshare.io/mode=shared"]
    on = f"on {counted(len(picture.nodes), 'node')}"
    lines = [
        f"{count.resource}: {count.allocated}/{count.total} allocated, {count.free} free"
        + (f", {count.for_shares} free for shares" if count.for_shares else "")
        + (f", {count.unhealthy} unhealthy" if count.unhealthy else "")
        + f", {on}{_amount(count)}"
        for count in picture.total
    ]
    return [styled(line, "bold") for line in lines or [f"No devices {on}"]]


def _amount(count: Count) -> str:
    """How much memory is allocated, where pods have parts of devices."""
    if not count.shared or not count.memory_mib:
        return ""
    percent = WHOLE * count.allocated_mib // count.memory_mib
    return f"; {gib(count.allocated_mib)}/{gib(count.memory_mib)} GiB allocated ({percent}%)"
