"""Verdicts on devices: whether a request could have the device, or a part of it, why not, and what would free it."""

from collections.abc import Iterable

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import PodPart, named, parts
from deviceshare.domain.objects.shares import ShareRequest
from deviceshare.domain.placement.device_state import SERVES_GROUPS, SERVES_SHARES, DeviceState, Health, Use
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.rooms import Room, units, used
from deviceshare.domain.placement.sharing import MEMORY_UNKNOWN


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


def as_a_whole(fleet: Fleet, node: str, state: DeviceState) -> DeviceVerdict:
    """For a group, which gets whole devices."""
    found = [*_in_the_way(fleet, node, state), *_reserved(node, state, SERVES_SHARES)]
    return _verdict(state, found)


def in_part(fleet: Fleet, node: str, state: DeviceState, share: ShareRequest, room: Room | None) -> DeviceVerdict:
    """For a share; `room` is what is left of the device for it, None where nothing of it is for shares now."""
    if room is None or state.serves == SERVES_GROUPS:
        return _verdict(state, [*_in_the_way(fleet, node, state), *_reserved(node, state, SERVES_GROUPS)])
    if any(room.takes(need) for need in share.needs):
        return _verdict(state, (), str(room))
    if not room.size and all(need.memory_mib for need in share.needs):
        return _verdict(state, [("its memory is not known", MEMORY_UNKNOWN.cure)], str(room))
    least = min((cost for need in share.needs if (cost := units(need, room.size)) is not None), default=0)
    if least > room.capacity:
        smallest = min(share.needs, key=lambda need: units(need, room.size) or 0)
        return _verdict(
            state, [(f"smaller than {smallest}", "ask for less, or add a node with larger devices")], str(room)
        )
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


def _in_the_way(fleet: Fleet, node: str, state: DeviceState) -> Iterable[tuple[str, str]]:
    """Each reason why nobody else gets the device now, with what would change that."""
    group, users = state.group, _users(fleet, state.uid)
    soon = f"{users} ends" if users else "it is released soon"
    if state.use is Use.HELD:
        delete = f"kubectl delete sdg {group}"
        yield f"held by group {group}", f"{users} ends, then {delete}" if users else f"no pod uses it: {delete}"
    elif state.use is Use.SHARED:
        pods = sorted({each.claim.pod for each in state.sharers})
        yield f"{named(pods)} {'has a part' if len(pods) == 1 else 'have parts'}", _all_end(pods)
    elif state.use is Use.RELEASING:
        yield f"still used by the deleted group {group}", soon
    elif state.use is Use.FORMER:
        yield f"may still be used by pods of group {group}", soon
    repaired = f"repair it, then deviceshare recover {node} {state.device.index}"
    cures = {
        Use.PLUGIN: f"pod {state.pod} ends",
        Use.CLAIMED: f"ResourceClaim {state.resource_claim} is deallocated, as when its last pod ends",
        Use.SPLIT: "unite it on its node with nvidia-smi -mig 0, if nobody has a part of it",
        Use.WITHHELD: f"change the annotation {contract.INVENTORY_ANNOTATION} of node {node}",
        Use.LEFT: "let placeholder pods have more devices (agent.placeholders of the chart)",
        Health.UNHEALTHY: repaired,
        Health.LOST: repaired if state.unhealthy else "repair the node",
    }
    for kind, reason in state.barriers.items():
        yield reason, cures[kind]


def _reserved(node: str, state: DeviceState, others: str) -> Iterable[tuple[str, str]]:
    """That the node's owner reserved it for `others`."""
    key = contract.SHARE_DEVICES if others == SERVES_SHARES else contract.GROUP_DEVICES
    if state.serves == others:
        yield f"for {others} only", f"change the annotation {key} of node {node}"


def _all_end(pods: list[str]) -> str:
    return f"{named(pods)} ends" if len(pods) == 1 else f"all of its {len(pods)} pods end"


def _users(fleet: Fleet, uid: str) -> str:
    """The pods that use what the claim of this UID holds, in a few words."""
    pods = sorted(fleet.pods(uid))
    if len(pods) > 1:
        return f"the last of its {len(pods)} pods"
    return f"pod {pods[0]}" if pods else ""
