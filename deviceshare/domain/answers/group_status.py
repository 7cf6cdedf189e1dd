"""A group's status as it should be, from what is known, and the least patch that makes it so.

Of a status only `nodeName` decides anything, and it is never touched here: binding and repair write it.

The condition Bound says what the group holds or waits for, and which pod can't join it; Healthy, whether its node and
its devices are as its claim says. Ready follows from both: one answer for `kubectl wait`, kstatus, Argo CD and `kubectl
get`. A group that nobody waits for is ready: it may get its first pod long after it was created, and tools that wait
for all that they applied would never end (docs/decisions/0018-ready-condition.md).

https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties
"""

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.devices import Device, described, selected
from deviceshare.domain.objects.groups import BOUND, DEGRADED, MOVE, PENDING, TERMINATING, Group, GroupStatus
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices, Patch
from deviceshare.domain.objects.nodes import OUT_OF_SERVICE, Node
from deviceshare.domain.objects.object_decoder import Condition
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import seconds_between, spelled
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.device_states import DeviceState, device_states, held_by, unhealthy_among
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import handover_fault
from deviceshare.domain.placement.holds import not_held, taken_by_others
from deviceshare.domain.placement.inventory import Offer, take
from deviceshare.domain.placement.join_obstacles import claimed_twice, ledger_fault, node_fault, recreating
from deviceshare.domain.placement.node_choice import BarredPods, is_lost, left_behind, moves, outsiders, ruled_out
from deviceshare.domain.placement.replacement import is_current
from deviceshare.domain.wording import listed

IS_BOUND, IS_HEALTHY, IS_READY = "Bound", "Healthy", "Ready"
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

KEPT: Final = 1024
"""Nodes of which it is kept what they offer."""
_SHOWN_PODS: Final = 5
_SHOWN_LEFT: Final = 3
_REBOUND: Final = "its next pod binds it again"
_DECIDED_ELSEWHERE = ("nodeName", "fence", "claimToken")
_HEALTHY: Final = {
    ReasonKind.AS_CLAIMED: TRUE,
    ReasonKind.PODS_USE_PREVIOUS_DEVICES: TRUE,
    ReasonKind.NOT_BOUND: UNKNOWN,
    ReasonKind.UNREADABLE: UNKNOWN,
}
"""The condition Healthy by its reason; False by any other."""
_UNASKED: Final = (ReasonKind.NO_PODS, ReasonKind.RELEASED, ReasonKind.GATED)
"""Of a valid group without a node: no pod that may be scheduled now wants its devices."""


def desired_status(
    group: Group,
    fleet: Fleet,
    *,
    home: Node | None,
    pods: Collection[Pod],
    now: str,
    waits: WaitingReasons | None = None,
) -> GroupStatus:
    """The status that the group should have.

    Args:
        home: the node that the group is bound to, shared or not; None when there is none.
        pods: those that name the group.
        now: RFC 3339, the time of a transition.
        waits: of the same fleet, where many groups are asked about.
    """
    ledger, users = fleet.ledger(group.node), sorted(fleet.pods(group.uid))
    reason, devices = health(group, ledger, home, pods), selected_devices(group, ledger)
    status = _status(group, bound(group, fleet, pods, waits, devices), reason, devices, now)
    return replace(
        status, allocated_pods=users, pod_count=len(users), idle_since=idle_since(group, now, used=bool(users))
    )


def status_once_bound(group: Group, node: Node, ledger: NodeDevices, pod: str, now: str) -> GroupStatus:
    """The status of an unbound group that the bind of its first pod, `namespace/name`, writes together with its node.

    `ledger` is the node's, with the group's claim. What is said is what the leader says once it sees the pod there.
    """
    there = replace(group, status=replace(group.status, node_name=node.metadata.name))
    devices = selected_devices(there, ledger)
    status = _status(there, _holds(there, devices), health(there, ledger, node, ()), devices, now)
    return replace(status, allocated_pods=[pod], pod_count=1)


