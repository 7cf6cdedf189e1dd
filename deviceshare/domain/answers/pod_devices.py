"""The devices of one pod: whole ones, those of its group."""

from typing import NamedTuple

from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement.device_state import DeviceState, Use
from deviceshare.domain.placement.device_states import device_states, held_by


class PodDevice(NamedTuple):
    """A device that a pod has, or a part of one."""

    state: DeviceState
    memory_mib: int | None = None
    """The pod's part of its memory; None where it has all of it, or where its part is known in percent only."""
    percent: int | None = None
    """Likewise, in hundredths of the device."""
    former: bool = False
    """Whether a rebind replaced it; the pod's containers may use it until they end."""


def pod_devices(ledger: NodeDevices, holder_uid: str, pod_uid: str) -> list[PodDevice]:
    """What the ledger says that this pod of this holder has, sorted; never what the pod says.

    All pods of a group have all of its devices, so `pod_uid` decides nothing yet.
    """
    del pod_uid
    states = device_states(ledger)
    held = [PodDevice(state) for state in held_by(states, holder_uid)]
    former = [PodDevice(state, former=True) for state in states if state.use is Use.FORMER and state.uid == holder_uid]
    return held + former
