"""The picture of the whole cluster: nodes and their devices, groups and what they hold, waiting pods and why they wait.

`deviceshare inspect` prints it, its JSON and YAML are these Structs, and the page at `/ui` shows it. Fields may be
added to a Struct, but none changes its meaning: people's scripts read them.
"""

from collections.abc import Container, Generator, Iterable

from msgspec import Struct, field
from msgspec.structs import astuple

from deviceshare.domain import contract
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.device_parts import PodPart, allocated, parts
from deviceshare.domain.answers.pod_view import TurnView, turn_views
from deviceshare.domain.answers.waiting import WaitingPod, WaitingReasons, unusable
from deviceshare.domain.objects.groups import PENDING, Group
from deviceshare.domain.objects.hardware import Overuse, Trespass
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement.device_states import ALLOCATED, DeviceState, Health, Use, by_resource, doubted
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import UnreadableObject, opaque_reason, unreadable, withheld_reason
from deviceshare.domain.placement.preemption import searched


class Unseen(Struct, frozen=True, rename="camel"):
    """One kind of object that an answer leaves out, or some of it, because the person who asked may not read it."""

    what: str
    """Its plural, such as `nodes`."""
    text: str
    """For people: what could not be read, and what isn't known for that."""


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
    """How much of the device is allocated, known also where its memory isn't."""
    parts: list[PodPart] = field(default_factory=list)
    """The pods that have parts of it, by name; of a group's device those of the group that asked for a part."""
    serves: str = ""
    """`shares` or `groups`, where the node's owner reserved it for these."""


class Count(Struct, frozen=True, rename="camel"):
    """Devices of one resource, on a node or in the cluster. A device may be allocated and unhealthy at once."""

    resource: str
    total: int = 0
    """How many are there, healthy or not."""
    allocated: int = 0
    """How many a group, pods with shares, a device plugin's pod or a ResourceClaim have, lost ones left out."""
    free: int = 0
    """How many a group could get now."""
    unhealthy: int = 0
    """How many are unhealthy or lost."""
    shared: int = 0
    """Of how many pods have parts, so that more may be left of them."""
    for_shares: int = 0
    """How many nobody has and shares could get now, but no group, by the word of the node's owner."""
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
    memory_limits: str = ""
    """As `Hardware.memory_limits`."""
    counts_only: str = ""
    """Why they are, with the cure."""
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
    """The pods that have the devices, as `namespace/name`."""
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
        # As groups and their pods are called when they can't be read.
        theirs = {("Pod", pod) for group in groups for pod in group.pods}
        theirs |= {(contract.GROUP_KIND, name) for name in names}
        hidden = [each for each in self.unreadable if each.name == node or (each.kind, each.name) in theirs]
        return Picture(nodes, groups, waiting, nodes[0].counts, hidden, self.unseen) if nodes else None


def draw(fleet: Fleet, groups: Iterable[Group], pods: Iterable[Pod], *, partly_seen: bool = False) -> Picture:
    """The whole picture; `pods` are those that name a group or ask for a share.

    Where the cluster is only `partly_seen`, what groups wait for is what the leader stated.
    """
    return searched(draw_in_steps(fleet, groups, pods, partly_seen=partly_seen))


def draw_in_steps(
    fleet: Fleet, groups: Iterable[Group], pods: Iterable[Pod], *, partly_seen: bool = False
) -> Generator[None, None, Picture]:
    """`draw` in many small steps, between which the fleet may change: each part shows it as it is then."""
    by_name, pods = {group.name: group for group in groups}, list(pods)
    members: dict[str, list[Pod]] = {}
    for pod in pods:
        members.setdefault(pod.group, []).append(pod)
    yield
    waits, bound = WaitingReasons(fleet), dict[str, Reason]()
    for name, group in by_name.items():
        stated = group_status.stated(group) if partly_seen else {}
        bound[name] = stated.get(group_status.IS_BOUND) or group_status.bound(
            group, fleet, members.get(name, []), waits
        )
        yield
    there = {pod.metadata.key for pod in pods if not pod.finished}
    nodes, drawn, waiting = list[NodeView](), list[GroupView](), list[WaitingPod]()
    for name in fleet.names():
        nodes.append(view_of(fleet, name, there))
        yield
    for name in sorted(by_name):
        drawn.append(_group(fleet, by_name[name], members.get(name, []), bound[name], there))
        yield
    for alike in waits.of_pods(pods, by_name, bound):
        waiting += alike
        yield
    return Picture(
        nodes=nodes,
        groups=drawn,
        waiting=sorted(waiting, key=lambda each: (each.since, each.pod)),
        total=_sum(count for node in nodes for count in node.counts),
        unreadable=[
            *unreadable(contract.GROUP_KIND, (group.metadata for group in by_name.values())),
            *fleet.unreadable(),
            *unreadable("Pod", (pod.metadata for pod in pods)),
        ],
    )