def _status(group: Group, is_bound: Reason, is_healthy: Reason, devices: dict[str, str], now: str) -> GroupStatus:
    """All but who uses the group."""
    node, deleting, healthy = group.node, group.deleting, _HEALTHY.get(is_healthy.kind, FALSE)
    ready, why = _ready(group, is_bound, healthy, is_healthy)
    wants = ", ".join(f"{resource}: {count}" for resource, count in sorted(group.spec.resources.items()))
    return replace(
        group.status,
        phase=TERMINATING if deleting else PENDING if not node else DEGRADED if healthy == FALSE else BOUND,
        reason="" if node and not deleting and ready == TRUE else why.kind.value,
        wants=wants,
        devices=described(devices) if len(devices) > 1 else "".join(devices.values()),
        selected_devices=devices,
        conditions=[
            _condition(group, IS_BOUND, TRUE if node else FALSE, is_bound, now),
            _condition(group, IS_HEALTHY, healthy, is_healthy, now),
            _condition(group, IS_READY, ready, why, now),
        ],
        observed_generation=group.metadata.generation,
    )


def _ready(group: Group, is_bound: Reason, healthy: str, is_healthy: Reason) -> tuple[str, Reason]:
    """https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md"""
    if group.deleting:
        return FALSE, Reason(ReasonKind.GROUP_DELETING, "it is being deleted, and no pod can join it")
    if not group.node:
        return TRUE if is_bound.kind in _UNASKED else FALSE, is_bound
    return (TRUE, is_bound) if healthy == TRUE else (healthy, is_healthy)


def _condition(group: Group, type_: str, status: str, reason: Reason, now: str) -> Condition:
    before = None
    for each in group.status.conditions:
        if each.type == type_:
            before = each
            break
    return Condition(
        type=type_,
        status=status,
        reason=reason.kind.value,
        message=str(reason),
        last_transition_time=(before.last_transition_time if before and before.status == status else None) or now,
        observed_generation=group.metadata.generation,
    )


