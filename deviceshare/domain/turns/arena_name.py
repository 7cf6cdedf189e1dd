"""Which arena a pod is in: who must not run side by side, by the ledger alone."""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import NodeDevices

_GROUP: Final = "group/"
_DEVICE: Final = "device/"


class ArenaName(Struct, frozen=True):
    """`key` is unique on the node, also among recreated groups; `name` is for people."""

    key: str
    name: str
    device: Device | None = None
    """Of pods with shares of it."""

    @property
    def of_strangers(self) -> bool:
        """Whether its pods have nothing in common but a device."""
        return self.key.startswith(_DEVICE)

    @property
    def group_uid(self) -> str:
        """The group's UID; "" where the pods have shares of a device."""
        return self.key.removeprefix(_GROUP) if self.key.startswith(_GROUP) else ""

    def may_be(self, other: "ArenaName") -> bool:
        """Whether both are one arena, or of one device whose UUID isn't known to one of them.

        A device is known by its number alone until its node's agent has reported it, and turns outlast that.
        """
        if self.device is None or other.device is None or (self.device.uuid and other.device.uuid):
            return self.key == other.key
        (one, _), (another, _) = self.device.identity, other.device.identity
        return one == another and self.device.index == other.device.index


def arena_of(ledger: NodeDevices, holder_uid: str) -> ArenaName | None:
    """The arena of the pods of this holder, by the node's claims; None without a claim, or where there is no one arena.

    The pods of a group take turns with each other: they have the same devices, which nobody else has. Pods with shares
    take turns with the others on their device. One with parts of several devices would have to wait for several turns
    at once, and two such pods could wait for each other. After a rebind its programs may be on either device.
    """
    claim = ledger.claims.get(holder_uid)
    if claim is None:
        return None
    if not claim.shares:
        return ArenaName(f"{_GROUP}{holder_uid}", claim.holder_name)
    devices = {_known(ledger, device) for device in (*claim.devices, *claim.replaced)}
    if len(devices) > 1:
        return None
    [device] = devices
    variable, number = device.identity
    return ArenaName(f"{_DEVICE}{variable}/{number}", str(device), device)


def _known(ledger: NodeDevices, device: Device) -> Device:
    """The device in the node's present numbering, with its UUID also where the ledger was just recreated."""
    present = ledger.present(device)
    return replace(present, uuid=present.uuid or device.uuid)
