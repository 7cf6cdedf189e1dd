"""The picture of the cluster as text that fits on a screen, for 3 nodes and for 300."""

from collections import Counter
from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.markup import escape
from rich.text import Text

from deviceshare.cli.folding import SHOWN, counted, fold, more, natural
from deviceshare.cli.output import group_name, table
from deviceshare.cli.troubles import troubles
from deviceshare.domain.picture import (
    FORMER,
    FREE,
    LEFT,
    PLUGIN,
    RELEASING,
    SPLIT,
    WITHHELD,
    Count,
    DeviceView,
    NodeView,
    Picture,
    WaitingPod,
)

Section = list[RenderableType]

FULL, PARTLY, IDLE, TROUBLED = "full", "partly used", "free", "in trouble"
_URGENCY: Final = (TROUBLED, PARTLY, FULL, IDLE)
_PHASES: Final = {"Bound": "green", "Pending": "yellow", "Degraded": "red"}


def view(picture: Picture, *, now: datetime, details: bool, wide: bool) -> list[RenderableType]:
    """The sections, with an empty line between; `details` shows every device and folds nothing."""
    shown = None if details else SHOWN
    sections = [
        _devices(picture, wide=wide) if details else nodes(picture, shown, wide=wide),
        _groups(picture, shown, names=details or wide),
        _troubles(picture, shown),
        _waiting(picture, shown, now),
    ]
    parts: Section = []
    for section in sections:
        parts += [*section, ""] if section else []
    return [*parts, total(picture)]


def nodes(picture: Picture, shown: int | None, *, wide: bool) -> Section:
    """A line for each node and resource: who has which devices."""
    if not picture.nodes:
        return []
    every = sorted(picture.nodes, key=lambda node: natural(node.name))
    lines, rest = fold(every, shown, urgency=lambda node: _URGENCY.index(_state(node)))
    made = table("NODE", "RESOURCE", "USED", *(("MODEL", "MEMORY", "DRIVER") if wide else ()), "DEVICES")
    for node in lines:
        name = escape(node.name)
        for count in node.counts or [Count("")]:
            mine = [device for device in node.devices if device.resource == count.resource]
            hardware = (_models(mine), _memories(mine), escape(node.driver)) if wide else ()
            used = f"{count.allocated}/{count.total}" if count.resource else ""
            made.add_row(name, count.resource, used, *hardware, _who(node, count.resource, mine))
            name = ""
    states = Counter(_state(node) for node in rest)
    return [made, *more(rest, "node", ", ".join(f"{states[state]} {state}" for state in _URGENCY if states[state]))]


def _state(node: NodeView) -> str:
    if (
        node.obstacle
        or node.opaque
        or node.withheld
        or any(not device.sound or device.trespasses for device in node.devices)
    ):
        return TROUBLED
    if all(count.allocated == 0 for count in node.counts):
        return IDLE
    return FULL if all(count.free == 0 for count in node.counts) else PARTLY


def _who(node: NodeView, resource: str, devices: list[DeviceView]) -> str:
    """Who has which devices, as `notebooks 0,1  free 2,3`; a device with a `!` is broken or lost."""
    held: dict[str, list[str]] = {}
    for device in devices:
        held.setdefault(_holder(device), []).append(f"{device.index}" if device.sound else f"[red]{device.index}![/]")
    words = [f"{holder} {','.join(indices)}" for holder, indices in held.items()]
    if node.obstacle:
        words.append(f"[yellow]({escape(node.obstacle)})[/]")
    elif resource in node.opaque:
        words.append("[yellow](none given out: pods have some through the device plugin, unknown which)[/]")
    words += [f"[yellow]({escape(reason)})[/]" for reason in node.withheld if not node.counts]
    return "  ".join(words) or "[yellow]no devices[/]"


def _holder(device: DeviceView) -> str:
    if device.use == FREE:
        return "[dim]free[/]" if device.sound else "[red]unusable[/]"
    if device.use == SPLIT:
        return "[yellow]split by MIG[/]"
    if device.use == LEFT:
        return "[dim]device plugin's[/]" if device.sound else "[red]unusable[/]"
    if device.use == WITHHELD:
        return "[dim]withheld[/]" if device.sound else "[red]unusable[/]"
    if device.use == PLUGIN:
        return f"[yellow]pod {escape(device.pod)}[/]"
    mark = {RELEASING: " (releasing)", FORMER: " (former)"}.get(device.use, "")
    return f"{group_name(device.group)}{mark}"


