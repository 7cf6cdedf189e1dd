"""A group's status as it should be, from what is known, and the least patch that makes it so.

Of a status only `nodeName` decides anything, and it is never touched here: binding and repair write it.
Conditions follow https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties
"""

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.idleness import idle_since, released_before
from deviceshare.domain.answers.node_loss import down_for_good, loss
from deviceshare.domain.answers.readiness import FALSE, TRUE, UNKNOWN, devices_line, readiness, wants_line
from deviceshare.domain.answers.waiting import why_a_group_waits
from deviceshare.domain.answers.waiting_reasons import WaitingReasons
from deviceshare.domain.objects.devices import described, selected
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, TERMINATING, Group, GroupStatus
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import Condition
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.barred_pods import barred, outsiders
from deviceshare.domain.placement.blind_spots import ledger_fault, node_fault
from deviceshare.domain.placement.device_states import device_states, held_by, unhealthy_among
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.inventory import take
from deviceshare.domain.placement.join_obstacles import behind_gates, claimed_twice, invalid, recreating
from deviceshare.domain.placement.replacement import handover_fault, is_current
from deviceshare.domain.vendors import vendors_of
from deviceshare.domain.wording import listed

IS_BOUND, IS_HEALTHY, IS_READY = "Bound", "Healthy", "Ready"

SHOWN_PODS = 5

_DECIDED_ELSEWHERE = ("nodeName", "fence", "claimToken")
_HEALTHY: Final = {
    ReasonKind.AS_CLAIMED: TRUE,
    ReasonKind.PODS_OUTDATED: TRUE,
    ReasonKind.NOT_BOUND: UNKNOWN,
    ReasonKind.UNREADABLE: UNKNOWN,
}
"""The condition Healthy by its reason; False by any other."""


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
    health = _home(group, home, pods) or _health(group, fleet.ledger(group.node), home, pods)
    is_bound, users = bound(group, fleet, pods, waits), sorted(fleet.pods(group.uid))
    status = _status(group, is_bound, health, selected_devices(group, fleet), now)
    idle = idle_since(group, now, used=bool(users))
    return replace(status, allocated_pods=users, pod_count=len(users), idle_since=idle)


def status_once_bound(group: Group, node: Node, ledger: NodeDevices, now: str) -> GroupStatus:
    """The status of an unbound group that the bind of its first pod writes together with its node.

    `ledger` is the node's, with the group's claim. What is said is what the leader says of it until there are pods.
    """
    there = replace(group, status=replace(group.status, node_name=node.metadata.name))
    health = _home(there, node, ()) or _health(there, ledger, node, ())
    devices = selected(ledger.held(ledger.claims[group.uid]))
    return _status(there, _holds(there, devices), health, devices, now)


def _status(group: Group, is_bound: Reason, health: Reason, devices: dict[str, str], now: str) -> GroupStatus:
    """All but who uses the group."""
    healthy = _HEALTHY.get(health.kind, FALSE)
    ready = readiness(group, is_bound, healthy, health)
    return replace(
        group.status,
        phase=TERMINATING if group.deleting else PENDING if not group.node else DEGRADED if healthy == FALSE else BOUND,
        reason=ready.why,
        wants=wants_line(group),
        devices=devices_line(devices),
        selected_devices=devices,
        conditions=[
            _condition(group, IS_BOUND, TRUE if group.node else FALSE, is_bound, now),
            _condition(group, IS_HEALTHY, healthy, health, now),
            _condition(group, IS_READY, ready.status, ready.reason, now),
        ],
        observed_generation=group.metadata.generation,
    )


def unbound_for(group: Group, reason: Reason, now: str) -> Patch:
    """The fields of the status that say why a group has just lost its node; the other conditions stay."""
    bound = _condition(group, IS_BOUND, FALSE, reason, now)
    others = [condition for condition in group.status.conditions if condition.type != IS_BOUND]
    return {"conditions": msgspec.to_builtins([bound, *others])}


