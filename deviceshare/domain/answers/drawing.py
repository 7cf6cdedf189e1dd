"""The picture's drawing: views of nodes, groups and waiting pods from a fleet."""

from collections.abc import Container, Generator, Iterable

from msgspec.structs import astuple

from deviceshare.domain import contract
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.device_parts import allocated, parts
from deviceshare.domain.answers.picture import Count, DeviceView, GroupView, NodeView, Picture, WaitingPod
from deviceshare.domain.answers.readiness import FALSE
from deviceshare.domain.answers.stated_conditions import stated_bound
from deviceshare.domain.answers.turn_views import turn_views
from deviceshare.domain.answers.waiting import unusable
from deviceshare.domain.answers.waiting_pods import waiting_pods
from deviceshare.domain.answers.waiting_reasons import WaitingReasons
from deviceshare.domain.objects.groups import PENDING, Group
from deviceshare.domain.objects.hardware import Hardware
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.placement.blind_spots import unreadable
from deviceshare.domain.placement.device_state import ALLOCATED, DeviceState, Health, Use
from deviceshare.domain.placement.device_states import by_resource, doubted
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import opaque_reason, withheld_reason


def draw(fleet: Fleet, groups: Iterable[Group], pods: Iterable[Pod], *, partly_seen: bool = False) -> Picture:
    """The whole picture; `pods` are those that name a group or ask for a share.

    Where the cluster is only `partly_seen`, what groups wait for is what the leader stated.
    """
    steps = draw_in_steps(fleet, groups, pods, partly_seen=partly_seen)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            drawn: Picture = done.value
            return drawn


def draw_in_steps(
    fleet: Fleet, groups: Iterable[Group], pods: Iterable[Pod], *, partly_seen: bool = False
) -> Generator[None, None, Picture]:
    """The same in many small steps, between which the fleet may change: each part shows it as it is then."""
    by_name, pods = {group.name: group for group in groups}, list(pods)
    members: dict[str, list[Pod]] = {}
    for pod in pods:
        members.setdefault(pod.group, []).append(pod)
    yield
    waits, bound = WaitingReasons(fleet), dict[str, Reason]()
    for name, group in by_name.items():
        stated = stated_bound(group) if partly_seen else None
        bound[name] = stated or group_status.bound(group, fleet, members.get(name, []), waits)
        yield
    there = {pod.metadata.key for pod in pods if not pod.finished}
    nodes, drawn, waiting = list[NodeView](), list[GroupView](), list[WaitingPod]()
    for name in fleet.names():
        nodes.append(view_of(fleet, name, there))
        yield
    for name in sorted(by_name):
        drawn.append(_group(fleet, by_name[name], members.get(name, []), bound[name], there))
        yield
    for alike in waiting_pods(fleet, by_name, bound, pods):
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
        devices=group_status.selected_devices(group, fleet),
        pods=users,
        waiting=sum(pod.pending and not pod.gates for pod in pods),
        gated=sum(bool(pod.gates) for pod in pods),
        idle_since="" if users else group.status.idle_since,
        message=str(bound),
        why=bound,
        ailment=healthy.message if healthy and healthy.status == FALSE else "",
        turn=turns[0] if turns else None,
    )


def view_of(fleet: Fleet, name: str, there: Container[str]) -> NodeView:
    """One node of the picture; `there` are the pods that there are, as `namespace/name`."""
    ledger, states = fleet.ledger(name) or _NO_LEDGER, fleet.states(name)
    obstacle, opaque = unusable(fleet, name), fleet.opaque(name)
    withheld = [*(each for each in ledger.status.withheld if not each.devices), *doubted(states).values()]
    reasons = (obstacle, *(withheld_reason(each.resource, each) for each in withheld), opaque_reason(opaque))
    node, devices = fleet.node(name), [_device(state, ledger.hardware) for state in states]
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


def _device(state: DeviceState, hardware: Hardware) -> DeviceView:
    device, number, part = state.device, (state.device.resource, state.device.index), state.part
    taken, shares = allocated(state), parts(state)
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
        allocated_mib=taken.memory_mib,
        allocated_percent=taken.percent or 0,
        parts=shares,
        serves=state.serves,
        withheld=state.withheld,
        health=state.health,
        unhealthy=state.unhealthy,
        since=state.since,
        lost=state.lost,
        trespasses=[]
        if state.lost
        else [each for each in hardware.trespasses if (each.resource, each.index) == number],
        overuses=[each for each in hardware.overuses if each.pod in sharers and (each.resource, each.index) == number],
    )


def _sum(counts: Iterable[Count]) -> list[Count]:
    rows: dict[str, list[tuple[int, ...]]] = {}
    for resource, *numbers in map(astuple, counts):
        rows.setdefault(resource, []).append(tuple(numbers))
    return [Count(resource, *map(sum, zip(*mine, strict=True))) for resource, mine in sorted(rows.items())]


_NO_LEDGER = NodeDevices()
