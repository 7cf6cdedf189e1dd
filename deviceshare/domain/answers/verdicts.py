"""Verdicts on nodes and their devices: whether a request could be met there, why not, and what would free each device.

The verdicts are those of `Fleet.filter`, which answers kube-scheduler; the devices are those that the bind would take.
"""

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import ContainerPart, PodPart, container_parts, named, parts
from deviceshare.domain.answers.waiting import unusable
from deviceshare.domain.objects.devices import selected
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import Request, Share, ShareRequest
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.device_states import SERVES_GROUPS, SERVES_SHARES, DeviceState, Health, Use, held_by
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.rooms import Room, units, used


class DeviceVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device that the holder could use. No `reason`: it is free, or has room for a share."""

    resource: str
    index: int
    reason: str = ""
    cure: str = ""
    """What would free it."""
    free: str = ""
    """How much of it is left for a share: `3 of 16 GiB`, `40 of 100%`."""
    parts: list[PodPart] = field(default_factory=list)
    """Who has the rest."""


class NodeVerdict(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One node. No `reason`: the holder's next pod may go there."""

    node: str
    fits: bool
    reason: str = ""
    why: Reason | None = None
    """The reason for programs."""
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


def candidates(
    fleet: Fleet, request: Request, fault: Reason | None = None, pod: Pod | None = None
) -> tuple[dict[str, int], dict[str, Reason]]:
    """The nodes that the holder's next pod may go to, with their scores; and why not, for each of the others.

    This is what filter and prioritize answer over all nodes, without those that kube-scheduler would not use itself.

    With a `fault` of the request no node fits; with a `pod` none that it can't be scheduled to.
    """
    names = fleet.names()
    if fault:
        return {}, dict.fromkeys(names, fault)
    filtered = fleet.filter(request, names)
    reasons = filtered.reasons | {name: obstacle for name in filtered.fits if (obstacle := unusable(fleet, name, pod))}
    return fleet.prioritize(request, [name for name in filtered.fits if name not in reasons]), reasons


def chosen_shares(fleet: Fleet, request: Request, node: str) -> tuple[Share, ...]:
    """The parts that a pod would get of the node's devices by a bind now; empty where it has no room for all."""
    within = request.within
    opaque = frozenset() if within else fleet.opaque(node)
    rooms = [(device, room) for device, room in fleet.rooms(node, within) if device.resource not in opaque]
    return allocation.choose_shares(request.share, request.strategy, rooms) or ()


def verdicts(fleet: Fleet, request: Request, fault: Reason | None = None, pod: Pod | None = None) -> list[NodeVerdict]:
    """Every shared node, the best first, then those that lack the fewest devices, then the others.

    Of nodes that only lack room for a share of nobody's devices, those with the largest room on one device are first.
    """
    scores, reasons = candidates(fleet, request, fault, pod)
    of = _of_share if request.share and (fleet.home(request) or not request.resources) else _of_devices
    found = []
    for name in fleet.names():
        why = reasons.get(name)
        found.append(of(fleet, request, NodeVerdict(name, not why, str(why or ""), why, scores.get(name))))

    def rank(verdict: NodeVerdict) -> tuple[bool, int, bool, int, int, str]:
        rooms = () if request.resources else fleet.rooms(verdict.node)
        room = max((room.free for _, room in rooms), default=0)
        otherwise = not verdict.why or verdict.why.kind is not ReasonKind.TOO_FULL
        return not verdict.fits, -(verdict.score or 0), otherwise, verdict.lacks, -room, verdict.node

    return sorted(found, key=rank)


def _of_devices(fleet: Fleet, request: Request, verdict: NodeVerdict) -> NodeVerdict:
    """For a group, which gets whole devices."""
    wants, name, available = request.resources, verdict.node, fleet.available(verdict.node)
    free = Counter(device.resource for device in available.devices)
    chosen = () if request.node or not verdict.fits else allocation.choose(request, available) or ()
    return replace(
        verdict,
        would_get=selected(chosen),
        why_these=allocation.topology_reason(chosen, available.links),
        lacks=sum(max(count - free[resource], 0) for resource, count in wants.items()),
        devices=[
            _verdict(state, _in_the_way(fleet, name, state, SERVES_SHARES))
            for state in fleet.states(name)
            if state.device.resource in wants
        ],
    )


def _of_share(fleet: Fleet, request: Request, verdict: NodeVerdict) -> NodeVerdict:
    name, within, wants = verdict.node, request.within, request.share
    states = fleet.states(name)
    mine = held_by(states, within) if within else [each for each in states if each.device.resource in wants.of]
    rooms = dict(fleet.rooms(name, within))
    shares = chosen_shares(fleet, request, name) if verdict.fits else ()
    spread = request.strategy == allocation.SPREAD
    which = "the most room is left" if spread else "the least room is left that suffices"
    return replace(
        verdict,
        would_get=selected({share.device for share in shares}),
        shares=container_parts(shares),
        why_these=f"where {which}" if shares else "",
        devices=[_in_part(fleet, name, state, wants, rooms.get(state.device)) for state in mine],
    )


