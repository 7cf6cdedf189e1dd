"""What groups and pods wait for.

The same facts as the extender's reasons, with the holders of devices, and bounded: a condition must stay readable on
300 nodes.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from deviceshare.domain.answers.in_the_way import free_of, room_of
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import POD, Request
from deviceshare.domain.placement.barred_pods import ruled_out
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import NOT_SHARED, missing, pod_obstacle, request_of
from deviceshare.domain.wording import listed

SHOWN_NODES: Final = 5


def why_a_group_waits(fleet: Fleet, group: Group) -> Reason:
    """What an unbound group waits for, and who is in the way on which node."""
    return why_a_holder_waits(fleet, group.request)


def why_a_holder_waits(fleet: Fleet, request: Request) -> Reason:
    """What a request waits for that is met nowhere yet, and who is in the way on which node."""
    if home := fleet.home(request):
        return _at_home(fleet, request, home)
    wants, shared = _wants(request), fleet.shared_nodes()
    if not shared:
        return _waiting(f"waiting for {wants}, but no node is shared", NOT_SHARED.cure)
    selected = [node for node in shared if node.metadata.labels.items() >= request.node_selector.items()]
    if not selected:
        selector = ",".join(f"{key}={value}" for key, value in sorted(request.node_selector.items()))
        text = f"waiting for {wants}, but none of {len(shared)} shared nodes matches spec.nodeSelector {selector}"
        return _waiting(text, "change it, or label a node")
    fits, refused = fleet.filter(request, (node.metadata.name for node in selected))
    if fits:
        have = "1 shared node has" if len(fits) == 1 else f"{len(fits)} shared nodes have"
        its = "it" if request.holder.kind == POD else "its pods"
        waits = "waits" if request.holder.kind == POD else "wait"
        return _waiting(f"{have} {wants} free", f"see what else {its} {waits} for (kubectl describe pod)")
    where = "which no shared node that matches its nodeSelector" if request.node_selector else "which no shared node"
    return _waiting(f"waiting for {wants}, {where} has free", details=_in_the_way(fleet, request, refused))


def _at_home(fleet: Fleet, request: Request, home: str) -> Reason:
    """A bind died half-way: the claim is there, and the holder's next pod goes to it. Or a share has no room there."""
    if fleet.share_obstacle(request, home):
        whose = f" of the devices of {request.holder}" if request.sharer else ""
        text = f"waiting for {request.share.wanted}{whose} on node {home}, which has not so much free"
        return _waiting(text, details=[f"{home}: {room_of(fleet, request, home)}"])
    obstacle = fleet.joining_obstacle(request, home)
    text = f"waiting {'' if request.holder.kind == POD else 'for a pod '}to be placed on node {home}"
    return _waiting(f"{text}: {obstacle.text}", obstacle.cure) if obstacle else _waiting(text)


def _wants(request: Request) -> str:
    devices = listed(f"{count} {resource}" for resource, count in sorted(request.resources.items()))
    if not request.share:
        return devices
    return f"{devices}, of which a pod needs {request.share.wanted}" if devices else request.share.wanted


def why_a_pod_waits(fleet: Fleet, pod: Pod, group: Group | None, bound: Reason | None) -> Reason:
    """What a pending pod waits for; `bound` is what its group's condition Bound says, where it names one."""
    obstacle, request = pod_obstacle(pod, group), request_of(pod, group)
    if obstacle or request is None:
        return obstacle or missing(pod)
    if found := ruled_out(fleet, request, [pod]):
        return found[0].reason
    return behind_our_gate(pod, why_unhindered_pods_wait(fleet, request, scheduler_said(pod), bound))


def behind_our_gate(pod: Pod, reason: Reason) -> Reason:
    """The reason, unless it names kube-scheduler, which doesn't see the pod before deviceshare places it."""
    if not pod.awaits_placement or reason.kind is not ReasonKind.NOT_TRIED:
        return reason
    text = "deviceshare has not placed it yet; its group has devices"
    return Reason(ReasonKind.NOT_TRIED, text, "see its Events for what else it waits for (kubectl describe pod)")


def why_unhindered_pods_wait(fleet: Fleet, request: Request, said: Reason | None, bound: Reason | None) -> Reason:
    """What pods wait for that have no obstacle of their own, and of which kube-scheduler `said` this.

    Where they lack no devices, kube-scheduler's reason is the one to show.
    """
    if home := fleet.home(request):
        if fleet.share_obstacle(request, home):
            return why_a_holder_waits(fleet, request)
        whose = "it is to go to" if request.holder.kind == POD else "its group lives on"
        not_tried = f"kube-scheduler has not tried it yet; {whose} node {home}"
        obstacle = fleet.joining_obstacle(request, home) or unusable(fleet, home)
        return obstacle or said or Reason(ReasonKind.NOT_TRIED, not_tried)
    waits = bound if bound and not request.share else why_a_holder_waits(fleet, request)
    return said or waits if fleet.filter(request, fleet.names()).fits else waits


def unusable(fleet: Fleet, name: str) -> Reason | None:
    """Why nobody gets devices on the node, whatever is free there; kube-scheduler's own reasons among them."""
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


def _in_the_way(fleet: Fleet, request: Request, refused: Mapping[Reason, list[str]]) -> Iterable[str]:
    """Nodes that only lack devices first: on the others something else has to change before devices help."""
    names = [(reason.kind is not ReasonKind.TOO_FULL, name, reason) for reason, of in refused.items() for name in of]
    shown = heapq.nsmallest(SHOWN_NODES, names, key=lambda each: each[:2])
    free = free_of if request.resources else room_of
    for elsewhere, name, reason in shown:
        yield f"{name}: {reason if elsewhere else free(fleet, request, name)}"
    rest = len(names) - len(shown)
    if rest:
        yield f"and {rest} more node{'s' * (rest > 1)}"