def selected_devices(group: Group, fleet: Fleet) -> dict[str, str]:
    """The claim's devices; while it is missing, what the status said of it."""
    devices = fleet.held(group.uid, group.node)
    if devices is None:
        return group.status.selected_devices if group.node else {}
    return selected(devices)


def bound(group: Group, fleet: Fleet, pods: Collection[Pod], waits: WaitingReasons | None = None) -> Reason:
    """The reason of the condition Bound: what the group holds or waits for, and any pod that can't join it.

    `waits` are of the same fleet, where many groups are asked about.
    """
    found, outside = barred(fleet, group, pods), outsiders(fleet, group, pods)
    keys = {each.pod.metadata.key for each in outside}
    reason = _bound(group, fleet, [pod for pod in pods if pod.metadata.key not in keys], waits)
    found = [*(each for each in found if each.pod.metadata.key not in keys), *outside]
    if not found:
        return reason
    names = listed((each.pod.metadata.key for each in found), most=1)
    return replace(reason, details=(*reason.details, f"pod {names} can't join it: {found[0].reason}"))


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


def _bound(group: Group, fleet: Fleet, pods: Collection[Pod], waits: WaitingReasons | None) -> Reason:
    if group.node:
        return _holds(group, selected_devices(group, fleet))
    if fault := invalid(group):
        return fault
    if homes := sorted(set(fleet.pods(group.uid).values())):
        return _repairing(homes)
    pending = [pod for pod in pods if pod.pending]
    if not pending and (released := released_before(group)):
        return released
    if not pending:
        cure = f"name it in a pod's annotation {contract.GROUP}: {group.name}"
        return Reason(ReasonKind.NO_PODS, "no pod has asked for it yet", cure)
    wanted = vendors_of(group.spec.resources)
    if all(pod.lacking(wanted) for pod in pending):
        text = "deviceshare did not inject its pods, so none can be bound"
        return Reason(ReasonKind.WAITING, text, "delete and recreate them")
    if all(pod.gates for pod in pending):
        return Reason(ReasonKind.GATED, f"none of its pods is to be scheduled yet: each {behind_gates(pending)}")
    return waits.of(group) if waits else why_a_group_waits(fleet, group)


def _holds(group: Group, devices: dict[str, str]) -> Reason:
    text = f"holds {described(devices) or 'its devices'} on node {group.node}"
    return Reason(ReasonKind.CLAIMED, f"{text}; it is being deleted and takes no pods" if group.deleting else text)


def _repairing(homes: list[str]) -> Reason:
    if len(homes) == 1:
        text = f"its status was lost while its pods run on node {homes[0]}; it is restored from their claim"
        return Reason(ReasonKind.REPAIRING, text)
    text = f"its status was lost and its pods run on several nodes ({listed(homes)})"
    return Reason(ReasonKind.REPAIRING, text, "delete those on all but one")


def _home(group: Group, home: Node | None, pods: Collection[Pod]) -> Reason | None:
    """What is wrong with the group's node, if anything."""
    node, recreate = group.node, recreating(group.holder)
    if not node:
        return Reason(ReasonKind.NOT_BOUND, "it holds no devices yet")
    if home is not None and (fault := node_fault(home)):
        return fault
    if lost := loss(group, home, pods):
        return lost
    if home is not None and not home.shared:
        text = f"node {node} is not shared any more, so no pod can join"
        label = f"kubectl label node {node} {contract.MODE_LABEL}={contract.MODE_SHARED}"
        return Reason(ReasonKind.NODE_NOT_SHARED, text, f"{label}, or {recreate}")
    if home is not None and not home.ready:
        return Reason(
            ReasonKind.NODE_NOT_READY,
            f"node {node} is not Ready",
            f"repair the node, or {recreate}; {down_for_good(group)}",
        )
    return None