def _in_part(fleet: Fleet, node: str, state: DeviceState, share: ShareRequest, room: Room | None) -> DeviceVerdict:
    """`room` is what is left of the device for the share, None where nothing of it is for shares now."""
    if room is None or state.serves == SERVES_GROUPS:
        return _verdict(state, _in_the_way(fleet, node, state, SERVES_GROUPS))
    if any(room.takes(need) for need in share.needs):
        return _verdict(state, (), str(room))
    if not room.size and all(need.memory_mib for need in share.needs):
        return _verdict(state, [("its memory is not known", allocation.MEMORY_UNKNOWN.cure)], str(room))
    least = min((cost for need in share.needs if (cost := units(need, room.size)) is not None), default=0)
    if least > room.capacity:
        smallest = min(share.needs, key=lambda need: units(need, room.size) or 0)
        larger = f"smaller than {smallest}", "ask for less, or add a node with larger devices"
        return _verdict(state, [larger], str(room))
    mine = [each for each in state.sharers if each.claim.within == (state.uid if state.uid in state.holders else "")]
    ends = _enough({each.claim.pod: used(each.shares, room.size) for each in mine}, least - room.free)
    cure = f"{named(ends)} {'ends' if len(ends) == 1 else 'end'}" if ends else "it is released soon"
    return _verdict(state, [(f"only {room} free", cure)], str(room))


def _enough(taken: dict[str, int], lacking: int) -> list[str]:
    """The pods whose end would free so many units: the one with the least that suffices, else the largest ones."""
    suffice = [pod for pod, cost in taken.items() if cost >= lacking]
    if suffice:
        return [min(suffice, key=lambda pod: (taken[pod], pod))]
    ends: list[str] = []
    for pod in sorted(taken, key=lambda pod: (-taken[pod], pod)):
        if lacking <= 0:
            break
        ends.append(pod)
        lacking -= taken[pod]
    return ends


def _verdict(state: DeviceState, found: Iterable[tuple[str, str]], free: str = "") -> DeviceVerdict:
    texts = list(found)
    reason, cure = ("; ".join(each) for each in zip(*texts, strict=True)) if texts else ("", "")
    return DeviceVerdict(state.device.resource, state.device.index, reason, cure, free, parts(state))


def _in_the_way(fleet: Fleet, node: str, state: DeviceState, others: str) -> Iterable[tuple[str, str]]:
    """Each reason why nobody else gets the device now, with what would change that.

    `others` get it where the node's owner reserved it for them.
    """
    group, pods = state.group, sorted(fleet.pods(state.uid))
    users = f"the last of its {len(pods)} pods ends" if len(pods) > 1 else f"pod {pods[0]} ends" if pods else ""
    soon = users or "it is released soon"
    if state.use is Use.HELD:
        delete = f"kubectl delete sdg {group}"
        yield f"held by group {group}", f"{users}, then {delete}" if users else f"no pod uses it, so {delete}"
    elif state.use is Use.SHARED:
        pods = sorted({each.claim.pod for each in state.sharers})
        all_end = f"{named(pods)} ends" if len(pods) == 1 else f"all of its {len(pods)} pods end"
        yield f"{named(pods)} {'has a part' if len(pods) == 1 else 'have parts'}", all_end
    elif state.use is Use.RELEASING:
        yield f"still used by the deleted group {group}", soon
    elif state.use is Use.FORMER:
        yield f"may still be used by pods of group {group}", soon
    doubt = state.doubt.cure if state.doubt else ""
    repaired = f"repair it, then deviceshare recover {node} {state.device.index}"
    cures = {
        Use.PLUGIN: f"pod {state.pod} ends",
        Use.CLAIMED: f"ResourceClaim {state.resource_claim} is deallocated, as when its last pod ends",
        Use.SPLIT: "unite it on its node with nvidia-smi -mig 0, if nobody has a part of it",
        Use.WITHHELD: f"change the annotation {contract.INVENTORY_ANNOTATION} of node {node}",
        Use.LEFT: "let placeholder pods have more devices (agent.placeholders of the chart)",
        Use.UNUSABLE: "delete one of them with its pods, and recreate it" if state.claimed_twice else doubt,
        Health.UNHEALTHY: repaired,
        Health.LOST: repaired if state.unhealthy else "repair the node",
    }
    for kind, reason in state.barriers.items():
        yield reason, cures[kind]
    if state.serves == others:
        key = contract.SHARE_DEVICES if others == SERVES_SHARES else contract.GROUP_DEVICES
        yield f"for {others} only", f"change the annotation {key} of node {node}"
