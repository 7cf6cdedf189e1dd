"""Why groups, pods and shares wait: decided once, for conditions, Events, `explain`, `plan`, `inspect` and the page.

The facts are those of the extender's reasons, with the holders of devices, and bounded: a condition must stay readable
on 300 nodes.
"""

import heapq
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain.answers.device_parts import named, sharing
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import POD, Request, Share, ShareRequest, in_gib
from deviceshare.domain.placement import allocation, join_obstacles, node_choice
from deviceshare.domain.placement.device_states import SERVES_GROUPS, SERVES_SHARES, DeviceState, Use, held_by, numbers
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import behind_gates, invalid, missing, pod_obstacle, request_of
from deviceshare.domain.placement.preemption import fits_somewhere
from deviceshare.domain.placement.shapes import NodeLists, Stamp
from deviceshare.domain.vendors import vendors_of
from deviceshare.domain.wording import listed

SHOWN_NODES: Final = 5
KEPT: Final = 4096
"""Reasons, of a few hundred bytes each."""


class WaitingPod(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod with a group or a share that has no node yet, those behind scheduling gates among them."""

    pod: str
    group: str
    """"" for a pod that only asks for a share."""
    since: str
    """When it was created, RFC 3339."""
    reason: str
    why: Reason
    """The reason for programs."""
    share: str = ""
    """The parts that it asks for, in words: `8 GiB of a GPU`."""
    workload: str = ""
    """What made it, as `Deployment ns/infer`."""

    @classmethod
    def of(cls, pod: Pod, reason: Reason) -> "WaitingPod":
        """The pod, which waits for this reason."""
        # A group that it names and can't join counts; where it asks for a share only, what is left out is the pod
        # itself.
        group = pod.group or ("" if "/" in pod.left_out else pod.left_out)
        since = pod.metadata.creation_timestamp or ""
        return cls(pod.metadata.key, group, since, str(reason), reason, pod.share.wanted, pod.workload)


class _MetNowhere(NamedTuple):
    """Why a request isn't met on any node yet; the same for all that want the same."""

    reason: Reason
    shown: tuple[str, ...] = ()
    """The nodes of which it says more than that they are among so many."""
    fits: bool = False
    """Whether it is met after all, by what the fleet knows."""


_Wanted = tuple[frozenset[tuple[str, int]], frozenset[tuple[str, str]], bool]
"""Resources, node selector, and whether by a ResourceClaim."""


class WaitingReasons:
    """Of one fleet. Mutable, but pure.

    A thousand groups may wait for what five thousand nodes don't have. They want few different things, so each is
    reasoned once, and again when a node changed that matters to it.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: dict[_Wanted, tuple[_MetNowhere, Stamp]] = {}

    def of_group(self, group: Group, pods: Collection[Pod]) -> Reason | None:
        """What an unbound group waits for; None where no pod of it waits. `pods` name it, and it takes them."""
        if fault := invalid(group):
            return fault
        if homes := sorted(set(self._fleet.pods(group.uid).values())):
            lost, one = "its status was lost", f"its pods run on node {homes[0]}; it is restored from their claim"
            if len(homes) == 1:
                return Reason(ReasonKind.REPAIRING, f"{lost} while {one}")
            text = f"{lost} and its pods run on several nodes ({listed(homes)})"
            return Reason(ReasonKind.REPAIRING, text, "delete those on all but one")
        pending = [pod for pod in pods if pod.pending]
        if not pending:
            return None
        wanted = vendors_of(group.spec.resources)
        if all(pod.lacking(wanted) for pod in pending):
            text = "deviceshare did not inject its pods, so none can be bound"
            return _waiting(text, "delete and recreate them")
        if all(pod.gates for pod in pending):
            return Reason(ReasonKind.GATED, f"none of its pods is to be scheduled yet: each {behind_gates(pending)}")
        return self.of(group.request)

    def of(self, request: Request) -> Reason:
        """What a request waits for that is met nowhere yet, and who is in the way on which node.

        Of a group's the same object as before where nothing that matters to it changed.
        """
        if home := self._fleet.home(request):
            return self._at_home(request, home)
        return self._fleet.quotas.obstacle(request) or self._met_nowhere(request).reason

    def may_fit(self, group: Group) -> bool:
        """Whether some node may have what an unbound group wants, for one of its pods that asks for no share."""
        request = group.request
        return bool(self._fleet.home(request)) or self._met_nowhere(request).fits

    def of_pod(self, pod: Pod, group: Group | None, bound: Reason | None) -> Reason:
        """What a pending pod waits for; `bound` is what its group's condition Bound says, where it names one."""
        [(_, reason)] = self._of_alike([pod], group, bound)
        return reason

    def of_pods(
        self, pods: Iterable[Pod], groups: Mapping[str, Group], bound: Mapping[str, Reason]
    ) -> Iterable[list[WaitingPod]]:
        """The waiting ones of the pods, those that want the same together; `bound` is each group's condition Bound."""
        alike: dict[tuple[str, ShareRequest, str, bool, str], list[Pod]] = {}
        for pod in pods:
            if pod.pending:
                request = None if pod.group else request_of(pod, None)
                # A share whose bind died half-way waits for the node of its claim, and no other pod does.
                own = pod.metadata.uid if request and self._fleet.home(request) else ""
                alike.setdefault((pod.group, pod.share, pod.strategy, pod.isolated, own), []).append(pod)
        for (name, *_), mine in alike.items():
            found = self._of_alike(mine, groups.get(name), bound.get(name))
            yield [WaitingPod.of(pod, reason) for pod, reason in found]

    def _of_alike(self, pods: list[Pod], group: Group | None, bound: Reason | None) -> Iterable[tuple[Pod, Reason]]:
        """Of a hundred pods that want the same most wait for the same, which is reasoned once."""
        first = request_of(pods[0], group)
        vain = node_choice.ruled_out(self._fleet, first, pods) if first else {}
        known: dict[tuple[Reason | None, str], Reason] = {}
        for pod in pods:
            request = request_of(pod, group)
            obstacle = pod_obstacle(pod, group, self._fleet.namespaces) or vain.get(pod.metadata.key)
            if obstacle or request is None:
                yield pod, obstacle or missing(pod)
                continue
            said, home = scheduler_said(pod), self._fleet.home(request)
            if (said, home) not in known:
                known[said, home] = self._unhindered(request, home, said, bound)
            reason = known[said, home]
            if pod.awaits_placement and reason.kind is ReasonKind.NOT_TRIED:
                # That names kube-scheduler, which doesn't see the pod before deviceshare places it.
                cure = "see its Events for what else it waits for (kubectl describe pod)"
                reason = Reason(reason.kind, "deviceshare has not placed it yet; its group has devices", cure)
            yield pod, reason

    def _unhindered(self, request: Request, home: str, said: Reason | None, bound: Reason | None) -> Reason:
        """What pods wait for that have no obstacle of their own, and of which kube-scheduler `said` this.

        Where they lack no devices, kube-scheduler's reason is the one to show.
        """
        if home:
            if self._fleet.share_obstacle(request, home):
                return self._at_home(request, home)
            whose = "it is to go to" if request.holder.kind == POD else "its group lives on"
            not_tried = f"kube-scheduler has not tried it yet; {whose} node {home}"
            obstacle = self._fleet.joining_obstacle(request, home) or unusable(self._fleet, home)
            return obstacle or said or Reason(ReasonKind.NOT_TRIED, not_tried)
        waits = bound if bound and not request.share else self.of(request)
        return said or waits if any(True for _ in self._fleet.fitting(request)) else waits

    def _at_home(self, request: Request, home: str) -> Reason:
        """A bind died half-way: the claim is there, and its next pod goes to it. Or a share has no room there."""
        if self._fleet.share_obstacle(request, home):
            whose = f" of the devices of {request.holder}" if request.sharer else ""
            text = f"waiting for {request.share.wanted}{whose} on node {home}, which has not so much free"
            return _waiting(text, details=[f"{home}: {_room_of(self._fleet, request, home)}"])
        obstacle = self._fleet.joining_obstacle(request, home)
        text = f"waiting {'' if request.holder.kind == POD else 'for a pod '}to be placed on node {home}"
        return _waiting(f"{text}: {obstacle.text}", obstacle.cure) if obstacle else _waiting(text)

    def _met_nowhere(self, request: Request) -> _MetNowhere:
        """What a request waits for that has no home and that no quota forbids."""
        if request.share:  # what is said of shares may change without a stamp that says so
            return _met_nowhere(self._fleet, request)
        situations, selector = self._fleet.situations, request.node_selector
        wanted = frozenset(request.resources.items()), frozenset(selector.items()), request.by_claim
        found, stamp = self._kept.get(wanted, (None, None))
        if found is None or stamp != situations.stamp(selector, found.shown):
            found = _met_nowhere(self._fleet, request)
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[wanted] = found, situations.stamp(selector, found.shown)
        return found


def scheduler_said(pod: Pod) -> Reason | None:
    """Why kube-scheduler found no node when it last tried the pod."""
    return Reason(ReasonKind.UNSCHEDULABLE, pod.refusal.message) if pod.refusal and pod.refusal.message else None


def unusable(fleet: Fleet, name: str, pod: Pod | None = None) -> Reason | None:
    """Why nobody, or not this pod, gets devices on the node, whatever is free there; by kube-scheduler's rules, too."""
    obstacle, node = fleet.obstacle(name), fleet.node(name)
    return obstacle or (node_choice.unusable(node, pod) if node else None)


def candidates(fleet: Fleet, request: Request, pod: Pod | None = None) -> tuple[dict[str, int], dict[str, Reason]]:
    """The nodes that the holder's next pod may go to, with their scores; and why not, for each of the others.

    This is what filter and prioritize answer over all nodes, without those that kube-scheduler would not use itself;
    with a `pod`, without those that it can't be scheduled to.
    """
    filtered = fleet.filter(request, fleet.names())
    reasons = filtered.reasons | {name: obstacle for name in filtered.fits if (obstacle := unusable(fleet, name, pod))}
    return fleet.prioritize(request, [name for name in filtered.fits if name not in reasons]), reasons


def chosen_shares(fleet: Fleet, request: Request, node: str) -> tuple[Share, ...]:
    """The parts that a pod would get of the node's devices by a bind now; empty where it has no room for all."""
    within = request.within
    opaque = frozenset() if within else fleet.opaque(node)
    rooms = [(device, room) for device, room in fleet.rooms(node, within) if device.resource not in opaque]
    return allocation.choose_shares(request.share, request.strategy, rooms) or ()


def too_large(fleet: Fleet, request: Request) -> Reason | None:
    """Why no node could ever meet it: no shared node that may be used has as many devices, or one with as much memory.

    None also where that is unknown, such as while the devices of a node are not known yet.
    """
    if not request.resources:
        return _share_too_large(fleet, request)
    most = fleet.situations.most(request)
    if most is None:
        return None
    lacking = sorted(resource for resource, count in request.resources.items() if count > most[resource])
    together = listed(f"{count} {resource}" for resource, count in sorted(request.resources.items()))
    has = listed(f"more than {most[each]} {each}" if most[each] else f"any {each}" for each in lacking)
    node = "no shared node that matches its nodeSelector" if request.node_selector else "no shared node"
    text = f"{node} has {has or f'{together} together'}"
    return Reason(ReasonKind.NO_NODE_LARGE_ENOUGH, text, "ask for fewer, or add a larger node")


def _share_too_large(fleet: Fleet, request: Request) -> Reason | None:
    """By the memory of one device, or by the number of devices of one node."""
    needs, most_mib = request.share.needs, fleet.largest(request.share.of)
    if most_mib and max((need.memory_mib for need in needs), default=0) > most_mib:
        text, cure = f"no device of a shared node has more than {in_gib(most_mib)}", "ask for less, or add a node with"
        return Reason(ReasonKind.NO_NODE_LARGE_ENOUGH, text, f"{cure} larger ones")
    devices, most = request.share.devices, 0
    for resource in request.share.of:
        found = fleet.situations.most(request._replace(resources={resource: devices}))
        if found is None:
            return None
        most = max(most, found[resource])
    text = f"no shared node has {f'more than {most} GPUs' if most else 'a GPU'}"
    return Reason(ReasonKind.NO_NODE_LARGE_ENOUGH, text, "ask for fewer, or add a larger node")


def _waiting(text: str, cure: str = "", details: Iterable[str] = ()) -> Reason:
    return Reason(ReasonKind.WAITING, text, cure, tuple(details))


def _met_nowhere(fleet: Fleet, request: Request) -> _MetNowhere:
    situations = fleet.situations
    wants, shared = _wants(request), len(situations.selected({}))
    if not shared:
        return _MetNowhere(_waiting(f"waiting for {wants}, but no node is shared", join_obstacles.NOT_SHARED.cure))
    fits, refused = situations.overview(request)
    if not fits and not refused:
        selector = ",".join(f"{key}={value}" for key, value in sorted(request.node_selector.items()))
        text = f"waiting for {wants}, but none of {shared} shared nodes matches spec.nodeSelector {selector}"
        return _MetNowhere(_waiting(text, "change it, or label a node"))
    if fits:
        number, some = len(fits), fits.first(SHOWN_NODES)
        have = "1 shared node has" if number == 1 else f"{number} shared nodes have"
        its, waits = ("it", "waits") if request.holder.kind == POD else ("its pods", "wait")
        nodes = listed([*some, *([f"{number - SHOWN_NODES} more"] if number > SHOWN_NODES else [])])
        cure = f"see what else {its} {waits} for (kubectl describe pod)"
        return _MetNowhere(_waiting(f"{have} {wants} free ({nodes})", cure), fits=True)
    shown = dict(_in_the_way(fleet, request, refused))
    rest = sum(map(len, refused.values())) - len(shown)
    more = [f"and {rest} more node{'s' * (rest > 1)}"] if rest else []
    details, names = (*shown.values(), *more), tuple(shown)
    if found := too_large(fleet, request):
        return _MetNowhere(replace(found, text=f"waiting for {wants}, but {found.text}", details=details), names)
    where = "which no shared node that matches its nodeSelector" if request.node_selector else "which no shared node"
    return _MetNowhere(_waiting(f"waiting for {wants}, {where} has free", details=details), names)


def _wants(request: Request) -> str:
    devices = listed(f"{count} {resource}" for resource, count in sorted(request.resources.items()))
    if not request.share:
        return devices
    return f"{devices}, of which a pod needs {request.share.wanted}" if devices else request.share.wanted


# Nodes that can't meet a request, each in a line: what of it is free, and who has the rest.


def _in_the_way(fleet: Fleet, request: Request, refused: Mapping[Reason, NodeLists]) -> Iterable[tuple[str, str]]:
    """Nodes that only lack devices first, those with the most free before others: elsewhere something has to change.

    Where one reason holds for several nodes, as many devices are free on each.
    """
    firsts = ((reason, of.first(SHOWN_NODES)) for reason, of in refused.items())
    names = [
        (reason.kind is not ReasonKind.TOO_FULL, -free, name, reason)
        for reason, first in firsts
        for free in [_free_number(fleet, request, first[0])]
        for name in first
    ]
    free_of = _free_of if request.resources else _room_of
    for elsewhere, _, name, reason in heapq.nsmallest(SHOWN_NODES, names, key=lambda each: each[:3]):
        yield name, f"{name}: {reason if elsewhere else free_of(fleet, request, name)}"


def _free_number(fleet: Fleet, request: Request, name: str) -> int:
    """How many of the wanted devices are free, or of a share, the most units that are free of one device."""
    if request.resources:
        return sum(device.resource in request.resources for device in fleet.free(name))
    return max((room.free for device, room in fleet.rooms(name) if device.resource in request.share.of), default=0)


def _free_of(fleet: Fleet, request: Request, name: str) -> str:
    """How many whole devices are free: `1 of 4 free (team-a holds 0,1; pod ns/web shares 2)`."""
    lines = {}
    for resource in sorted(request.resources):
        states = [state for state in fleet.states(name) if state.device.resource == resource]
        free = sum(device.resource == resource for device in fleet.free(name))
        of = f"{free} of {sum(state.offered for state in states)} free"
        lines[resource] = _with_holders(of, states, SERVES_SHARES)
    return ", ".join(f"{resource} {line}" if len(lines) > 1 else line for resource, line in lines.items())


def _room_of(fleet: Fleet, request: Request, name: str) -> str:
    """How much of a device is free for shares: `at most 3 of 16 GiB of one free (pods ns/a and ns/b share 0,1)`.

    Of nobody's devices, or of the devices of the group of which the request's pod asks for a part.
    """
    within = request.within
    rooms = [room for device, room in fleet.rooms(name, within) if device.resource in request.share.of]
    largest = max(rooms, key=lambda room: room.free, default=None)
    free = f"at most {largest} of one free" if largest else "none for shares"
    if within:
        pods = sharing(held_by(fleet.states(name), within))
        return f"{free} ({named(pods)} {'has' if len(pods) == 1 else 'have'} parts)" if pods else free
    states = [state for state in fleet.states(name) if state.device.resource in request.share.of]
    return _with_holders(free, states, SERVES_GROUPS)


def _with_holders(free: str, states: list[DeviceState], others: str) -> str:
    """`others` get the devices that the node's owner reserved for them."""
    reserved = [state for state in states if state.serves == others and state.use is Use.FREE]
    for_others = [f"{numbers(reserved)} {'is' if len(reserved) == 1 else 'are'} for {others} only"] if reserved else []
    why = "; ".join([*_holding(states), *for_others, *_barred(state for state in states if not state.claim)])
    return f"{free}{f' ({why})' if why else ''}"


def _holding(states: list[DeviceState]) -> Iterable[str]:
    verbs = {Use.HELD: "holds", Use.RELEASING: "still uses", Use.FORMER: "may still use"}
    mine: dict[tuple[str, str, str], list[DeviceState]] = {}
    for state in states:
        if state.claim:
            mine.setdefault((state.group, state.uid, verbs[state.use]), []).append(state)
    for (group, _, verb), theirs in sorted(mine.items()):
        barred = ", ".join(_barred(theirs))
        yield f"{group} {verb} {numbers(theirs)}" + (f", of which {barred}" if barred else "")
    shared = [state for state in states if state.use is Use.SHARED]  # of no group's devices
    if pods := sharing(shared):
        yield f"{named(pods)} share{'s' * (len(pods) == 1)} {numbers(shared)}"


def _barred(states: Iterable[DeviceState]) -> Iterable[str]:
    """The devices that nobody gets, whoever has them."""
    for state in states:
        if barriers := state.barriers:
            yield f"{state.device.index} is {' and '.join(barriers.values())}"


# A rolling update that waits for itself: a Deployment's new pod for the share of an old one, which it ends afterwards.


def rolling_update(fleet: Fleet, pod: Pod, everyone: Iterable[Pod]) -> str:
    """Which pod of an earlier version of its Deployment has the share that the pod waits for, and what to do; or ""."""
    mine, name, request = pod.metadata.controller, deployment_of(pod), request_of(pod, None)
    if mine is None or name is None or request is None or fits_somewhere(fleet, pod, request):
        return ""
    for old in everyone:
        theirs, ledger = old.metadata.controller, fleet.ledger(old.node)
        if ledger is None or old.metadata.uid not in ledger.claims or deployment_of(old) != name or theirs == mine:
            continue
        rest = {uid: claim for uid, claim in ledger.claims.items() if uid != old.metadata.uid}
        rooms = allocation.available(replace(ledger, spec=replace(ledger.spec, claims=rest))).rooms
        if allocation.share_shortage(pod.share, [room for _, room in rooms]) is None:
            cure = "set its strategy to Recreate, or to maxSurge: 0 and maxUnavailable: 1"
            return f"pod {old.metadata.key} of the same Deployment has what it waits for, and waits for it: {cure}"
    return ""


def deployment_of(pod: Pod) -> tuple[str, str] | None:
    """Namespace and name of the Deployment of a pod with a share; None where it has no share, or is of none.

    A Deployment calls its ReplicaSets by its own name and a digest of their template.
    """
    owner = pod.metadata.controller
    if owner is None or owner.kind != "ReplicaSet" or pod.group or not pod.share:
        return None
    return pod.metadata.namespace, owner.name.rpartition("-")[0]
