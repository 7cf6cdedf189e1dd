"""What `inspect` shows: the picture of the cluster as tables that fit on a screen, for 3 nodes and for 300."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

import click
from msgspec.structs import replace

from deviceshare.cli import output as out
from deviceshare.cli.cluster import ANSWER_SECONDS
from deviceshare.cli.output import Cell, Part, Row, group_name, joined, styled, table
from deviceshare.cli.parameters import did_you_mean
from deviceshare.cli.snapshot import ClusterSnapshot, mirrored, seen
from deviceshare.cli.turns_table import reported_turns_table
from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import PodPart, gib, named, overuse_text
from deviceshare.domain.answers.picture import Count, DeviceView, GroupView, NodeView, Picture, draw
from deviceshare.domain.answers.waiting import WaitingPod
from deviceshare.domain.device_health.violations import OVERUSE_CURE
from deviceshare.domain.objects.shares import WHOLE
from deviceshare.domain.placement.device_states import Use
from deviceshare.domain.wording import counted, listed, quoted
from deviceshare.kube.api import Api

FULL, PARTLY, IDLE, TROUBLED = "full", "partly used", "free", "in trouble"
_URGENCY: Final = (TROUBLED, PARTLY, FULL, IDLE)
_PHASES: Final = {"Bound": "green", "Pending": "yellow", "Degraded": "red", "Terminating": "yellow"}
_NOBODYS: Final = {
    Use.FREE: ("free", "dim"),
    Use.SHARED: ("shared", "cyan"),
    Use.UNUSABLE: ("unusable", "red"),
    Use.SPLIT: ("split by MIG", "yellow"),
    Use.LEFT: ("device plugin's", "dim"),
    Use.WITHHELD: ("withheld", "dim"),
}

_REASONS: Final = 2
"""Of pods of one workload that are said: by far most have one."""
PAUSE_SECONDS = 0.5
"""Between two pictures: changes come in bursts, and people don't read faster."""
TICK_SECONDS = 10.0
"""A terminal is redrawn after this long without a change, since it shows for how long pods wait."""
LOST = "The cluster does not answer; this is its last known state. Retrying."


def picture(seen: ClusterSnapshot, node: str) -> Picture:
    """The picture of the cluster, or of the node of this name."""
    whole = draw(seen.fleet, seen.groups.values(), seen.pods.values(), partly_seen=not seen.visibility.whole)
    whole = replace(whole, unseen=list(seen.unseen))
    one = whole.of(node) if node else whole
    if one is None:
        near = did_you_mean(node, (each.name for each in whole.nodes))
        share = f"or share it with kubectl label node {node} {contract.MODE_LABEL}={contract.MODE_SHARED}{near}"
        raise click.ClickException(f"{node} is not a shared node; see them with deviceshare inspect, {share}")
    return one