def status_patch(old: GroupStatus, new: GroupStatus) -> Patch:
    """The merge patch of the status that turns `old` into `new`; empty when nothing differs."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    patch = {
        field: value for field, value in after.items() if field not in _DECIDED_ELSEWHERE and before.get(field) != value
    }
    if "idleSince" in patch:
        patch["idleSince"] = after["idleSince"] or None  # the schema admits no empty time
    if "selectedDevices" in patch:
        patch["selectedDevices"] = dict.fromkeys(before["selectedDevices"]) | after["selectedDevices"]
    return patch


def transitions(old: GroupStatus, new: GroupStatus) -> list[Condition]:
    """The conditions of `new` that say something else than in `old`, not only in other words."""
    before = {condition.type: (condition.status, condition.reason) for condition in old.conditions}
    return [c for c in new.conditions if before.get(c.type) != (c.status, c.reason)]


def unbound_for(group: Group, reason: Reason, now: str) -> Patch:
    """The fields of the status that say why a group has just lost its node; the other conditions stay."""
    bound = _condition(group, IS_BOUND, FALSE, reason, now)
    others = [condition for condition in group.status.conditions if condition.type != IS_BOUND]
    return {"conditions": msgspec.to_builtins([bound, *others])}


# The condition Bound.


def selected_devices(group: Group, ledger: NodeDevices | None) -> dict[str, str]:
    """The claim's devices in its node's ledger; while it is missing, what the status said of it."""
    claim = ledger.claims.get(group.uid) if ledger else None
    if ledger is None or claim is None:
        return group.status.selected_devices if group.node else {}
    return selected(ledger.held(claim))


def bound(
    group: Group,
    fleet: Fleet,
    pods: Collection[Pod],
    waits: WaitingReasons | None = None,
    devices: dict[str, str] | None = None,
) -> Reason:
    """The reason of the condition Bound: what the group holds or waits for, and any pod that can't join it.

    `devices` are its selected ones, where the caller knows them.
    """
    # Most pods of a bound group have a node, and nothing more needs to be asked of these.
    pending = [pod for pod in pods if not pod.spec.node_name and pod.pending]
    outside = outsiders(fleet, group, pending) if pending else {}
    if group.node:
        reason = _holds(group, selected_devices(group, fleet.ledger(group.node)) if devices is None else devices)
    else:
        mine = [pod for pod in pending if pod.metadata.key not in outside]
        reason = (waits or WaitingReasons(fleet)).of_group(group, mine) or _nobody_asks(group)
    unable = _unable(fleet, group, pending, outside) if pending else ""
    return replace(reason, details=(*reason.details, f"pod {unable}")) if unable else reason


def cannot_join(fleet: Fleet, group: Group, pods: Collection[Pod]) -> str:
    """Which waiting pods can't join the group, and why one of them can't; "" for none."""
    pending = [pod for pod in pods if not pod.spec.node_name and pod.pending]
    return _unable(fleet, group, pending, outsiders(fleet, group, pending)) if pending else ""


def _unable(fleet: Fleet, group: Group, pending: Collection[Pod], outside: BarredPods) -> str:
    found = {key: why for key, why in ruled_out(fleet, group.request, pending).items() if key not in outside}
    found |= outside
    return f"{listed(found, most=1)} can't join it: {next(iter(found.values()))}" if found else ""


def _holds(group: Group, devices: dict[str, str]) -> Reason:
    text = f"holds {described(devices) or 'its devices'} on node {group.node}"
    text += f", which pods get by ResourceClaim {group.claim}" if group.spec.handover else ""
    return Reason(ReasonKind.CLAIMED, f"{text}; it is being deleted and takes no pods" if group.deleting else text)


def _nobody_asks(group: Group) -> Reason:
    """Of an unbound group; that it was released is as its status says it: nobody asked for it since."""
    for condition in group.status.conditions:
        if condition.reason == ReasonKind.RELEASED:
            return Reason(ReasonKind.RELEASED, condition.message)
    cure = f"name it in a pod's annotation {contract.GROUP}: {group.name}"
    return Reason(ReasonKind.NO_PODS, "no pod has asked for it yet", cure)


# The condition Healthy.


def health(group: Group, ledger: NodeDevices | None, home: Node | None, pods: Collection[Pod]) -> Reason:
    """The reason of the condition Healthy: whether its node and its devices are as its claim in the ledger says."""
    return _of_node(group, home, pods) or _of_devices(group, ledger, home, pods)


def _of_node(group: Group, home: Node | None, pods: Collection[Pod]) -> Reason | None:
    node = group.node
    if not node:
        return Reason(ReasonKind.NOT_BOUND, "it holds no devices yet")
    if home is not None and (fault := node_fault(home)):
        return fault
    if lost := _loss(group, home, pods):
        return lost
    if home is not None and not home.shared:
        text = f"node {node} is not shared any more, so no pod can join"
        label = f"kubectl label node {node} {contract.MODE_LABEL}={contract.MODE_SHARED}"
        return Reason(ReasonKind.NODE_NOT_SHARED, text, f"{label}, or {recreating(group.holder)}")
    if home is not None and not home.ready:
        # That alone doesn't say that its pods have ended.
        taint = f"kubectl taint node {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"
        also = "" if group.spec.node_loss_policy == MOVE else f" and {_let_it_move(group)}"
        cure = f"repair the node, or {recreating(group.holder)}; if its machine is down for good, {taint}{also}"
        return Reason(ReasonKind.NODE_NOT_READY, f"node {node} is not Ready", cure)
    return None


def _of_devices(group: Group, ledger: NodeDevices | None, home: Node | None, pods: Collection[Pod]) -> Reason:
    """Whether the devices of a group on a good node are healthy and its own."""
    node, holder, rebind = group.node, group.holder, f"deviceshare rebind {group.name}"
    recreate = recreating(holder)
    if ledger is not None and (fault := ledger_fault(ledger)):
        return fault
    claim = ledger.claims.get(holder.uid) if ledger else None
    if ledger is None or claim is None or home is None:
        text = f"its claim on node {node} is missing: it is restored from its pods; without any the group leaves"
        return Reason(ReasonKind.CLAIM_MISSING, text, f"if this stays, {recreate}")
    seen, offer = _as_now(home, ledger)
    states = device_states(seen)
    if twice := claimed_twice([state for state in states if state.claimed_twice], holder):
        return replace(twice, text=f"{twice.text}, on node {node}")
    mine = held_by(states, holder.uid)
    if unhealthy := unhealthy_among(mine):
        cure = f"take other devices with {rebind}, or repair the node"
        return Reason(ReasonKind.DEVICES_UNHEALTHY, f"{unhealthy} on node {node}", cure)
    lost = selected(state.device for state in mine if state.lost)
    if unknown := [each for each in offer.withheld if each.resource in lost and not each.devices]:
        text = f"node {node} may not have its devices"
        return Reason(ReasonKind.DEVICES_UNKNOWN, text, details=tuple(map(str, unknown)))
    if lost:
        text = f"node {node} lost {described(lost)}"
        return Reason(ReasonKind.DEVICES_LOST, text, f"repair the node, or {recreate}")
    if fault := handover_fault(ledger, claim):
        return replace(fault, text=f"no further pod can be given its devices on node {node}: {fault.text}")
    if given_away := [state for state in mine if state.pod or state.resource_claim]:
        used = any(pod.lives and pod.holder_uid == holder.uid for pod in pods)
        waits = not_held(ledger, holder.uid) if taken_by_others(ledger, holder.uid) and not used else None
        return waits or _given_away(given_away, node, rebind)  # The group leaves then.
    if left := selected(state.device for state in mine if state.left):
        text = f"no placeholder pod on node {node} has {described(left)}, so the device plugin may allocate it"
        return Reason(ReasonKind.DEVICES_NOT_RESERVED, f"{text} to another pod", f"take others with {rebind}")
    cordoned = f"; it is cordoned: no pod goes there until kubectl uncordon {node}" if home.spec.unschedulable else ""
    text = f"node {node} is Ready and has all its devices{cordoned}"
    mine_sealed = (pod for pod in pods if pod.sealed and pod.lives and pod.holder_uid == holder.uid)
    if outdated := sorted(pod.metadata.key for pod in mine_sealed if not is_current(pod, ledger, claim)):
        keys = f"{', '.join(outdated[:_SHOWN_PODS])}{' …' if len(outdated) > _SHOWN_PODS else ''}"
        text = f"{text}; these pods use previous ones until recreated: {keys}"
        return Reason(ReasonKind.PODS_USE_PREVIOUS_DEVICES, text)
    return Reason(ReasonKind.AS_CLAIMED, text)


def _given_away(mine: Collection[DeviceState], node: str, rebind: str) -> Reason:
    documented = "(see deviceshare's documentation)"
    if taken := [f"{state.device} to pod {state.pod}" for state in mine if state.pod]:
        text = f"the device plugin of node {node} also allocated {listed(taken)}"
        cure = f"delete that pod or take other devices with {rebind}, and keep its kind away {documented}"
        return Reason(ReasonKind.DEVICES_GIVEN_AWAY, text, cure)
    claimed = listed([f"{state.device} to ResourceClaim {state.resource_claim}" for state in mine])
    cure = f"delete the pods of that claim or take other devices with {rebind}, and keep DRA from these devices"
    text = f"DRA also allocated {claimed} on node {node}"
    return Reason(ReasonKind.DEVICES_GIVEN_AWAY, text, f"{cure} {documented}")


_offered: Final[dict[str, tuple[Node, LedgerStatus, Offer, LedgerStatus | None]]] = {}
"""By node, and from what: its offer, and the ledger's status as it should be, where it isn't."""


def _as_now(home: Node, ledger: NodeDevices) -> tuple[NodeDevices, Offer]:
    """The ledger with what the node has now, also where the ledger doesn't say so yet; and that alone.

    A node has many groups, and each of their pods has its group looked at.
    """
    name, status = home.metadata.name, ledger.status
    if (known := _offered.get(name)) is None or known[:2] != (home, status):
        offer = take(home, status.hardware, status.published)
        uuids = {(part.resource, part.index): part.uuid for part in ledger.hardware.devices if not part.lost}
        same = _named(uuids, offer) == _named(uuids, status)
        now = None if same else replace(status, devices=list(offer.devices), withheld=list(offer.withheld))
        known = _offered[name] = home, status, offer, now
        if len(_offered) > KEPT:
            del _offered[next(iter(_offered))]
    _, _, offer, now = known
    return replace(ledger, status=now) if now else ledger, offer


def _named(uuids: Mapping[tuple[str, int], str], of: Offer | LedgerStatus) -> set[Device]:
    """For groups or withheld, in the present numbering."""
    every = chain(of.devices, *[each.devices for each in of.withheld])
    return {Device(d.resource, d.index, d.uuid or uuids.get((d.resource, d.index), "")) for d in every}


# The loss of its node.


def _loss(group: Group, home: Node | None, pods: Collection[Pod]) -> Reason | None:
    """Why a bound group is degraded by the loss of its node, and what ends that; None where its node isn't lost."""
    if not is_lost(home):
        return None
    kind = ReasonKind.NODE_GONE if home is None else ReasonKind.NODE_OUT_OF_SERVICE
    text = f"node {group.node} {how_lost(home)}"
    if not moves(group):
        up = f"once the node is up again, kubectl taint node {group.node} {OUT_OF_SERVICE}-"
        back = "bring the node back" if home is None else up
        return Reason(kind, text, f"{recreating(group.holder)}; or {_let_it_move(group)}; or {back}")
    if left := left_behind(group, pods):
        names = listed(sorted(pod.metadata.key for pod in left), most=_SHOWN_LEFT)
        waits = f"{text}; the group leaves it once these pods are deleted: {names}"
        return Reason(kind, waits, "if they stay, and nothing of them runs any more, kubectl delete pod --force")
    return Reason(kind, f"{text}; the group is leaving it, and {_REBOUND}")