def _health(group: Group, ledger: NodeDevices | None, home: Node | None, pods: Collection[Pod]) -> Reason:
    """Whether the devices of a group on a good node are healthy and its own."""
    node, recreate, rebind = group.node, recreating(group.holder), f"deviceshare rebind {group.name}"
    if ledger is not None and (fault := ledger_fault(ledger)):
        return fault
    claim = ledger.claims.get(group.uid) if ledger else None
    if ledger is None or claim is None or home is None:
        text = f"its claim on node {node} is missing: it is restored from its pods; without any the group leaves"
        return Reason(ReasonKind.CLAIM_MISSING, text, f"if this stays, {recreate}")
    # What the node has now, also where the ledger doesn't say so yet.
    inventory = take(home, ledger.status.hardware, ledger.status.published)
    offer = replace(ledger.status, devices=list(inventory.devices), withheld=list(inventory.withheld))
    states = device_states(replace(ledger, status=offer))
    if twice := claimed_twice(states, group.holder):
        return replace(twice, text=f"{twice.text}, on node {node}")
    mine = held_by(states, group.uid)
    if unhealthy := unhealthy_among(mine):
        cure = f"take other devices with {rebind}, or repair the node"
        return Reason(ReasonKind.DEVICES_UNHEALTHY, f"{unhealthy} on node {node}", cure)
    lost = selected(state.device for state in mine if state.lost)
    if unknown := [each for each in inventory.withheld if each.resource in lost and not each.devices]:
        text = f"node {node} may not have its devices"
        return Reason(ReasonKind.DEVICES_UNKNOWN, text, details=tuple(map(str, unknown)))
    if lost:
        text = f"node {node} lost {described(lost)}"
        return Reason(ReasonKind.DEVICES_LOST, text, f"repair the node, or {recreate}")
    if fault := handover_fault(ledger, claim):
        return replace(fault, text=f"no further pod can be given its devices on node {node}: {fault.text}")
    if taken := [f"{state.device} to pod {state.pod}" for state in mine if state.pod]:
        text = f"the device plugin of node {node} also allocated {listed(taken)}"
        cure = f"delete that pod or take other devices with {rebind}, and keep its kind away"
        return Reason(ReasonKind.DEVICES_GIVEN_AWAY, text, f"{cure} (see deviceshare's documentation)")
    if taken := [f"{state.device} to ResourceClaim {state.resource_claim}" for state in mine if state.resource_claim]:
        text = f"DRA also allocated {listed(taken)} on node {node}"
        cure = f"delete the pods of that claim or take other devices with {rebind}, and keep DRA from these devices"
        return Reason(ReasonKind.DEVICES_GIVEN_AWAY, text, f"{cure} (see deviceshare's documentation)")
    if left := selected(state.device for state in mine if state.left):
        text = f"no placeholder pod on node {node} has {described(left)}, so the device plugin may allocate it"
        return Reason(ReasonKind.DEVICES_NOT_KEPT, f"{text} to another pod", f"take others with {rebind}")
    text = f"node {node} is Ready and has all its devices"
    if outdated := sorted(pod.metadata.key for pod in pods if _outdated(pod, group, ledger, claim)):
        keys = f"{', '.join(outdated[:SHOWN_PODS])}{' …' if len(outdated) > SHOWN_PODS else ''}"
        return Reason(ReasonKind.PODS_OUTDATED, f"{text}; these pods keep former ones until recreated: {keys}")
    return Reason(ReasonKind.AS_CLAIMED, text)


def _outdated(pod: Pod, group: Group, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the pod uses devices that a rebind replaced, also when its containers restart."""
    return pod.lives and pod.sealed and pod.holder_uid == group.uid and not is_current(pod, ledger, claim)


def _condition(group: Group, type_: str, status: str, reason: Reason, now: str) -> Condition:
    before = next((condition for condition in group.status.conditions if condition.type == type_), None)
    return Condition(
        type=type_,
        status=status,
        reason=reason.kind.value,
        message=str(reason),
        last_transition_time=before.last_transition_time if before and before.status == status else now,
        observed_generation=group.metadata.generation,
    )
