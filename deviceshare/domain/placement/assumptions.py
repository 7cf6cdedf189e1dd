"""Assumptions: what binds under way take in memory, before their claims are written."""

from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.objects.devices import Device, Devices, Identity, identities
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.rooms import Room, used


class Assumption(NamedTuple):
    """Devices, or shares of devices, that a bind under way takes on a node."""

    node: str
    devices: Devices = ()
    shares: tuple[Share, ...] = ()
    within: str = ""
    """The UID of the group of whose devices the shares are parts."""

    @property
    def touched(self) -> set[Identity]:
        """The devices that nobody else gets whole."""
        return identities((*self.devices, *(share.device for share in self.shares)))


def touched(assumed: Iterable[Assumption]) -> set[Identity]:
    """The devices that nobody else gets whole."""
    return {device for each in assumed for device in each.touched}


def left_of(room: Room, device: Device, assumed: Iterable[Assumption], within: str) -> Room:
    """The room without what binds under way take of the device; `within` as in `Assumption`."""
    for each in assumed:
        if not within and device.identity in identities(each.devices):
            return room._replace(free=0)
        shares = [share for share in each.shares if share.device.identity == device.identity]
        if each.within == within and shares:
            room = room.less(used(shares, room.size))
    return room
