"""Devices of a node that are not for groups, in `NodeDevices.status.withheld`, each with its reason and cure."""

from msgspec import Struct, field

from deviceshare.domain.objects.devices import Device


class Withheld(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """Devices of one resource that the node has, or may have, but not for groups. Present holders keep them."""

    resource: str
    reason: str
    cure: str = ""
    """What to do where it isn't intended."""
    devices: list[Device] = field(default_factory=list)
    """Empty where it is unknown which."""

    @property
    def text(self) -> str:
        return f"{self.reason}; {self.cure}" if self.cure else self.reason

    @property
    def named(self) -> str:
        """`nvidia.com/gpu 0,1`"""
        return " ".join([self.resource, *filter(None, [",".join(str(device.index) for device in self.devices)])])

    def __str__(self) -> str:
        return f"{self.named}: {self.text}"
