"""The devices of one pod: whole ones, those of its group, or the parts of devices that its containers have."""

from typing import NamedTuple

from deviceshare.domain.device_health.overuse import limit_of_container
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.shares import WHOLE
from deviceshare.domain.placement.device_state import DeviceState, Sharer, Use
from deviceshare.domain.placement.device_states import device_states, held_by
from deviceshare.domain.placement.rooms import capacity, mib, units, used


class PartOfContainer(NamedTuple):
    """What a container has of a device."""

    container: str
    memory_mib: int | None
    """None where the device's memory isn't known."""
    percent: int
    """In hundredths of the device, rounded down."""


class PodDevice(NamedTuple):
    """A device that a pod has, or a part of one."""

    state: DeviceState
    memory_mib: int | None = None
    """The pod's part of its memory; None where it has all of it, or where its part is known in percent only."""
    percent: int | None = None
    """Likewise, in hundredths of the device."""
    former: bool = False
    """Whether a rebind replaced it; the pod's containers may use it until they end."""
    parts: tuple[PartOfContainer, ...] = ()
    """What each of its containers has of it, by name; empty where all have the whole device."""


def pod_devices(ledger: NodeDevices, holder_uid: str, pod_uid: str) -> list[PodDevice]:
    """What the ledger says that this pod of this holder has, sorted; never what the pod says.

    All pods of a group have all of its devices, but for those with shares: these have their shares and nothing else.
    """
    states = device_states(ledger)
    claim = ledger.claims.get(pod_uid)
    if claim and claim.shares:
        return [_shared(state, each) for state in states for each in state.sharers if each.uid == pod_uid]
    held = [PodDevice(state) for state in held_by(states, holder_uid)]
    former = [PodDevice(state, former=True) for state in states if state.use is Use.FORMER and state.uid == holder_uid]
    return held + former


def _shared(state: DeviceState, mine: Sharer) -> PodDevice:
    size, shares = state.memory_mib, mine.shares
    parts = []
    for name in sorted({share.container for share in shares}):
        own = [share for share in shares if share.container == name]
        cost = sum(units(share, size) or 0 for share in own)
        parts.append(PartOfContainer(name, limit_of_container(own, size) if size else None, _percent(cost, size)))
    cost = used(shares, size)
    former = all(share.former for share in shares)
    return PodDevice(state, mib(cost, size) if size else None, _percent(cost, size), former, tuple(parts))


def _percent(cost: int, size: int) -> int:
    return WHOLE * cost // capacity(size)
