"""What groups and pods wait for.

The same facts as the extender's reasons, with the holders of devices, and bounded: a condition must stay readable on
300 nodes.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from deviceshare.domain.answers.in_the_way import free_number, free_of, room_of
from deviceshare.domain.answers.too_large import too_large
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import POD, Request
from deviceshare.domain.placement.barred_pods import ruled_out
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import NOT_SHARED, missing, pod_obstacle, request_of
from deviceshare.domain.placement.overview import NodeLists
from deviceshare.domain.wording import listed

SHOWN_NODES: Final = 5


def why_a_group_waits(fleet: Fleet, group: Group) -> Reason:
    """What an unbound group waits for, and who is in the way on which node."""
    return why_a_holder_waits(fleet, group.request)


def why_a_holder_waits(fleet: Fleet, request: Request) -> Reason:
    """What a request waits for that is met nowhere yet, and who is in the way on which node."""
    if home := fleet.home(request):
        return _at_home(fleet, request, home)
    if beyond := fleet.quotas.obstacle(request):
        return beyond
    return met_nowhere(fleet, request).reason


class MetNowhere(NamedTuple):
    """Why a request isn't met on any node yet."""

    reason: Reason
    shown: tuple[str, ...] = ()
    """The nodes of which it says more than that they are among so many."""
    fits: bool = False
    """Whether it is met after all, by what the fleet knows."""


def met_nowhere(fleet: Fleet, request: Request) -> MetNowhere:
    """What a request waits for that has no home and that no quota forbids; the same for all that want the same."""
    situations = fleet.situations
    wants, shared = _wants(request), situations.number({})
    if not shared:
        return MetNowhere(_waiting(f"waiting for {wants}, but no node is shared", NOT_SHARED.cure))
    fits, refused = situations.overview(request)
    if not fits and not refused:
        selector = ",".join(f"{key}={value}" for key, value in sorted(request.node_selector.items()))
        text = f"waiting for {wants}, but none of {shared} shared nodes matches spec.nodeSelector {selector}"
        return MetNowhere(_waiting(text, "change it, or label a node"))
    if fits:
        return MetNowhere(_fits(request, wants, fits), fits=True)
    shown = list(_in_the_way(fleet, request, refused))
    rest = sum(map(len, refused.values())) - len(shown)
    more = [f"and {rest} more node{'s' * (rest > 1)}"] if rest else []
    details, names = (*(each.line for each in shown), *more), tuple(each.node for each in shown)
    if found := too_large(fleet, request):
        return MetNowhere(replace(found, text=f"waiting for {wants}, but {found.text}", details=details), names)
    where = "which no shared node that matches its nodeSelector" if request.node_selector else "which no shared node"
    return MetNowhere(_waiting(f"waiting for {wants}, {where} has free", details=details), names)


def _fits(request: Request, wants: str, fits: NodeLists) -> Reason:
    number, shown = len(fits), fits.first(SHOWN_NODES)
    have = "1 shared node has" if number == 1 else f"{number} shared nodes have"
    its = "it" if request.holder.kind == POD else "its pods"
    waits = "waits" if request.holder.kind == POD else "wait"
    named = listed([*shown, *([f"{number - SHOWN_NODES} more"] if number > SHOWN_NODES else [])])
    return _waiting(f"{have} {wants} free ({named})", f"see what else {its} {waits} for (kubectl describe pod)")


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
    obstacle, request = pod_obstacle(pod, group, fleet.namespaces), request_of(pod, group)
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
    return said or waits if any(True for _ in fleet.fitting(request)) else waits


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


class _Shown(NamedTuple):
    node: str
    line: str


def _in_the_way(fleet: Fleet, request: Request, refused: Mapping[Reason, NodeLists]) -> Iterable[_Shown]:
    """Nodes that only lack devices first, those with the most free before others: elsewhere something has to change.

    Where one reason holds for several nodes, as many devices are free on each.
    """
    names = [
        (reason.kind is not ReasonKind.TOO_FULL, -free, name, reason)
        for reason, of in refused.items()
        for free, first in [_first(fleet, request, of)]
        for name in first
    ]
    free = free_of if request.resources else room_of
    for elsewhere, _, name, reason in heapq.nsmallest(SHOWN_NODES, names, key=lambda each: each[:3]):
        yield _Shown(name, f"{name}: {reason if elsewhere else free(fleet, request, name)}")


def _first(fleet: Fleet, request: Request, of: NodeLists) -> tuple[int, list[str]]:
    first = of.first(SHOWN_NODES)
    return free_number(fleet, request, first[0]), first
