"""A node's publication, in `NodeDevices.status.published`: what DRA drivers offer there, and what ResourceClaims hold.

Written by the leader. Where no agent reports devices, these are the node's (NodeDevices.hardware).
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.withheld import Withheld
from deviceshare.domain.wording import listed

SHOWN_CLAIMS: Final = 3


class ResourceHold(Struct, frozen=True, gc=False, order=True, rename="camel", omit_defaults=True):
    """A device that ResourceClaims hold, whole or in part."""

    resource: str
    index: int
    uuid: str = ""
    claim: str = ""
    """`namespace/name`, for people; with how many others where several have shares of it."""

    @property
    def device(self) -> Device:
        return Device(self.resource, self.index, self.uuid)


class Publication(Struct, frozen=True, gc=False, rename="camel"):
    """`devices`: the whole devices of complete pools, and those that are split; no health, which nobody watches."""

    driver: str = ""
    """The version of the devices' driver."""
    devices: list[Part] = field(default_factory=list)
    claims: list[ResourceHold] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    """What nobody gets, and why: these devices, or where none is named all of the resource's vendor."""

    @property
    def resources(self) -> set[str]:
        """Those of its devices."""
        return {part.resource for part in self.devices}

    def behind(self, reported: Hardware) -> Hardware:
        """What is known of the node's devices: the agent's report, or these where it reports none."""
        if reported.devices or not self.devices:
            return reported
        # What refers to devices by number is left out: the agent counts them differently.
        return replace(
            reported, driver=self.driver, devices=self.devices, links=[], trespasses=[], overuses=[], published=True
        )

    def as_json(self) -> dict[str, Any]:
        """With every field, so that a merge patch leaves nothing of an earlier one."""
        stored: dict[str, Any] = to_builtins(self)
        return stored


NOTHING_PUBLISHED: Final = Publication()


def holders(claims: Iterable[str]) -> str:
    """The claims that hold one device, in a few words."""
    return listed(sorted(set(claims)), most=SHOWN_CLAIMS)