def how_lost(home: Node | None) -> str:
    """`is gone`, or `is out of service`."""
    return "is gone" if home is None else "is out of service"


def moved(node: str, home: Node | None) -> Reason:
    """Why a group has no node any more that left its lost one."""
    return Reason(ReasonKind.RELEASED, f"left node {node}, which {how_lost(home)}; {_REBOUND}")


def left_cordoned(node: str) -> Reason:
    """Why a group has no node any more that left its cordoned one."""
    return Reason(ReasonKind.RELEASED, f"left node {node}, which is cordoned, for a pod that waits")


def _let_it_move(group: Group) -> str:
    patch = '{"spec":{"nodeLossPolicy":"Move"}}'
    return f"let it move (kubectl patch sdg {group.name} --type=merge -p '{patch}')"


# Idleness: since when it has been bound without pods.


def idle_since(group: Group, now: str, *, used: bool) -> str:
    """`status.idleSince` as it should be; "" where pods use the group, and where it isn't bound.

    What is unreadable or in the future starts again: clocks may have been set back, and anybody with the right may have
    written it.
    """
    if used or not group.node:
        return ""
    known = seconds_between(group.status.idle_since, now)
    return group.status.idle_since if known is not None and known >= 0 else now


def release_reason(seconds: int) -> Reason:
    """Why a group has no node any more that had no pods for so long."""
    return Reason(ReasonKind.RELEASED, f"released after {spelled(seconds)} without pods; its next pod binds it again")


# Conditions as the leader stated them, for answers to people who see less than the leader does.


def stated(group: Group) -> dict[str, Reason]:
    """The conditions that are of the group's present spec, by type."""
    kinds, generation = {kind.value: kind for kind in ReasonKind}, group.metadata.generation
    return {
        each.type: Reason(kinds.get(each.reason, ReasonKind.WAITING), each.message)  # it may be a later release's
        for each in group.status.conditions
        if each.message and each.observed_generation == generation
    }
