"""The picture of the whole cluster: nodes and their devices, groups and what they hold, waiting pods and why they wait.

`deviceshare inspect` prints it, its JSON and YAML are these Structs, and the page at `/ui` shows it. Fields may be
added to a Struct, but none changes its meaning: people's scripts read them. `drawing` makes it.
"""

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import PodPart
from deviceshare.domain.answers.turn_views import TurnView
from deviceshare.domain.answers.unseen import Unseen
from deviceshare.domain.objects.hardware import Overuse, Trespass
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement.blind_spots import UnreadableObject
from deviceshare.domain.placement.device_state import Health, Use


class DeviceView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One device. Model, UUID and memory are known where the node's agent runs or a DRA driver publishes them; memory
    also where labels tell it."""

    resource: str
    index: int
    use: Use
    group: str = ""
    """Who holds it, or held it."""
    pod: str = ""
    """`namespace/name` of the pod that the device plugin allocated it to."""
    resource_claim: str = ""
    """`namespace/name` of the ResourceClaim that holds it."""
    placeholder: str = ""
    """`namespace/name` of the pod that keeps it from the device plugin, for groups and shares."""
    uuid: str = ""
    watched: bool = False
    """Whether an agent looks after it: else nobody knows whether it is healthy."""
    model: str = ""
    memory_mib: int = 0
    withheld: str = ""
    """Why it is neither for groups nor for shares, held or not."""
    health: Health = Health.UNKNOWN
    unhealthy: str = ""
    """What is wrong with it; empty while it is healthy."""
    since: str = ""
    """When it was found unhealthy, RFC 3339."""
    lost: bool = False
    """Whether the node doesn't have it any more."""
    trespasses: list[Trespass] = field(default_factory=list)
    overuses: list[Overuse] = field(default_factory=list)
    allocated_mib: int = 0
    """How much of its memory is allocated: all of it where a group or a device plugin's pod has it; else its parts."""
    allocated_percent: float = 0
    """The same of the device, known also where its memory isn't."""
    parts: list[PodPart] = field(default_factory=list)
    """The pods that have parts of it, by name; of a group's device those of the group that asked for a part."""
    serves: str = ""
    """`shares` or `groups`, where the node's owner reserved it for these."""


class Count(Struct, frozen=True, rename="camel"):
    """Devices of one resource, on a node or in the cluster. A device may be allocated and unhealthy at once."""

    resource: str
    total: int = 0
    """Those that are there, healthy or not."""
    allocated: int = 0
    """Those that a group, pods with shares, a device plugin's pod or a ResourceClaim have, lost ones left out."""
    free: int = 0
    """Those that a group could get now."""
    unhealthy: int = 0
    """Those that are unhealthy or lost."""
    shared: int = 0
    """Those of the allocated ones of which pods have parts, so that more may be left of them."""
    for_shares: int = 0
    """Those that nobody has and that shares could get now, but no group, by the word of the node's owner."""
    memory_mib: int = 0
    """Of all devices of which it is known."""
    allocated_mib: int = 0
    """What of that is allocated; a group's device counts as a whole."""


class NodeView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One shared node, or one that was shared and whose devices are still held."""

    name: str
    counts: list[Count]
    devices: list[DeviceView]
    obstacle: str = ""
    """Why nobody gets devices here, whatever is free; empty when nothing is in the way."""
    opaque: list[str] = field(default_factory=list)
    """Resources that pods have through the device plugin, unknown which devices, so that no group gets any."""
    withheld: list[str] = field(default_factory=list)
    """Resources that may be there, unknown which devices, so that no group gets any, each with the reason."""
    reasons: list[Reason] = field(default_factory=list)
    """The obstacle and those of resources, for programs."""
    driver: str = ""
    address: str = ""
    """Its first internal IP address."""
    turns: list[TurnView] = field(default_factory=list)
    """Of groups on it and of devices of which pods have shares, as far as its agent reports them."""
    more_turns: int = 0
    """How many more there are that aren't in the list."""


class GroupView(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One group. `message` is its condition Bound's, `ailment` its condition Healthy's while that is False."""

    name: str
    phase: str
    wants: dict[str, int]
    node: str = ""
    devices: dict[str, str] = field(default_factory=dict)
    """As `status.selectedDevices`, in the node's present numbering."""
    pods: list[str] = field(default_factory=list)
    """Those that have the devices, as `namespace/name`."""
    waiting: int = 0
    """How many more pods wait to join."""
    gated: int = 0
    """How many more are behind scheduling gates, so that no scheduler tries them yet."""
    idle_since: str = ""
    """As `status.idleSince`: since when it is bound without pods."""
    message: str = ""
    ailment: str = ""
    why: Reason | None = None
    """The message for programs."""
    turn: TurnView | None = None
    """Who has its turn and which programs wait for it, where programs take turns and an agent reports it."""


class WaitingPod(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod with a group or a share that has no node yet, those behind scheduling gates among them."""

    pod: str
    group: str
    """"" for a pod that only asks for a share."""
    since: str
    """When it was created, RFC 3339."""
    reason: str
    why: Reason
    """The same for programs."""
    share: str = ""
    """The parts that it asks for, in words: `8 GiB of a GPU`."""


class Picture(Struct, frozen=True, rename="camel"):
    """The cluster; every list is sorted by name, the waiting pods by how long they wait."""

    nodes: list[NodeView]
    groups: list[GroupView]
    waiting: list[WaitingPod]
    total: list[Count]
    unreadable: list[UnreadableObject] = field(default_factory=list)
    """Objects that are not what their kind says; nothing is decided by what they hide."""
    unseen: list[Unseen] = field(default_factory=list)
    """What the person who asked may not read."""

    def of(self, node: str) -> "Picture | None":
        """One node with the groups that live there and the pods waiting to join them; None for an unknown node."""
        nodes = [each for each in self.nodes if each.name == node]
        groups = [group for group in self.groups if group.node == node]
        names = {group.name for group in groups}
        waiting = [pod for pod in self.waiting if pod.group in names]
        hidden = [each for each in self.unreadable if each.name == node or (each.kind, each.name) in _named(groups)]
        return Picture(nodes, groups, waiting, nodes[0].counts, hidden, self.unseen) if nodes else None


def _named(groups: list[GroupView]) -> set[tuple[str, str]]:
    """The groups and their pods, as they are called when they can't be read."""
    pods = {("Pod", pod) for group in groups for pod in group.pods}
    return pods | {(contract.GROUP_KIND, group.name) for group in groups}