async def follow(api: Api, namespace: str, node: str, *, details: bool, wide: bool) -> None:
    """Draws at each change until cancelled: on a terminal over what was there, elsewhere below it. Pods are those of
    `namespace` where the whole cluster's can't be listed. Once read, it is retried, and the drawing says so.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        mirrors = await mirrored(api, namespace)
    out.note(each.text for each in seen(mirrors).unseen)
    changed = asyncio.Event()
    for mirror in mirrors.by_name.values():
        mirror.subscribe(lambda _: changed.set())
    tasks = [asyncio.create_task(mirror.run(), name=name) for name, mirror in mirrors.by_name.items()]
    looked_at, last = out.FilteringConsole().is_terminal, None
    try:
        with out.screen() as put:
            while True:
                now = picture(seen(mirrors), node)
                if looked_at or now != last:
                    lost = [styled(LOST, "red")] if looked_at and not mirrors.synced else []
                    put([*view(now, now=datetime.now(UTC), details=details, wide=wide), *lost])
                last = now
                await asyncio.sleep(PAUSE_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_SECONDS if looked_at else None):
                        await changed.wait()
                changed.clear()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def view(picture: Picture, *, now: datetime, details: bool, wide: bool) -> list[Part]:
    """The sections, with an empty line between; `details` shows every device and folds nothing."""
    shown = None if details else out.SHOWN
    waits = waiting(picture.waiting, shown, now)
    if shown and (why := next((f"pod {pod.pod}" for pod in picture.waiting if pod.why.details), "")):
        waits.append(styled(f"Why on each node: deviceshare explain {why}", "dim"))
    needs = [(styled(where, "red"), what, cure) for where, what, cure in troubles(picture)]
    sections = [
        _devices(picture, wide=wide) if details else nodes(picture, shown, wide=wide),
        _groups(picture, shown, now, names=details or wide),
        reported_turns_table(picture.nodes, shown, now),
        out.folded(needs, lambda rows: [table(("TROUBLE", "WHAT", "WHAT TO DO"), rows)], shown, "trouble"),
        waits,
    ]
    return [*out.spaced(sections), *total(picture)]


def nodes(picture: Picture, shown: int | None, *, wide: bool) -> list[Part]:
    """A line for each node and resource: who has which devices."""

    def rows(node: NodeView) -> Iterator[Row]:
        name = node.name
        for count in node.counts or [Count("")]:
            mine = [device for device in node.devices if device.resource == count.resource]
            models, sizes = (", ".join(sorted({*filter(None, map(of, mine))})) for of in (attrgetter("model"), _memory))
            hardware = (models, sizes, node.driver) if wide else ()
            used = f"{count.allocated}/{count.total}" if count.resource else ""
            yield name, count.resource, used, *hardware, _who(node, count.resource, mine, first=bool(name))
            name = ""

    def states(rest: list[NodeView]) -> str:
        counts = Counter(map(_state, rest))
        return ", ".join(f"{counts[state]} {state}" for state in _URGENCY if counts[state])

    columns = ("NODE", "RESOURCE", "USED", *(("MODEL", "MEMORY", "DRIVER") if wide else ()), "DEVICES")
    lines, by_name = out.tabled(columns, rows), sorted(picture.nodes, key=lambda node: out.natural(node.name))
    return out.folded(by_name, lines, shown, "node", urgency=lambda node: _URGENCY.index(_state(node)), summary=states)


def _state(node: NodeView) -> str:
    amiss = any(not device.health.sound or device.trespasses or device.overuses for device in node.devices)
    if node.obstacle or node.opaque or node.withheld or amiss:
        return TROUBLED
    if not any(count.allocated for count in node.counts):
        return IDLE
    has_room = any(device.use is Use.SHARED and device.allocated_percent < WHOLE for device in node.devices)
    return PARTLY if has_room or any(count.free for count in node.counts) else FULL


def _who(node: NodeView, resource: str, devices: list[DeviceView], *, first: bool) -> Cell:
    """As `notebooks 0,1  shared 2 (11/16 GiB, 68%, 3 pods)  free 3`; a device with a `!` is unhealthy or lost."""
    held: defaultdict[tuple[str, str], list[DeviceView]] = defaultdict(list)
    for device in devices:
        held[device.group, str(_holder(device))].append(device)
    words = []
    for mine in held.values():
        numbers = (str(each.index) if each.health.sound else styled(f"{each.index}!", "red") for each in mine)
        words.append(joined(_holder(mine[0]), " ", joined(*numbers, between=","), _taken(mine)))
    if node.obstacle:
        words.append(styled(f"({node.obstacle})", "yellow"))
    elif resource in node.opaque:
        words.append(styled("(not allocated: pods have some through the device plugin, unknown which)", "yellow"))
    words += [styled(f"({reason})", "yellow") for reason in node.withheld if first and reason != node.obstacle]
    return joined(*words, between="  ") if words else styled("no devices", "yellow")


def _taken(devices: list[DeviceView]) -> str:
    """How much of shared devices is allocated, and to how many pods; of a group's, how many have parts of them."""
    pods = len({part.pod for device in devices for part in device.parts})
    amount, parts = (f"{_shared(devices)}, ", "") if devices[0].use is Use.SHARED else ("", " with parts")
    return f" ({amount}{counted(pods, 'pod')}{parts})" if pods else ""


def _shared(devices: list[DeviceView]) -> str:
    """`11/16 GiB, 68%`; without the amount where the memory of any is unknown."""
    allocated, memory = sum(each.allocated_mib for each in devices), sum(each.memory_mib for each in devices)
    amount = f"{gib(allocated)}/{gib(memory)} GiB, " if all(each.memory_mib for each in devices) else ""
    return f"{amount}{int(sum(each.allocated_percent for each in devices) / len(devices))}%"