def _group(fleet: Fleet, group: Group, pods: list[Pod], bound: Reason, there: Container[str]) -> GroupView:
    ledger = fleet.ledger(group.node) or _NO_LEDGER
    turns = turn_views(ledger.hardware.turns, there, group.uid) if group.uid else []
    users = sorted(fleet.pods(group.uid))
    # Only the leader knows whether the group's node is gone or not shared any more; it writes that into the status.
    healthy = next((c for c in group.status.conditions if c.type == group_status.IS_HEALTHY), None)
    return GroupView(
        name=group.name,
        phase=group.status.phase or PENDING,
        node=group.node,
        wants=group.spec.resources,
        devices=group_status.selected_devices(group, fleet.ledger(group.node)),
        pods=users,
        waiting=sum(pod.pending and not pod.gates for pod in pods),
        gated=sum(bool(pod.gates) for pod in pods),
        idle_since="" if users else group.status.idle_since,
        message=str(bound),
        why=bound,
        ailment=healthy.message if healthy and healthy.status == group_status.FALSE else "",
        turn=turns[0] if turns else None,
    )


def view_of(fleet: Fleet, name: str, there: Container[str]) -> NodeView:
    """One node of the picture; `there` are the pods that there are, as `namespace/name`."""
    ledger, states = fleet.ledger(name) or _NO_LEDGER, fleet.states(name)
    obstacle, opaque = unusable(fleet, name), fleet.opaque(name)
    withheld = [*(each for each in ledger.status.withheld if not each.devices), *doubted(states).values()]
    reasons = (obstacle, *(withheld_reason(each) for each in withheld), opaque_reason(opaque))
    node, devices = fleet.node(name), [_device(state, ledger) for state in states]
    reported = ledger.hardware.turns
    turns = turn_views(reported, there)
    return NodeView(
        name=name,
        address=node.address if node else "",
        obstacle=str(obstacle or ""),
        opaque=sorted(opaque),
        withheld=[str(each) for each in withheld],
        reasons=[reason for reason in reasons if reason],
        driver=ledger.hardware.driver,
        memory_limits=ledger.status.hardware.memory_limits,
        counts_only=ledger.counts_only,
        counts=[
            _count(resource, mine, devices, barred=bool(obstacle) or resource in opaque)
            for resource, mine in by_resource(states).items()
        ],
        devices=devices,
        turns=turns,
        more_turns=max(reported.count - len(turns), 0) if reported else 0,
    )


def _count(resource: str, states: list[DeviceState], devices: list[DeviceView], *, barred: bool) -> Count:
    there = [each for each in states if not each.lost]
    known = [each for each in devices if each.resource == resource and not each.lost]
    return Count(
        resource,
        total=len(there),
        allocated=sum(each.use in ALLOCATED for each in there),
        free=0 if barred else sum(each.free for each in there),
        unhealthy=sum(not each.health.sound for each in states),
        shared=sum(each.use is Use.SHARED for each in there),
        for_shares=0 if barred else sum(each.use is Use.FREE and not each.free for each in there),
        memory_mib=sum(each.memory_mib for each in known),
        allocated_mib=sum(each.allocated_mib for each in known),
    )


def _device(state: DeviceState, ledger: NodeDevices) -> DeviceView:
    device, number, part = state.device, (state.device.resource, state.device.index), state.part
    (taken_mib, percent), shares, hardware = allocated(state), parts(state, ledger.limits_of), ledger.hardware
    trespasses = [] if state.lost else hardware.trespasses
    sharers = {each.pod for each in shares}  # an agent that stopped doesn't withdraw what it reported of others
    return DeviceView(
        *number,
        use=state.use,
        group=state.group,
        pod=state.pod,
        resource_claim=state.resource_claim,
        placeholder=state.placeholder,
        uuid=device.uuid,
        watched=part is not None and state.health is not Health.UNKNOWN,
        model=part.model if part else "",
        memory_mib=state.memory_mib,
        allocated_mib=taken_mib,
        allocated_percent=percent or 0,
        parts=shares,
        serves=state.serves,
        withheld=state.withheld,
        health=state.health,
        unhealthy=state.unhealthy,
        since=state.since,
        lost=state.lost,
        trespasses=[each for each in trespasses if (each.resource, each.index) == number],
        overuses=[each for each in hardware.overuses if each.pod in sharers and (each.resource, each.index) == number],
    )


def _sum(counts: Iterable[Count]) -> list[Count]:
    rows: dict[str, list[tuple[int, ...]]] = {}
    for resource, *numbers in map(astuple, counts):
        rows.setdefault(resource, []).append(tuple(numbers))
    return [Count(resource, *map(sum, zip(*mine, strict=True))) for resource, mine in sorted(rows.items())]


_NO_LEDGER = NodeDevices()
