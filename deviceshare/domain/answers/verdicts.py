"""Verdicts on nodes: whether a request could be met there, why not, and what would free each device.

The verdicts are those of `Fleet.filter`, which answers kube-scheduler; the devices are those that the bind would take.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field

from deviceshare.domain.answers.device_parts import ContainerPart, container_parts
from deviceshare.domain.answers.device_verdicts import DeviceVerdict, as_a_whole, in_part
from deviceshare.domain.answers.waiting import unusable
from deviceshare.domain.objects.devices import selected
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement import allocation, sharing, topology
from deviceshare.domain.placement.device_states import held_by
from deviceshare.domain.placement.fleet import Fleet


class NodeVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One node. No `reason`: the holder's next pod may go there."""

    node: str
    fits: bool
    reason: str = ""
    why: Reason | None = None
    """The same for programs."""
    score: int | None = None
    """Among the nodes that fit, 0 to 10; kube-scheduler adds its own."""
    would_get: dict[str, str] = field(default_factory=dict)
    """As `status.selectedDevices`."""
    shares: list[ContainerPart] = field(default_factory=list)
    """The parts of these devices that the pod's containers would get."""
    why_these: str = ""
    lacks: int = 0
    """How many devices more it would need."""
    devices: list[DeviceVerdict] = field(default_factory=list)


class Candidates(NamedTuple):
    """The nodes that the holder's next pod may go to, with their scores; and why not, for each of the others."""

    scores: dict[str, int]
    reasons: dict[str, Reason]


def candidates(fleet: Fleet, request: Request, fault: Reason | None = None) -> Candidates:
    """What filter and prioritize answer over all nodes, leaving out nodes that kube-scheduler would not use itself.

    With a `fault` of the request no node fits.
    """
    names = fleet.names()
    if fault:
        return Candidates({}, dict.fromkeys(names, fault))
    filtered = fleet.filter(request, names)
    reasons = filtered.reasons | {name: obstacle for name in filtered.fits if (obstacle := unusable(fleet, name))}
    return Candidates(fleet.prioritize(request, [name for name in filtered.fits if name not in reasons]), reasons)


def chosen_shares(fleet: Fleet, request: Request, node: str) -> tuple[Share, ...]:
    """The parts that a pod would get of the node's devices by a bind now; empty where it has no room for all."""
    within = request.within
    opaque = frozenset() if within else fleet.opaque(node)
    rooms = [(device, room) for device, room in fleet.rooms(node, within) if device.resource not in opaque]
    return sharing.choose_shares(request.share, request.strategy, rooms) or ()


def verdicts(fleet: Fleet, request: Request, fault: Reason | None = None) -> list[NodeVerdict]:
    """Every shared node, the best first, then those that lack the fewest devices, then the others.

    Of nodes that only lack room for a share, those with the largest room on one device are first.
    """
    scores, reasons = candidates(fleet, request, fault)
    found = [_verdict(fleet, request, name, reasons.get(name), scores) for name in fleet.names()]
    return sorted(found, key=lambda each: _rank(each, _room(fleet, request, each.node)))


def _rank(verdict: NodeVerdict, room: int) -> tuple[bool, int, bool, int, int, str]:
    otherwise = not verdict.why or verdict.why.kind is not ReasonKind.TOO_FULL
    return (not verdict.fits, -(verdict.score or 0), otherwise, verdict.lacks, -room, verdict.node)


def _room(fleet: Fleet, request: Request, name: str) -> int:
    """The most units that are free of one device, where a share of nobody's devices is requested."""
    return 0 if request.resources else max((room.free for _, room in fleet.rooms(name)), default=0)


def _verdict(
    fleet: Fleet, request: Request, name: str, reason: Reason | None, scores: Mapping[str, int]
) -> NodeVerdict:
    home = fleet.home(request)
    if request.share and (home or not request.resources):
        return _on_share(fleet, request, name, reason, scores)
    wants, available = request.resources, fleet.available(name)
    free = Counter(device.resource for device in available.devices)
    chosen = () if reason or request.node else allocation.choose(request, available) or ()
    return NodeVerdict(
        node=name,
        fits=not reason,
        reason=str(reason or ""),
        why=reason,
        score=scores.get(name),
        would_get=selected(chosen),
        why_these=topology.reason(chosen, available.links),
        lacks=sum(max(count - free[resource], 0) for resource, count in wants.items()),
        devices=[as_a_whole(fleet, name, state) for state in fleet.states(name) if state.device.resource in wants],
    )


def _on_share(
    fleet: Fleet, request: Request, name: str, reason: Reason | None, scores: Mapping[str, int]
) -> NodeVerdict:
    within = request.within
    states = fleet.states(name)
    mine = held_by(states, within) if within else [each for each in states if each.device.resource in request.share.of]
    rooms = dict(fleet.rooms(name, within))
    shares = () if reason else chosen_shares(fleet, request, name)
    return NodeVerdict(
        node=name,
        fits=not reason,
        reason=str(reason or ""),
        why=reason,
        score=scores.get(name),
        would_get=selected({share.device for share in shares}),
        shares=container_parts(shares),
        why_these=_WHY_THESE.get(request.strategy, _WHY_THESE["binpack"]) if shares else "",
        devices=[in_part(fleet, name, state, request.share, rooms.get(state.device)) for state in mine],
    )


_WHY_THESE: Final = {
    "binpack": "where the least room is left that suffices",
    sharing.SPREAD: "where the most room is left",
}
