"""What a group's status should say, from what is known; and the least patch that makes it say so.

Of a status only `nodeName` decides anything, and it is never touched here: binding and repair write it.
Conditions follow https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.waiting import behind_gates, explain
from deviceshare.domain.objects.devices import Devices, selected
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, Group, GroupStatus, group_faults
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_meta import Condition
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.barred_pods import barred
from deviceshare.domain.placement.blind_spots import ledger_fault, node_fault
from deviceshare.domain.placement.device_states import ailing, device_states, held_by
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.inventory import take
from deviceshare.domain.placement.replacement import is_told, untellable

IS_BOUND, IS_HEALTHY = "Bound", "Healthy"
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

CLAIMED, NO_PODS, WAITING, INVALID_SPEC, REPAIRING = "Claimed", "NoPods", "Waiting", "InvalidSpec", "Repairing"
GATED = "SchedulingGated"
AS_CLAIMED, NOT_BOUND = "AsClaimed", "NotBound"
NODE_GONE, NODE_NOT_SHARED, NODE_NOT_READY = "NodeGone", "NodeNotShared", "NodeNotReady"
CLAIM_MISSING, DEVICES_LOST, DEVICES_UNKNOWN, UNREADABLE = "ClaimMissing", "DevicesLost", "DevicesUnknown", "Unreadable"
NOT_HANDED_OVER, PODS_OUTDATED = "DevicesNotHandedOver", "PodsHoldFormerDevices"
DEVICES_UNHEALTHY, DEVICES_GIVEN_AWAY, DEVICES_NOT_KEPT = "DevicesUnhealthy", "DevicesGivenAway", "DevicesNotKept"

SHOWN_PODS = 5

_DECIDED_ELSEWHERE = ("nodeName", "fence")


class ConditionValue(NamedTuple):
    """What a condition says: its status, one word for programs, a sentence for people."""

    status: str
    reason: str
    message: str


def desired_status(group: Group, fleet: Fleet, *, home: Node | None, pods: Collection[Pod], now: str) -> GroupStatus:
    """The status that the group should have.

    Args:
        home: the node that the group is bound to, shared or not; None when there is none.
        pods: those that name the group.
        now: RFC 3339, the time of a transition.
    """
    ledger = fleet.ledger(group.node) if group.node else None
    claim = ledger.claims.get(group.uid) if ledger else None
    devices = ledger.held(claim) if ledger and claim else None
    chosen = _selected(group, devices)
    bound = _with_barred(_bound(group, fleet, pods, chosen), group, fleet, pods)
    healthy = _home(group, home) or _claimed(group, ledger, claim, home, pods)
    users = sorted(fleet.pods(group.uid))
    findings = {IS_BOUND: bound, IS_HEALTHY: healthy}
    return replace(
        group.status,
        phase=PENDING if not group.node else DEGRADED if healthy.status == FALSE else BOUND,
        selected_devices=chosen,
        allocated_pods=users,
        pod_count=len(users),
        conditions=[_condition(group, type_, finding, now) for type_, finding in findings.items()],
        observed_generation=group.metadata.generation,
    )


def bound(group: Group, fleet: Fleet, pods: Collection[Pod]) -> ConditionValue:
    """The group's condition Bound alone: what it holds, or what it waits for."""
    ledger = fleet.ledger(group.node) if group.node else None
    claim = ledger.claims.get(group.uid) if ledger else None
    finding = _bound(group, fleet, pods, _selected(group, ledger.held(claim) if ledger and claim else None))
    return _with_barred(finding, group, fleet, pods)


def status_patch(old: GroupStatus, new: GroupStatus) -> Patch:
    """The merge patch of the status that turns `old` into `new`; empty when nothing differs."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    patch = {
        field: value for field, value in after.items() if field not in _DECIDED_ELSEWHERE and before.get(field) != value
    }
    if "selectedDevices" in patch:
        patch["selectedDevices"] = dict.fromkeys(before["selectedDevices"]) | after["selectedDevices"]
    return patch


def transitions(old: GroupStatus, new: GroupStatus) -> list[Condition]:
    """The conditions of `new` that say something else than in `old`, not only in other words."""
    before = {condition.type: (condition.status, condition.reason) for condition in old.conditions}
    return [c for c in new.conditions if before.get(c.type) != (c.status, c.reason)]


def _selected(group: Group, devices: Devices | None) -> dict[str, str]:
    """The claim's devices; while it is missing, what the status said of it."""
    if devices is None:
        return group.status.selected_devices if group.node else {}
    return selected(devices)


def _bound(group: Group, fleet: Fleet, pods: Collection[Pod], chosen: Mapping[str, str]) -> ConditionValue:
    if group.node:
        held = sorted(chosen.items())
        listed = " and ".join(f"{resource} {indices}" for resource, indices in held)
        return ConditionValue(TRUE, CLAIMED, f"holds {listed or 'its devices'} on node {group.node}")
    faults = group_faults(group)
    if faults:
        return ConditionValue(FALSE, INVALID_SPEC, "; ".join(faults))
    homes = sorted(set(fleet.pods(group.uid).values()))
    if homes:
        return ConditionValue(FALSE, REPAIRING, _repair_text(homes))
    pending = [pod for pod in pods if pod.pending]
    if not pending:
        text = f"no pod has asked for it yet; pods do with the annotation {contract.GROUP}: {group.name}"
        return ConditionValue(FALSE, NO_PODS, text)
    if not any(pod.injected for pod in pending):
        text = "its pods were admitted while deviceshare's webhook was away, so none can be bound: recreate them"
        return ConditionValue(FALSE, WAITING, text)
    if all(pod.gates for pod in pending):
        return ConditionValue(FALSE, GATED, f"none of its pods is to be scheduled yet: each {behind_gates(pending)}")
    return ConditionValue(FALSE, WAITING, explain(fleet, group))


