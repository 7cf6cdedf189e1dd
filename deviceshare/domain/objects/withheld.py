"""Devices of a node that groups don't get, in `NodeDevices.status.withheld`, each with the reason and the cure."""

from msgspec import Struct, field

from deviceshare.domain.objects.devices import Device


class Withheld(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Devices of one resource that the node has, or may have, and doesn't offer. Who holds them already keeps them."""

    resource: str
    reason: str
    cure: str = ""
    """What to do about it where it isn't meant so."""
    devices: list[Device] = field(default_factory=list)
    """Which; empty where nobody knows."""

    @property
    def text(self) -> str:
        return f"{self.reason}; {self.cure}" if self.cure else self.reason

    @property
    def named(self) -> str:
        """`nvidia.com/gpu 0,1`"""
        return " ".join([self.resource, *filter(None, [",".join(str(device.index) for device in self.devices)])])

    def __str__(self) -> str:
        return f"{self.named}: {self.text}"
