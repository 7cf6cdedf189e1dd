"""A group's status as it should be, from what is known, and the least patch that makes it so.

Of a status only `nodeName` decides anything, and it is never touched here: binding and repair write it.
Conditions follow https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.waiting import why_a_group_waits
from deviceshare.domain.objects.devices import Devices, described, selected
from deviceshare.domain.objects.groups import BOUND, DEGRADED, PENDING, Group, GroupStatus
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_meta import Condition
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.barred_pods import barred
from deviceshare.domain.placement.blind_spots import ledger_fault, node_fault
from deviceshare.domain.placement.device_states import ailing, device_states, held_by
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.inventory import take
from deviceshare.domain.placement.join_obstacles import behind_gates, invalid, recreating
from deviceshare.domain.placement.replacement import is_told, untellable
from deviceshare.domain.vendors import vendors_of
from deviceshare.domain.wording import listed

IS_BOUND, IS_HEALTHY = "Bound", "Healthy"
TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

SHOWN_PODS = 5

_DECIDED_ELSEWHERE = ("nodeName", "fence")


class ConditionValue(NamedTuple):
    """What a condition says: its status, and its reason and message as one value."""

    status: str
    reason: Reason


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


def bound(group: Group, fleet: Fleet, pods: Collection[Pod]) -> Reason:
    """The reason of the group's condition Bound alone: what it holds, or what it waits for."""
    ledger = fleet.ledger(group.node) if group.node else None
    claim = ledger.claims.get(group.uid) if ledger else None
    finding = _bound(group, fleet, pods, _selected(group, ledger.held(claim) if ledger and claim else None))
    return _with_barred(finding, group, fleet, pods).reason


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
        return _true(ReasonKind.CLAIMED, f"holds {described(chosen) or 'its devices'} on node {group.node}")
    if fault := invalid(group):
        return ConditionValue(FALSE, fault)
    if homes := sorted(set(fleet.pods(group.uid).values())):
        return _repairing(homes)
    pending = [pod for pod in pods if pod.pending]
    if not pending:
        cure = f"name it in a pod's annotation {contract.GROUP}: {group.name}"
        return _false(ReasonKind.NO_PODS, "no pod has asked for it yet", cure)
    wanted = vendors_of(group.spec.resources)
    if all(pod.lacking(wanted) for pod in pending):
        text = "deviceshare's webhook did not inject its pods, so none can be bound"
        return _false(ReasonKind.WAITING, text, "delete and recreate them")
    if all(pod.gates for pod in pending):
        return _false(ReasonKind.GATED, f"none of its pods is to be scheduled yet: each {behind_gates(pending)}")
    return ConditionValue(FALSE, why_a_group_waits(fleet, group))


def _with_barred(finding: ConditionValue, group: Group, fleet: Fleet, pods: Iterable[Pod]) -> ConditionValue:
    """Names the pods that wait in vain, whatever the group itself does."""
    found = barred(fleet, group, pods)
    if not found:
        return finding
    names = listed((each.pod.metadata.key for each in found), most=1)
    text = f"pod {names} can't join it: {found[0].reason}"
    reason = finding.reason
    return finding._replace(reason=msgspec.structs.replace(reason, details=(*reason.details, text)))


def _repairing(homes: list[str]) -> ConditionValue:
    if len(homes) == 1:
        text = f"its status was lost while its pods run on node {homes[0]}; it is restored from their claim"
        return _false(ReasonKind.REPAIRING, text)
    text = f"its status was lost and its pods run on several nodes ({listed(homes)})"
    return _false(ReasonKind.REPAIRING, text, "delete those on all but one")


def _home(group: Group, home: Node | None) -> ConditionValue | None:
    """What is wrong with the group's node, if anything."""
    node, again = group.node, recreating(group.holder)
    if not node:
        return ConditionValue(UNKNOWN, Reason(ReasonKind.NOT_BOUND, "it holds no devices yet"))
    if home is None:
        return _false(ReasonKind.NODE_GONE, f"node {node} is gone", f"{again}, or bring the node back")
    if fault := node_fault(home):
        return ConditionValue(UNKNOWN, fault)
    if not home.shared:
        label = f"kubectl label node {node} {contract.MODE_LABEL}={contract.MODE_SHARED}"
        return _false(
            ReasonKind.NODE_NOT_SHARED,
            f"node {node} is not shared any more, so no pod can join",
            f"{label}, or {again}",
        )
    if not home.ready:
        return _false(ReasonKind.NODE_NOT_READY, f"node {node} is not Ready", f"repair the node, or {again}")
    return None