def _with_barred(finding: ConditionValue, group: Group, fleet: Fleet, pods: Iterable[Pod]) -> ConditionValue:
    """Names the pods that wait in vain, whatever the group itself does."""
    found = barred(fleet, group, pods)
    if not found:
        return finding
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    text = f"{finding.message}; pod {found[0].pod.metadata.key}{more} can't join it: {found[0].text}"
    return finding._replace(message=text)


def _repair_text(homes: list[str]) -> str:
    if len(homes) == 1:
        return f"its status was lost while its pods run on node {homes[0]}; it is made again from their claim"
    return f"its status was lost and its pods run on several nodes ({', '.join(homes)}): delete those on all but one"


def _home(group: Group, home: Node | None) -> ConditionValue | None:
    """What is wrong with the group's node; None when that is well."""
    node, again = group.node, _again(group)
    if not node:
        return ConditionValue(UNKNOWN, NOT_BOUND, "it holds no devices yet")
    if home is None:
        return ConditionValue(FALSE, NODE_GONE, f"node {node} is gone: {again}, or bring the node back")
    if home.metadata.fault:
        return ConditionValue(UNKNOWN, UNREADABLE, node_fault(home))
    if not home.shared:
        label = f"{contract.MODE_LABEL}={contract.MODE_SHARED}"
        text = f"node {node} is not shared any more, so no pod can join: kubectl label node {node} {label}, or {again}"
        return ConditionValue(FALSE, NODE_NOT_SHARED, text)
    if not home.ready:
        return ConditionValue(FALSE, NODE_NOT_READY, f"node {node} is not Ready: mend the node, or {again} elsewhere")
    return None


def _claimed(
    group: Group, ledger: NodeDevices | None, claim: Claim | None, home: Node | None, pods: Collection[Pod]
) -> ConditionValue:
    """Whether the devices of a group on a good node are well and its own."""
    node, again = group.node, _again(group)
    if ledger is not None and ledger.metadata.fault:
        return ConditionValue(UNKNOWN, UNREADABLE, ledger_fault(ledger))
    if ledger is None or claim is None or home is None:
        text = f"its claim on node {node} is missing and made again from its pods; if this stays, {again}"
        return ConditionValue(FALSE, CLAIM_MISSING, text)
    inventory = take(home, ledger.hardware)  # what the node has now, also where the ledger doesn't say so yet
    offer = replace(ledger.status, devices=list(inventory.devices), withheld=list(inventory.withheld))
    mine = held_by(device_states(replace(ledger, status=offer)), group.uid)
    if broken := ailing(mine):
        cure = f"take other devices with deviceshare rebind {group.name}"
        return ConditionValue(FALSE, DEVICES_UNHEALTHY, f"{broken} on node {node}: {cure}, or mend the node")
    lost = selected(state.device for state in mine if state.lost)
    if unknown := [str(each) for each in inventory.withheld if each.resource in lost and not each.devices]:
        return ConditionValue(FALSE, DEVICES_UNKNOWN, f"node {node} may not have its devices; {'; '.join(unknown)}")
    if lost:
        named = " and ".join(f"{resource} {indices}" for resource, indices in lost.items())
        return ConditionValue(FALSE, DEVICES_LOST, f"node {node} lost {named}: mend the node, or {again}")
    if fault := untellable(ledger, claim):
        return ConditionValue(
            FALSE, NOT_HANDED_OVER, f"no further pod can be given its devices on node {node}: {fault}"
        )
    if taken := [f"{state.device} to pod {state.pod}" for state in mine if state.pod]:
        cure = f"delete that pod or take other devices with deviceshare rebind {group.name}, and keep its kind away"
        text = f"the device plugin of node {node} also gave {', '.join(taken)}: {cure}"
        return ConditionValue(FALSE, DEVICES_GIVEN_AWAY, f"{text} (deviceshare's documentation tells how)")
    if loose := selected(state.device for state in mine if state.left):
        named = " and ".join(f"{resource} {indices}" for resource, indices in loose.items())
        text = f"no placeholder pod on node {node} has {named}, so the device plugin may give it to another pod"
        return ConditionValue(FALSE, DEVICES_NOT_KEPT, f"{text}: take others with deviceshare rebind {group.name}")
    if sealed := sorted(pod.metadata.key for pod in pods if _outdated(pod, group, ledger, claim)):
        text = f"{', '.join(sealed[:SHOWN_PODS])}{' …' if len(sealed) > SHOWN_PODS else ''}"
        text = f"node {node} is Ready and has all its devices; these pods keep former ones until recreated: {text}"
        return ConditionValue(TRUE, PODS_OUTDATED, text)
    return ConditionValue(TRUE, AS_CLAIMED, f"node {node} is Ready and has all its devices")


def _outdated(pod: Pod, group: Group, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the pod holds devices that its group gave up, also when its containers restart."""
    mine = pod.lives and pod.sealed and pod.group_uid == group.uid
    return mine and not is_told(pod, ledger, claim)


def _again(group: Group) -> str:
    return f"delete the group and make it again (kubectl delete sdg {group.name})"


def _condition(group: Group, type_: str, finding: ConditionValue, now: str) -> Condition:
    before = next((condition for condition in group.status.conditions if condition.type == type_), None)
    changed = before is None or before.status != finding.status
    return Condition(
        type=type_,
        status=finding.status,
        reason=finding.reason,
        message=finding.message,
        last_transition_time=now if before is None or changed else before.last_transition_time,
        observed_generation=group.metadata.generation,
    )
