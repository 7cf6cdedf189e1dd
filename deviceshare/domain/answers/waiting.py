"""What groups and their pods wait for.

The same facts as the extender's reasons, with the holders of devices, and bounded: a condition must stay readable on
300 nodes.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.barred_pods import barred
from deviceshare.domain.placement.device_state import DeviceState, Use
from deviceshare.domain.placement.device_states import numbers
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import NOT_SHARED, missing, pod_obstacle
from deviceshare.domain.wording import listed

SHOWN_NODES = 5


def why_a_group_waits(fleet: Fleet, group: Group) -> Reason:
    """What an unbound group waits for, and who is in the way on which node."""
    home = fleet.home(group.request)
    if home:
        # A bind died half-way: its claim is there, and the group's next pod goes to it.
        obstacle = fleet.joining_obstacle(group.request, home)
        text = f"waiting for a pod to be placed on node {home}"
        return _waiting(f"{text}: {obstacle.text}", obstacle.cure) if obstacle else _waiting(text)
    wants = listed(f"{count} {resource}" for resource, count in sorted(group.spec.resources.items()))
    shared = fleet.shared_nodes()
    if not shared:
        return _waiting(f"waiting for {wants}, but no node is shared", NOT_SHARED.cure)
    selected = [node for node in shared if node.metadata.labels.items() >= group.spec.node_selector.items()]
    if not selected:
        selector = ",".join(f"{key}={value}" for key, value in sorted(group.spec.node_selector.items()))
        text = f"waiting for {wants}, but none of {len(shared)} shared nodes matches spec.nodeSelector {selector}"
        return _waiting(text, "change it, or label a node")
    fits, refused = fleet.filter(group.request, (node.metadata.name for node in selected))
    if fits:
        have = "1 shared node has" if len(fits) == 1 else f"{len(fits)} shared nodes have"
        return _waiting(f"{have} {wants} free", "see what else its pods wait for (kubectl describe pod)")
    where = "which no shared node that matches its nodeSelector" if group.spec.node_selector else "which no shared node"
    return _waiting(f"waiting for {wants}, {where} has free", details=_in_the_way(fleet, group, refused))


def why_a_pod_waits(fleet: Fleet, pod: Pod, group: Group | None, bound: Reason | None) -> Reason:
    """What a pending pod waits for; `bound` is what its group's condition Bound says."""
    obstacle = pod_obstacle(pod, group)
    if obstacle or group is None or bound is None:
        return obstacle or missing(pod)
    if found := barred(fleet, group, [pod]):
        return found[0].reason
    return why_members_wait(fleet, group, scheduler_said(pod), bound)


def why_members_wait(fleet: Fleet, group: Group, said: Reason | None, bound: Reason) -> Reason:
    """What pods of the group wait for that have no obstacle of their own, and of which kube-scheduler `said` this.

    Where they lack no devices, kube-scheduler's reason is the one to show.
    """
    home = fleet.home(group.request)
    if home:
        not_tried = f"kube-scheduler has not tried it yet; its group lives on node {home}"
        obstacle = fleet.joining_obstacle(group.request, home) or unusable(fleet, home)
        return obstacle or said or Reason(ReasonKind.NOT_TRIED, not_tried)
    return said or bound if fleet.filter(group.request, fleet.names()).fits else bound


def unusable(fleet: Fleet, name: str) -> Reason | None:
    """Why no group gets devices on the node, whatever is free there; kube-scheduler's own reasons among them."""
    if obstacle := fleet.obstacle(name):
        return obstacle
    node = fleet.node(name)
    if node is not None and not node.ready:
        return Reason(ReasonKind.NODE_NOT_READY, "the node is not Ready", f"repair it (kubectl describe node {name})")
    if node is not None and node.spec.unschedulable:
        return Reason(ReasonKind.NODE_CORDONED, "the node is cordoned", f"kubectl uncordon {name}")
    return None


def scheduler_said(pod: Pod) -> Reason | None:
    """Why kube-scheduler found no node when it last tried the pod."""
    return Reason(ReasonKind.UNSCHEDULABLE, pod.refusal.message) if pod.refusal and pod.refusal.message else None


def _waiting(text: str, cure: str = "", details: Iterable[str] = ()) -> Reason:
    return Reason(ReasonKind.WAITING, text, cure, tuple(details))


def _in_the_way(fleet: Fleet, group: Group, refused: Mapping[Reason, list[str]]) -> Iterable[str]:
    """Nodes that only lack devices first: on the others something else has to change before devices help."""
    names = [(reason.kind is not ReasonKind.TOO_FULL, name, reason) for reason, of in refused.items() for name in of]
    shown = heapq.nsmallest(SHOWN_NODES, names, key=lambda each: each[:2])
    for elsewhere, name, reason in shown:
        yield f"{name}: {reason if elsewhere else _holders(fleet, group, name)}"
    rest = len(names) - len(shown)
    if rest:
        yield f"and {rest} more node{'s' * (rest > 1)}"


def _holders(fleet: Fleet, group: Group, name: str) -> str:
    resources = sorted(group.spec.resources)
    if len(resources) == 1:
        return _resource_line(fleet, name, resources[0])
    return ", ".join(f"{resource} {_resource_line(fleet, name, resource)}" for resource in resources)


def _resource_line(fleet: Fleet, name: str, resource: str) -> str:
    states = [state for state in fleet.states(name) if state.device.resource == resource]
    total = sum(state.offered for state in states)
    free = sum(device.resource == resource for device in fleet.free(name))
    why = "; ".join([*_holding(states), *_barred(each for each in states if not each.claim)])
    return f"{free} of {total} free{f' ({why})' if why else ''}"


def _holding(states: Iterable[DeviceState]) -> Iterable[str]:
    mine: dict[tuple[str, str, str], list[DeviceState]] = {}
    for state in states:
        if state.claim:
            mine.setdefault((state.group, state.uid, _VERBS[state.use]), []).append(state)
    for (group, _, verb), theirs in sorted(mine.items()):
        barred = ", ".join(_barred(theirs))
        yield f"{group} {verb} {numbers(theirs)}" + (f", of which {barred}" if barred else "")


def _barred(states: Iterable[DeviceState]) -> Iterable[str]:
    """The devices that no group gets, whoever has them."""
    for state in states:
        if barriers := state.barriers:
            yield f"{state.device.index} is {' and '.join(barriers.values())}"


_VERBS: Final = {Use.HELD: "holds", Use.RELEASING: "still uses", Use.FORMER: "may still use"}
