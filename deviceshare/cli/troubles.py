"""Troubles in the picture of the cluster, each with its cure."""

from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.answers.device_parts import named, overuse_text
from deviceshare.domain.answers.picture import DeviceView, NodeView, Picture
from deviceshare.domain.device_health.overuse import OVERUSE_CURE
from deviceshare.domain.objects.printable import quoted
from deviceshare.domain.placement.device_state import Use


class Trouble(NamedTuple):
    """One thing that needs a person."""

    where: str
    what: str
    cure: str


def troubles(picture: Picture) -> list[Trouble]:
    """Unreadable objects, unhealthy devices, trespasses, exceeded shares, then what else keeps groups from working."""
    devices = [(node, device) for node in picture.nodes for device in node.devices]
    explained = {device.group for _, device in devices if not device.health.sound}
    return [
        *(
            Trouble(f"{each.kind} {each.name}", f"can't be read: {each.fault}", each.cure)
            for each in picture.unreadable
        ),
        *(_broken(node, device) for node, device in devices if not device.health.sound),
        *(trouble for node, device in devices for trouble in _trespasses(node, device)),
        *(trouble for node, device in devices for trouble in _overuses(node, device)),
        *(
            Trouble(f"group {group.name}", group.ailment, f"deviceshare explain group {group.name}")
            for group in picture.groups
            if group.ailment and group.name not in explained
        ),
    ]


def _broken(node: NodeView, device: DeviceView) -> Trouble:
    what = device.unhealthy or "the node does not have it any more"
    lost = ", and the driver does not see it" if device.lost and device.unhealthy else ""
    since = f" (since {device.since})" if device.since else ""
    recover = f"deviceshare recover {node.name} {device.index}"
    repair = f"repair it, then {recover}" if device.unhealthy else "repair the node"
    if device.use is Use.SHARED:
        pods = [part.pod for part in device.parts if not part.former]
        which = pods[0] if len(pods) == 1 else f"NAMESPACE/NAME for {named(pods)}"
        repair = f"deviceshare rebind pod {which}; {repair}" if pods else repair
    cure = f"deviceshare rebind {device.group}; {repair}" if device.use is Use.HELD else repair
    return Trouble(_name(node, device), what + lost + since, cure)


def _trespasses(node: NodeView, device: DeviceView) -> Iterable[Trouble]:
    for each in device.trespasses:
        whose = f"of pod {each.pod}" if each.pod else "outside of any pod"
        cure = f"kubectl delete pod -n {each.pod.replace('/', ' ')}" if each.pod else f"end it on {node.name}"
        pods = f"; {named([part.pod for part in device.parts])} share it" if device.use is Use.SHARED else ""
        whom = f"; group {device.group} holds it" if device.group else pods
        yield Trouble(_name(node, device), f"process {quoted(each.process)} {whose} uses it{whom}", cure)


def _overuses(node: NodeView, device: DeviceView) -> Iterable[Trouble]:
    for each in device.overuses:
        since = f" (since {each.since})" if each.since else ""
        whose = f"; group {device.group} holds the device" if device.group else ""
        yield Trouble(_name(node, device), f"pod {each.pod}: {overuse_text(each)}{since}{whose}", OVERUSE_CURE)


def _name(node: NodeView, device: DeviceView) -> str:
    return f"{node.name} {device.resource} {device.index}"
