"""An agent's report on its node's devices, in `NodeDevices.status.hardware`, which only the agent writes.

Where no agent runs it is empty: devices are then known by number only, always healthy and equally far apart.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device, Identity
from deviceshare.domain.wording import listed

# The turns of a node as its agent reports them in `status.hardware.turns`: who has each and which programs wait.
#
# For people who read NodeDevices and may not reach the agents. They are a few seconds old, and nothing is decided by
# them: the agent's own record says who has a turn. Times are RFC 3339.

MAX_QUEUES: Final = 32
"""Reported at most, and of each as many waiting programs, to bound the object's size."""
MAX_WAITING: Final = 16
RENEWED_SECONDS: Final = 600.0
"""A report with turns is written again after this, unchanged: an older one says that its agent stopped reporting."""


class ReportedProgram(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A program that waits for a turn, or that has it or may still have it."""

    pod: str
    """`namespace/name`"""
    since: str = ""
    """When it began to wait or, of a holder, when the turn was given."""
    priority: int = 0
    asked: bool = False
    """Of a holder: whether its slice is over and it was asked to end."""
    lost_since: str = ""
    """Likewise: when its connection was last heard of, where that is lost."""


class ReportedQueue(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The programs that take turns with each other: of a group, or with shares of one device.

    Without a holder no turn is given at present: holders of an earlier agent may still run.
    """

    group: str = ""
    uid: str = ""
    """The group's: a recreated group has other turns."""
    resource: str = ""
    """With the index: the device, where it isn't a group's."""
    index: int | None = None
    holder: ReportedProgram | None = None
    waiting: list[ReportedProgram] = field(default_factory=list)
    """The next one first."""
    waiting_count: int = 0
    """Of all that wait, those left out of the list among them."""


class ReportedTurns(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """All of a node."""

    time: str = ""
    """When this was reported."""
    queues: list[ReportedQueue] = field(default_factory=list)
    count: int = 0
    """Of all queues, those left out of the list among them."""


NVLINK: Final = "nvlink"
SWITCH: Final = "switch"
NUMA: Final = "numa"
PROXIMITY: Final = (NVLINK, SWITCH, NUMA)
"""How close two devices are, the closest first: joined by NVLink, behind one PCIe switch, on one NUMA node. Other pairs
are not reported."""

MAX_TRESPASSES: Final = 32
"""Reported at most, to bound the object's size; so are overuses."""
MAX_OVERUSES: Final = 32
MAX_LIMITS: Final = 64


class Numbered(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What is said of one device."""

    resource: str
    index: int
    uuid: str = ""

    @property
    def device(self) -> Device:
        return Device(self.resource, self.index, self.uuid)


class Part(Numbered, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One device as the driver shows it. `index` is the driver's current number; a reboot may change it."""

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


class LimitReport(Struct, frozen=True, gc=False, order=True, rename="camel", omit_defaults=True):
    """A container whose limit of a device's memory isn't its share, or is to be: for a resize, or it is missing."""

    pod: str
    """`namespace/name`"""
    uid: str
    container: str
    """"" where it isn't known yet which."""
    uuid: str
    """The device's."""
    limit_mib: int = 0
    """To what it was lowered on request (resizing.py); 0 where it wasn't."""
    used_mib: int = 0
    """What the container used when it was asked to have less than that; it keeps its limit until it uses less."""
    missing: str = ""
    """Why there is none."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Whose limit it is, of which device."""
        return self.uid, self.container, self.uuid


NO_LIMITS, INTERCEPT, BY_AGENT, HOOK = "none", "intercept", "agent", "hook"
LIMIT_MODES: Final = (NO_LIMITS, INTERCEPT, BY_AGENT, HOOK)
"""Who limits the device memory of containers with shares, as the chart's value `shares.memoryLimits` has it."""
DMEM: Final = "dmem"
ENFORCING: Final = (HOOK, BY_AGENT, DMEM)
"""Of the words for how memory is limited on a node (`memory_limits`), those where programs can't exceed it."""


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
    memory_limits: str = ""
    """Who sets limits of device memory that programs can't exceed: HOOK, before a container starts, and the agent where
    that failed; BY_AGENT, right after its start; or DMEM, likewise, by the kernel of AMD's GPUs. INTERCEPT where
    HAMi-core is loaded in programs instead, which they can evade. "" where nobody does, and shares are only counted."""
    counts_only: str = ""
    """Why nobody does, with the cure."""
    limits: list[LimitReport] = field(default_factory=list)
    """The containers with shares that have another limit than their share."""
    published: bool = False
    """Whether the devices are those that a DRA driver publishes (hardware.py), since no agent reports any. Nobody
    watches them, and their numbers are of the kernel's device files, not those that a runtime takes. It isn't stored.
    """

    def part(self, resource: str, index: int) -> Part | None:
        """The device with this number, unless it is lost: another device may have its number now."""
        return next((p for p in self.devices if (p.resource, p.index) == (resource, index) and not p.lost), None)

    def identity(self, device: Device) -> Identity:
        """What is equal for a device that is named by its number and by its UUID."""
        part = None if device.uuid else self.part(device.resource, device.index)
        return (part.device if part else device).identity

    def named(self, uuid: str) -> Part | None:
        """The device with this UUID, lost or not."""
        return next((part for part in self.devices if part.uuid == uuid), None)


NO_HARDWARE: Final = Hardware()


# Devices of a node that are not for groups, in `NodeDevices.status.withheld`, each with its reason and cure.


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


# A node's publication, in `NodeDevices.status.published`: what DRA drivers offer there, and what ResourceClaims hold.
#
# Written by the leader. Where no agent reports devices, these are the node's (NodeDevices.hardware).


class ResourceHold(Numbered, frozen=True, gc=False, order=True, rename="camel", omit_defaults=True):
    """A device that ResourceClaims hold, whole or in part."""

    claim: str = ""
    """`namespace/name`, for people; with how many others where several have shares of it."""


class Publication(Struct, frozen=True, gc=False, rename="camel"):
    """`devices`: the whole devices of complete pools, and those that are split; no health, which nobody watches.

    It is stored with every field, so that a merge patch leaves nothing of an earlier one.
    """

    driver: str = ""
    """The version of the devices' driver."""
    devices: list[Part] = field(default_factory=list)
    claims: list[ResourceHold] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    """What nobody gets, and why: these devices, or where none is named all of the resource's vendor."""
    held: list[str] | None = None
    """The UUIDs of the devices that kube-scheduler allocated to deviceshare's own claims (holds.py), and that nobody
    else gets; None where there are to be none of these."""

    @property
    def resources(self) -> set[str]:
        """The resources of its devices."""
        return {part.resource for part in self.devices}

    def behind(self, reported: Hardware) -> Hardware:
        """What is known of the node's devices: the agent's report, or these where it reports none."""
        if reported.devices or not self.devices:
            return reported
        # What refers to devices by number is left out: the agent counts them differently.
        return replace(
            reported, driver=self.driver, devices=self.devices, links=[], trespasses=[], overuses=[], published=True
        )


NOTHING_PUBLISHED: Final = Publication()


def holders_of(claims: Iterable[str]) -> str:
    """The claims that hold one device, in a few words."""
    return listed(sorted(set(claims)), most=3)