def _devices(picture: Picture, *, wide: bool) -> Section:
    if not picture.nodes:
        return []
    made = table("NODE", "DEVICE", "USE", "BY", "HEALTH", *(("MODEL", "MEMORY", "UUID") if wide else ()))
    for node in sorted(picture.nodes, key=lambda node: natural(node.name)):
        name = escape(node.name)
        for device in node.devices:
            hardware = (escape(device.model), _memory(device), device.uuid) if wide else ()
            by = group_name(device.group) if device.group else escape(device.pod)
            use = f"{device.use}: {escape(device.withheld)}" if device.use == WITHHELD else device.use
            made.add_row(name, f"{device.resource} {device.index}", use, by, _health(device), *hardware)
            name = ""
        if node.obstacle or node.withheld or not node.devices:
            why = node.obstacle or "; ".join(node.withheld) or "no devices"
            made.add_row(name, "", "", "", f"[yellow]{escape(why)}[/]")
    return [made]


def _health(device: DeviceView) -> str:
    if device.unhealthy:
        return f"[red]{escape(device.unhealthy)}[/]"
    if device.lost:
        return "[red]lost[/]"
    return "[green]healthy[/]" if device.watched else "[dim]not watched[/]"


def _models(devices: list[DeviceView]) -> str:
    return escape(", ".join(sorted({device.model for device in devices if device.model})))


def _memories(devices: list[DeviceView]) -> str:
    return ", ".join(sorted({_memory(device) for device in devices if device.memory_mib}))


def _memory(device: DeviceView) -> str:
    return f"{device.memory_mib / 1024:.0f} GiB" if device.memory_mib else ""


def _groups(picture: Picture, shown: int | None, *, names: bool) -> Section:
    if not picture.groups:
        return []
    lines, rest = fold(picture.groups, shown, urgency=lambda group: (not group.ailment, not group.waiting))
    made = table("GROUP", "PHASE", "NODE", "DEVICES", "PODS")
    for group in lines:
        held = " ".join(f"{resource} {indices}" for resource, indices in sorted(group.devices.items()))
        wants = " ".join(f"{count} {resource}" for resource, count in sorted(group.wants.items()))
        pods = escape(", ".join(group.pods)) if names and group.pods else str(len(group.pods))
        made.add_row(
            group_name(group.name),
            f"[{_PHASES.get(group.phase, 'default')}]{group.phase}[/]",
            escape(group.node) or "[dim]-[/]",
            held or f"[dim]wants {wants}[/]",
            pods + (f" [yellow]+ {group.waiting} waiting[/]" if group.waiting else ""),
        )
    return [made, *more(rest, "group")]


def _troubles(picture: Picture, shown: int | None) -> Section:
    lines, rest = fold(troubles(picture), shown)
    if not lines:
        return []
    made = table("TROUBLE", "WHAT", "WHAT TO DO")
    for line in lines:
        made.add_row(f"[red]{escape(line.where)}[/]", escape(line.what), escape(line.cure))
    return [made, *more(rest, "trouble")]


def _waiting(picture: Picture, shown: int | None, now: datetime) -> Section:
    alike: dict[tuple[str, str], list[WaitingPod]] = {}
    for pod in picture.waiting:
        alike.setdefault((pod.group, pod.reason), []).append(pod)
    lines, rest = fold(alike.items(), shown)
    if not lines:
        return []
    made = table("WAITING", "GROUP", "FOR", "REASON")
    for (group, reason), pods in lines:
        others = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        first = f"[yellow]{escape(pods[0].pod)}{others}[/]"
        made.add_row(first, group_name(group), _age(pods[0].since, now), escape(reason))
    return [made, *more(rest, "line", counted(sum(len(pods) for _, pods in rest), "pod"))]


def total(picture: Picture) -> RenderableType:
    """How much of each resource is given out in the whole cluster."""
    if not picture.nodes:
        return Text("No node is shared yet. Share one: kubectl label node NODE deviceshare.io/mode=shared")
    on = f"on {counted(len(picture.nodes), 'node')}"
    lines = [
        f"{count.resource}: {count.allocated}/{count.total} allocated, {count.free} free"
        + (f", {count.unhealthy} unhealthy" if count.unhealthy else "")
        + f", {on}"
        for count in picture.total
    ]
    return Text("\n".join(lines or [f"No devices {on}"]), style="bold")


def _age(since: str, now: datetime) -> str:
    """How long ago an RFC 3339 time was, in one unit, as kubectl says it."""
    try:
        seconds = int((now - datetime.fromisoformat(since)).total_seconds())
    except ValueError:
        return ""
    unit, size = next(
        ((unit, size) for unit, size in (("d", 86400), ("h", 3600), ("m", 60)) if seconds >= 2 * size), ("s", 1)
    )
    return f"{max(seconds, 0) // size}{unit}"