def _claimed(
    group: Group, ledger: NodeDevices | None, claim: Claim | None, home: Node | None, pods: Collection[Pod]
) -> ConditionValue:
    """Whether the devices of a group on a good node are healthy and its own."""
    node, again = group.node, recreating(group.holder)
    others = f"deviceshare rebind {group.name}"
    if ledger is not None and (fault := ledger_fault(ledger)):
        return ConditionValue(UNKNOWN, fault)
    if ledger is None or claim is None or home is None:
        text = f"its claim on node {node} is missing and is restored from its pods"
        return _false(ReasonKind.CLAIM_MISSING, text, f"if this stays, {again}")
    inventory = take(home, ledger.hardware)  # what the node has now, also where the ledger doesn't say so yet
    offer = replace(ledger.status, devices=list(inventory.devices), withheld=list(inventory.withheld))
    mine = held_by(device_states(replace(ledger, status=offer)), group.uid)
    if broken := ailing(mine):
        cure = f"take other devices with {others}, or repair the node"
        return _false(ReasonKind.DEVICES_UNHEALTHY, f"{broken} on node {node}", cure)
    lost = selected(state.device for state in mine if state.lost)
    if unknown := [each for each in inventory.withheld if each.resource in lost and not each.devices]:
        text = f"node {node} may not have its devices"
        return _false(ReasonKind.DEVICES_UNKNOWN, text, details=map(str, unknown))
    if lost:
        return _false(ReasonKind.DEVICES_LOST, f"node {node} lost {described(lost)}", f"repair the node, or {again}")
    if muted := untellable(ledger, claim):
        text = f"no further pod can be given its devices on node {node}: {muted.text}"
        return _false(muted.kind, text, muted.cure)
    if taken := [f"{state.device} to pod {state.pod}" for state in mine if state.pod]:
        text = f"the device plugin of node {node} also allocated {listed(taken)}"
        keep = "keep its kind away (see deviceshare's documentation)"
        return _false(
            ReasonKind.DEVICES_GIVEN_AWAY, text, f"delete that pod or take other devices with {others}, and {keep}"
        )
    if loose := selected(state.device for state in mine if state.left):
        named = described(loose)
        text = f"no placeholder pod on node {node} has {named}, so the device plugin may allocate it to another pod"
        return _false(ReasonKind.DEVICES_NOT_KEPT, text, f"take others with {others}")
    if sealed := sorted(pod.metadata.key for pod in pods if _outdated(pod, group, ledger, claim)):
        keys = f"{', '.join(sealed[:SHOWN_PODS])}{' …' if len(sealed) > SHOWN_PODS else ''}"
        text = f"node {node} is Ready and has all its devices; these pods keep former ones until recreated: {keys}"
        return _true(ReasonKind.PODS_OUTDATED, text)
    return _true(ReasonKind.AS_CLAIMED, f"node {node} is Ready and has all its devices")


def _outdated(pod: Pod, group: Group, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the pod holds devices that its group gave up, also when its containers restart."""
    mine = pod.lives and pod.sealed and pod.holder_uid == group.uid
    return mine and not is_told(pod, ledger, claim)


def _true(kind: ReasonKind, text: str) -> ConditionValue:
    return ConditionValue(TRUE, Reason(kind, text))


def _false(kind: ReasonKind, text: str, cure: str = "", details: Iterable[str] = ()) -> ConditionValue:
    return ConditionValue(FALSE, Reason(kind, text, cure, tuple(details)))


def _condition(group: Group, type_: str, finding: ConditionValue, now: str) -> Condition:
    before = next((condition for condition in group.status.conditions if condition.type == type_), None)
    changed = before is None or before.status != finding.status
    return Condition(
        type=type_,
        status=finding.status,
        reason=finding.reason.kind.value,
        message=str(finding.reason),
        last_transition_time=now if before is None or changed else before.last_transition_time,
        observed_generation=group.metadata.generation,
    )
