"""An agent's report on its node's devices, in `NodeDevices.status.hardware`, which only the agent writes.

Where no agent runs it is empty: devices are then known by number only, always healthy and equally far apart.
"""

from typing import Final

from msgspec import Struct, field

from deviceshare.domain.objects.devices import Device, Identity
from deviceshare.domain.objects.reported_turns import ReportedTurns

NVLINK: Final = "nvlink"
SWITCH: Final = "switch"
NUMA: Final = "numa"
PROXIMITY: Final = (NVLINK, SWITCH, NUMA)
"""How close two devices are, the closest first: joined by NVLink, behind one PCIe switch, on one NUMA node. Other pairs
are not reported."""

MAX_TRESPASSES: Final = 32
"""Reported at most, to bound the object's size."""
MAX_OVERUSES: Final = 32
"""Likewise."""


class Part(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One device as the driver shows it. `index` is the driver's current number; a reboot may change it."""

    resource: str
    index: int
    uuid: str = ""
    model: str = ""
    memory_mib: int = 0
    pci: str = ""
    """The PCI address, as in `0000:3b:00.0`."""
    numa_node: int | None = None
    mig: bool = False
    """Whether the device is split by NVIDIA's MIG."""
    unhealthy: str = ""
    """Why the device is unhealthy, such as `Xid 79: GPU has fallen off the bus`; empty while it is healthy."""
    since: str = ""
    """When it was found unhealthy, RFC 3339. With the UUID it identifies this one finding."""
    lost: bool = False
    """Whether the driver no longer shows it; the other fields are then the last that it reported."""

    @property
    def device(self) -> Device:
        return Device(self.resource, self.index, self.uuid)


class Link(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """How two devices of one resource are joined, by their indices, the lower first."""

    resource: str
    a: int
    b: int
    kind: str
    """One of PROXIMITY."""
    lanes: int = 0
    """NVLinks between the two."""


class Allocation(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What the vendor's device plugin allocated to a pod, as the kubelet reports it."""

    pod: str
    """`namespace/name`"""
    uid: str
    resource: str
    indices: list[int] = field(default_factory=list)
    placeholder: bool = False
    """Whether the pod only keeps the devices from the plugin, so that groups may have them."""


class Trespass(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A process on a group's device that belongs to no pod of the group."""

    resource: str
    index: int
    process: str
    """Its name, for people."""
    pod: str = ""
    """`namespace/name`; empty for a process outside of any pod."""


class Overuse(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A container, or a pod as a whole, that uses more of a device's memory than its share and what is tolerated."""

    resource: str
    index: int
    pod: str
    """`namespace/name`"""
    container: str = ""
    """Empty for the whole pod, where it uses memory that can't be assigned to a container with a share."""
    used_mib: int = 0
    """When it was last reported; small changes aren't."""
    limit_mib: int = 0
    """The share."""
    since: str = ""
    """When it was found, RFC 3339."""


class Hardware(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The agent's whole report on its node."""

    driver: str = ""
    boot_id: str = ""
    """The kernel's; another one means that the node rebooted."""
    devices: list[Part] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    allocations: list[Allocation] | None = None
    """None where the kubelet's pod-resources socket can't be read: the plugins' allocations are then unknown."""
    placeholders: bool = False
    """Whether groups get only devices of placeholder pods: the device plugin may allocate all others."""
    trespasses: list[Trespass] = field(default_factory=list)
    overuses: list[Overuse] = field(default_factory=list)
    turns: ReportedTurns | None = None
    """None where no program has a turn or waits for one."""
    cdi_kinds: list[str] | None = None
    """The CDI kinds whose specifications on the node name every device by its UUID, sorted; None where the agent can't
    read specifications."""
    runtime: str = ""
    """How the agent's own container got the devices: `cdi`, `variable`, or "" where that is unknown."""
    published: bool = False
    """Whether the devices are those that a DRA driver publishes (publication.py), since no agent reports any. Nobody
    watches them, and their numbers are of the kernel's device files, not those that a runtime takes. It isn't stored.
    """

    def part(self, resource: str, index: int) -> Part | None:
        """The device with this number, unless it is lost: another device may have its number now."""
        return next((p for p in self.devices if (p.resource, p.index) == (resource, index) and not p.lost), None)

    def identity(self, device: Device) -> Identity:
        """The same for a device that is named by its number and by its UUID."""
        part = None if device.uuid else self.part(device.resource, device.index)
        return (part.device if part else device).identity

    def named(self, uuid: str) -> Part | None:
        """The device with this UUID, lost or not."""
        return next((part for part in self.devices if part.uuid == uuid), None)


NO_HARDWARE: Final = Hardware()