def _holder(device: DeviceView) -> Cell:
    if device.group:
        mark = "" if device.use is Use.HELD else f" ({device.use})"
        return joined(group_name(device.group), mark)
    if device.use is Use.CLAIMED:
        return styled(f"claim {device.resource_claim}", "yellow")
    words, style = _NOBODYS.get(device.use, (f"pod {device.pod}", "yellow"))
    return styled(f"{words}{_served(device)}", style)


def _served(device: DeviceView) -> str:
    return f" for {device.serves}" if device.serves and device.use is Use.FREE else ""


def _devices(picture: Picture, *, wide: bool) -> list[Part]:
    def rows(node: NodeView) -> Iterator[Row]:
        name, withheld = node.name, set[str]()
        for device in node.devices:
            hardware = (device.model, _memory(device), device.uuid) if wide else ()
            pods = counted(len(device.parts), "pod") if device.parts else ""
            by = group_name(device.group) if device.group else device.pod or device.resource_claim or pods
            use = f"{device.use}{_served(device)}"
            if device.use is Use.WITHHELD and device.withheld not in withheld:  # said once for all devices of the node
                use = f"{device.use}: {device.withheld}"
            elif device.use is Use.SHARED:
                use = f"{device.use} ({_shared([device])})"
            yield name, f"{device.resource} {device.index}", use, by, _health(device), *hardware
            name = ""
            withheld.add(device.withheld)
        if node.obstacle or node.withheld or not node.devices:
            yield name, "", "", "", styled(node.obstacle or "; ".join(node.withheld) or "no devices", "yellow")

    def shares(node: NodeView) -> Iterator[Row]:
        for device in node.devices:
            for part in device.parts:
                yield part.pod, _part(part, device), f"{node.name} {device.resource} {device.index}"

    columns = ("NODE", "DEVICE", "USE", "BY", "HEALTH", *(("MODEL", "MEMORY", "UUID") if wide else ()))
    nodes = sorted(picture.nodes, key=lambda node: out.natural(node.name))
    parts = [row for node in nodes for row in shares(node)]
    section = out.folded(nodes, out.tabled(columns, rows), None, "node")
    return [*section, "", table(("SHARE", "PART", "OF"), parts)] if parts else section


def _part(part: PodPart, device: DeviceView) -> Cell:
    """`8 GiB`, with its containers where several have some, and what is used where that is more."""
    by_container = ", ".join(f"{name} {asked}" for name, asked in part.containers.items())
    former = ", until it ends: it was moved" if part.former else ""
    containers = f" ({by_container})" if len(part.containers) > 1 else ""
    asked = f"{part.asked}{containers}{f', {part.limits}' if part.limits else ''}{former}"
    over = [each for each in device.overuses if each.pod == part.pod]
    uses = "".join(f", {each.container or 'the pod'} uses {gib(each.used_mib)} GiB" for each in over)
    return joined(asked, styled(uses, "red"))


def _health(device: DeviceView) -> Cell:
    if not device.health.sound:
        return styled(": ".join(filter(None, (device.health, device.unhealthy))), "red")
    return styled("healthy", "green") if device.watched else styled("not watched", "dim")


def _memory(device: DeviceView) -> str:
    return f"{device.memory_mib / 1024:.0f} GiB" if device.memory_mib else ""


def _groups(picture: Picture, shown: int | None, now: datetime, *, names: bool) -> list[Part]:
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
                styled(f", idle {idle}" if (idle := out.age(group.idle_since, now)) else "", "yellow"),
            ),
        )

    lines = out.tabled(("GROUP", "PHASE", "NODE", "DEVICES", "PODS"), rows)
    return out.folded(picture.groups, lines, shown, "group", urgency=lambda each: (not each.ailment, not each.waiting))


