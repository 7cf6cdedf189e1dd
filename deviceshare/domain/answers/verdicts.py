"""Verdicts on nodes: whether a group could live there, why not, and what would free each device.

The verdicts are those of `Fleet.filter`, which answers kube-scheduler; the devices are those that the bind would take.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.answers.waiting import unusable
from deviceshare.domain.objects.devices import selected
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement import allocation, topology
from deviceshare.domain.placement.device_state import DeviceState, Health, Use
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import invalid


class DeviceVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device that the group could use. No `reason`: it is free."""

    resource: str
    index: int
    reason: str = ""
    cure: str = ""
    """What would free it."""


class NodeVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One node. No `reason`: the group's next pod may go there."""

    node: str
    fits: bool
    reason: str = ""
    why: Reason | None = None
    """The same for programs."""
    score: int | None = None
    """Among the nodes that fit, 0 to 10; kube-scheduler adds its own."""
    would_get: dict[str, str] = field(default_factory=dict)
    """As `status.selectedDevices`."""
    why_these: str = ""
    lacks: int = 0
    """How many devices more it would need."""
    devices: list[DeviceVerdict] = field(default_factory=list)


class Candidates(NamedTuple):
    """The nodes that the group's next pod may go to, with their scores; and why not, for each of the others."""

    scores: dict[str, int]
    reasons: dict[str, Reason]


def candidates(fleet: Fleet, group: Group) -> Candidates:
    """What filter and prioritize answer over all nodes, leaving out nodes that kube-scheduler would not use itself."""
    names = fleet.names()
    if fault := invalid(group):
        return Candidates({}, dict.fromkeys(names, fault))
    filtered = fleet.filter(group.request, names)
    reasons = filtered.reasons | {name: obstacle for name in filtered.fits if (obstacle := unusable(fleet, name))}
    return Candidates(fleet.prioritize(group.request, [name for name in filtered.fits if name not in reasons]), reasons)


def verdicts(fleet: Fleet, group: Group) -> list[NodeVerdict]:
    """Every shared node, the best first, then those that lack the fewest devices, then the others."""
    scores, reasons = candidates(fleet, group)
    found = [_verdict(fleet, group, name, reasons.get(name), scores) for name in fleet.names()]
    return sorted(found, key=_rank)


def _rank(verdict: NodeVerdict) -> tuple[bool, int, bool, int, str]:
    otherwise = not verdict.why or verdict.why.kind is not ReasonKind.TOO_FULL
    return (not verdict.fits, -(verdict.score or 0), otherwise, verdict.lacks, verdict.node)


def _verdict(fleet: Fleet, group: Group, name: str, reason: Reason | None, scores: Mapping[str, int]) -> NodeVerdict:
    wants, available = group.spec.resources, fleet.available(name)
    free = Counter(device.resource for device in available.devices)
    chosen = () if reason or group.node else allocation.choose(group.request, available) or ()
    return NodeVerdict(
        node=name,
        fits=not reason,
        reason=str(reason or ""),
        why=reason,
        score=scores.get(name),
        would_get=selected(chosen),
        why_these=topology.reason(chosen, available.links),
        lacks=sum(max(count - free[resource], 0) for resource, count in wants.items()),
        devices=[_device(fleet, name, state) for state in fleet.states(name) if state.device.resource in wants],
    )


def _device(fleet: Fleet, node: str, state: DeviceState) -> DeviceVerdict:
    found = list(_in_the_way(fleet, node, state))
    reason, cure = ("; ".join(texts) for texts in zip(*found, strict=True)) if found else ("", "")
    return DeviceVerdict(state.device.resource, state.device.index, reason, cure)


def _in_the_way(fleet: Fleet, node: str, state: DeviceState) -> Iterable[tuple[str, str]]:
    """Each reason why no group gets the device now, with what would change that."""
    group, users = state.group, _users(fleet, state.uid)
    soon = f"{users} ends" if users else "it is released soon"
    if state.use is Use.HELD:
        delete = f"kubectl delete sdg {group}"
        yield f"held by group {group}", f"{users} ends, then {delete}" if users else f"no pod uses it: {delete}"
    elif state.use is Use.RELEASING:
        yield f"still used by the deleted group {group}", soon
    elif state.use is Use.FORMER:
        yield f"may still be used by pods of group {group}", soon
    repaired = f"repair it, then deviceshare recover {node} {state.device.index}"
    cures = {
        Use.PLUGIN: f"pod {state.pod} ends",
        Use.SPLIT: "unite it on its node with nvidia-smi -mig 0, if nobody has a part of it",
        Use.WITHHELD: f"change the annotation {contract.INVENTORY_ANNOTATION} of node {node}",
        Use.LEFT: "let placeholder pods have more devices (agent.placeholders of the chart)",
        Health.UNHEALTHY: repaired,
        Health.LOST: repaired if state.unhealthy else "repair the node",
    }
    for kind, reason in state.barriers.items():
        yield reason, cures[kind]


def _users(fleet: Fleet, uid: str) -> str:
    """The pods that use what the claim of this UID holds, in a few words."""
    pods = sorted(fleet.pods(uid))
    if len(pods) > 1:
        return f"the last of its {len(pods)} pods"
    return f"pod {pods[0]}" if pods else ""
