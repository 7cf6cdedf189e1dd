"""Lines about a node that is too full for a request: what of it is free, and who has the rest."""

from collections.abc import Iterable
from typing import Final

from deviceshare.domain.answers.device_parts import named, sharing
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement.device_state import SERVES_GROUPS, SERVES_SHARES, DeviceState, Use
from deviceshare.domain.placement.device_states import held_by, numbers
from deviceshare.domain.placement.fleet import Fleet


def free_number(fleet: Fleet, request: Request, name: str) -> int:
    """How many of the wanted devices are free, or of a share, the most units that are free of one device."""
    if request.resources:
        return sum(device.resource in request.resources for device in fleet.free(name))
    return max((room.free for device, room in fleet.rooms(name) if device.resource in request.share.of), default=0)


def free_of(fleet: Fleet, request: Request, name: str) -> str:
    """How many whole devices are free: `1 of 4 free (team-a holds 0,1; pod ns/web shares 2)`."""
    resources = sorted(request.resources)
    if len(resources) == 1:
        return _devices_line(fleet, name, resources[0])
    return ", ".join(f"{resource} {_devices_line(fleet, name, resource)}" for resource in resources)


def room_of(fleet: Fleet, request: Request, name: str) -> str:
    """How much of a device is free for shares: `at most 3 of 16 GiB of one free (pods ns/a and ns/b share 0,1)`.

    Of nobody's devices, or of the devices of the group of which the request's pod asks for a part.
    """
    within = request.within
    rooms = [room for device, room in fleet.rooms(name, within) if device.resource in request.share.of]
    largest = max(rooms, key=lambda room: room.free, default=None)
    free = f"at most {largest} of one free" if largest else "none for shares"
    if within:
        pods = sorted({each.claim.pod for state in held_by(fleet.states(name), within) for each in state.sharers})
        return f"{free} ({named(pods)} {_have(pods)} parts)" if pods else free
    states = [state for state in fleet.states(name) if state.device.resource in request.share.of]
    return _with_holders(free, states, SERVES_GROUPS)


def _have(pods: list[str]) -> str:
    return "has" if len(pods) == 1 else "have"


def _devices_line(fleet: Fleet, name: str, resource: str) -> str:
    states = [state for state in fleet.states(name) if state.device.resource == resource]
    total = sum(state.offered for state in states)
    free = sum(device.resource == resource for device in fleet.free(name))
    return _with_holders(f"{free} of {total} free", states, SERVES_SHARES)


def _with_holders(free: str, states: list[DeviceState], others: str) -> str:
    """`others` get the devices that the node's owner reserved for them."""
    unclaimed = (state for state in states if not state.claim)
    reserved = [state for state in states if state.serves == others and state.use is Use.FREE]
    why = "; ".join([*_holding(states), *_reserved(reserved, others), *_barred(unclaimed)])
    return f"{free}{f' ({why})' if why else ''}"


def _holding(states: Iterable[DeviceState]) -> Iterable[str]:
    states = list(states)
    mine: dict[tuple[str, str, str], list[DeviceState]] = {}
    for state in states:
        if state.claim:
            mine.setdefault((state.group, state.uid, _VERBS[state.use]), []).append(state)
    for (group, _, verb), theirs in sorted(mine.items()):
        barred = ", ".join(_barred(theirs))
        yield f"{group} {verb} {numbers(theirs)}" + (f", of which {barred}" if barred else "")
    if pods := sharing(states):
        shared = numbers(state for state in states if state.use is Use.SHARED)
        yield f"{named(pods)} share{'s' * (len(pods) == 1)} {shared}"


def _reserved(states: list[DeviceState], others: str) -> list[str]:
    return [f"{numbers(states)} {'is' if len(states) == 1 else 'are'} for {others} only"] if states else []


def _barred(states: Iterable[DeviceState]) -> Iterable[str]:
    """The devices that nobody gets, whoever has them."""
    for state in states:
        if barriers := state.barriers:
            yield f"{state.device.index} is {' and '.join(barriers.values())}"


_VERBS: Final = {Use.HELD: "holds", Use.RELEASING: "still uses", Use.FORMER: "may still use"}