def troubles(picture: Picture) -> Iterator[tuple[str, str, str]]:
    """Where something needs a person, what it is, and the cure: unreadable objects, unhealthy devices, trespasses,
    exceeded shares, then what else keeps groups from working."""
    devices = [
        (f"{node.name} {device.resource} {device.index}", node, device)
        for node in picture.nodes
        for device in node.devices
    ]
    broken = [(where, node, device) for where, node, device in devices if not device.health.sound]
    for lost in picture.unreadable:
        yield f"{lost.kind} {lost.name}", f"can't be read: {lost.fault}", lost.cure
    for where, node, device in broken:
        yield where, *_broken(node, device)
    for where, node, device in devices:
        for each in device.trespasses:
            whose = f"of pod {each.pod}" if each.pod else "outside of any pod"
            cure = f"kubectl delete pod -n {each.pod.replace('/', ' ')}" if each.pod else f"end it on {node.name}"
            pods = f"; {named([part.pod for part in device.parts])} share it" if device.use is Use.SHARED else ""
            whom = f"; group {device.group} holds it" if device.group else pods
            yield where, f"process {quoted(each.process)} {whose} uses it{whom}", cure
    for where, _, device in devices:
        whom = f"; group {device.group} holds the device" if device.group else ""
        for over in device.overuses:
            since = f" (since {over.since})" if over.since else ""
            yield where, f"pod {over.pod}: {overuse_text(over)}{since}{whom}", OVERUSE_CURE
    explained = {device.group for _, _, device in broken}
    for group in picture.groups:
        if group.ailment and group.name not in explained:
            yield f"group {group.name}", group.ailment, f"deviceshare explain group {group.name}"


def _broken(node: NodeView, device: DeviceView) -> tuple[str, str]:
    """What is wrong with an unhealthy or lost device, and the cure."""
    what = device.unhealthy or "the node does not have it any more"
    lost = ", and the driver does not see it" if device.lost and device.unhealthy else ""
    since = f" (since {device.since})" if device.since else ""
    recover = f"deviceshare recover {node.name} {device.index}"
    repair = f"repair it, then {recover}" if device.unhealthy else "repair the node"
    if device.use is Use.SHARED:
        pods = [part.pod for part in device.parts if not part.former]
        which = pods[0] if len(pods) == 1 else f"NAMESPACE/NAME for {named(pods)}"
        repair = f"deviceshare rebind pod {which}; {repair}" if pods else repair
    return what + lost + since, f"deviceshare rebind {device.group}; {repair}" if device.use is Use.HELD else repair


def waiting(waits: Iterable[WaitingPod], shown: int | None, now: datetime) -> list[Part]:
    """Waiting pods, those of one workload together, and their reasons; in full where `shown` is None."""
    alike: defaultdict[tuple[str, str, str], list[WaitingPod]] = defaultdict(list)
    for pod in waits:
        alike[pod.group, pod.share, pod.workload or pod.reason].append(pod)

    def parts(lines: list[list[WaitingPod]]) -> list[Part]:
        made: list[Part] = [styled("WAITING", "bold")]
        for pods in lines:
            first, whose = pods[0], f"{len(pods)} pods of {pods[0].workload}"
            who = whose if first.workload and len(pods) > 1 else listed((pod.pod for pod in pods), most=1)
            of = joined(" of group ", group_name(first.group)) if first.group else ""
            since = out.age(first.since, now)
            made.append(joined(styled(who, "yellow"), of, f", for {since}" if since else ""))
            said = list(dict.fromkeys(pod.why.headline for pod in pods))[:_REASONS]
            particulars = first.why.details if shown is None else ()
            made.append(out.indented((each,) for each in (*said, *particulars)))
        return made

    return out.folded(alike.values(), parts, shown, "line", summary=lambda rest: counted(sum(map(len, rest)), "pod"))


def total(picture: Picture) -> list[Cell]:
    """How much of each resource is allocated in the whole cluster."""
    if not picture.nodes:
        return ["No node is shared yet. Share one: kubectl label node NODE deviceshare.io/mode=shared"]
    on = f"on {counted(len(picture.nodes), 'node')}"
    lines = []
    for count in picture.total:
        line = f"{count.resource}: {count.allocated}/{count.total} allocated, {count.free} free"
        line += f", {count.for_shares} free for shares" if count.for_shares else ""
        line += f", {count.unhealthy} unhealthy" if count.unhealthy else ""
        line += f", {on}"
        if count.shared and count.memory_mib:
            percent = WHOLE * count.allocated_mib // count.memory_mib
            line += f"; {gib(count.allocated_mib)}/{gib(count.memory_mib)} GiB allocated ({percent}%)"
        lines.append(styled(line, "bold"))
    return [*lines] if lines else [styled(f"No devices {on}", "bold")]
