"""Join obstacles: what keeps a pod from joining a group's node."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group, spec_faults
from deviceshare.domain.objects.hardware import Withheld
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import OUT_OF_SERVICE, Node, rebooted
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import POD, Holder, Request
from deviceshare.domain.placement.device_states import SHOWN_HOLDERS, DeviceState, held_by, unhealthy_among
from deviceshare.domain.placement.handover import handover_fault
from deviceshare.domain.placement.ledger_budget import oversize
from deviceshare.domain.placement.node_indexes import put
from deviceshare.domain.vendors import vendors_of
from deviceshare.domain.wording import listed, printable

# Unreadable objects: what can't be decided because of them, and how to correct them.

_COMMANDS: Final = {"Pod": "pod", "Node": "node", contract.GROUP_KIND: "sdg", contract.NODE_DEVICES_KIND: "ndev"}


class UnreadableObject(Struct, frozen=True, rename="camel"):
    """An object that is there but isn't what its kind says."""

    kind: str
    name: str
    """`namespace/name`, or the name alone."""
    fault: str
    """The field, and what is wrong with it."""

    @property
    def cure(self) -> str:
        namespace, _, name = self.name.rpartition("/")
        command = f"kubectl edit {_COMMANDS.get(self.kind, self.kind)}{f' -n {namespace}' * bool(namespace)} {name}"
        return f"correct that field with {command}, or delete the object if nothing uses it"


def unreadable(kind: str, objects: Iterable[ObjectMeta]) -> list[UnreadableObject]:
    """The objects of one kind that can't be read, by their metadata, sorted by name."""
    found = [UnreadableObject(kind, meta.key, meta.fault) for meta in objects if meta.unreadable]
    return sorted(found, key=lambda each: each.name)


def node_fault(node: Node) -> Reason | None:
    """Why nothing is decided about the node."""
    return _fault("the node", node.metadata, f"kubectl edit node {node.metadata.name}")


def ledger_fault(ledger: NodeDevices) -> Reason | None:
    """Why it is unknown who holds which devices of the node."""
    return _fault("the NodeDevices of the node", ledger.metadata, f"kubectl edit ndev {ledger.metadata.name}")


def _fault(what: str, meta: ObjectMeta, cure: str) -> Reason | None:
    return Reason(ReasonKind.UNREADABLE, f"{what} can't be read ({meta.fault})", cure) if meta.unreadable else None


# The labels of namespaces as the mirror shows them, and whether a group takes pods of one.


class Namespaces:
    """Mutable, but pure. A namespace that isn't in it is new, gone, or may not be read."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self.hidden = False
        """Whether the person who asks may read none: then labels are no obstacle, and commands say so. deviceshare
        itself never decides like that."""

    def set_labels(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Takes in a namespace's labels; None when it is gone, or they can't be read."""
        put(self._labels, name, labels)

    def knows(self, name: str) -> bool:
        """Whether the namespace's labels are known."""
        return name in self._labels

    def obstacle(self, group: Group, namespace: str) -> Reason | None:
        """Why no pod of the namespace may join the group, or None."""
        if (allowed := group.spec.allowed_namespaces) is None:
            return None
        admitted = allowed.admits(namespace, self._labels.get(namespace))
        if admitted or (admitted is None and self.hidden):
            return None
        shown = printable(namespace)
        if admitted is None:
            text = f"group {group.name} takes pods by their namespace's labels, and those of {shown} are not known yet"
            return Reason(ReasonKind.NAMESPACE_UNKNOWN, text, "if this stays, deviceshare doctor")
        text = f"group {group.name} takes no pods of namespace {shown}, only {allowed.described}"
        if allowed.said:
            return Reason(ReasonKind.NAMESPACE_NOT_ALLOWED, f"{text}; its owner says: {allowed.said}")
        return Reason(ReasonKind.NAMESPACE_NOT_ALLOWED, text, "ask whoever may change its spec.allowedNamespaces")

    def refusal(self, group: Group, namespace: str) -> Reason | None:
        """Why it takes no pods of the namespace; None also where it isn't known: filter and bind decide that."""
        reason = self.obstacle(group, namespace)
        return reason if reason and reason.kind is ReasonKind.NAMESPACE_NOT_ALLOWED else None


# Obstacles that keep a pod from its group's devices, on one node or on all.

SHOWN_GATES: Final = 3
RECREATE_POD: Final = "delete and recreate the pod"

BEHIND_OUR_GATE: Final = (
    f"the pod has the scheduling gate {contract.PLACEMENT_GATE}, and neither names a group nor asks for a share, so"
    " nobody places it: recreate it without the gate"
)
NOT_SHARED: Final = Reason(
    ReasonKind.NODE_NOT_SHARED,
    "the node is not shared",
    f"kubectl label node NODE {contract.MODE_LABEL}={contract.MODE_SHARED}",
)
NOMINATED: Final = Reason(
    ReasonKind.NODE_NOMINATED, "node(s) where room was made for a pod of higher priority, which is to go there first"
)
NO_LEDGER: Final = Reason(
    ReasonKind.DEVICES_UNKNOWN, "the node's devices are not known yet", "if this stays, deviceshare doctor"
)
REBOOTED: Final = Reason(
    ReasonKind.NODE_REBOOTED,
    "the node rebooted and its agent has not reported yet",
    f"if this stays, kubectl get pods -A -o wide -l app.kubernetes.io/name={contract.NAME}-agent",
)
OTHER_LABELS: Final = Reason(
    ReasonKind.NODE_SELECTOR,
    "the node does not match the group's nodeSelector",
    "change spec.nodeSelector or the node's labels",
)


def node_obstacle(
    node: Node | None, ledger: NodeDevices | None, hidden: Sequence[UnreadableObject], *, joining: bool = False
) -> Reason | None:
    """Why no group at all fits on the node, whatever is free; or likewise no pod of one that lives there.

    `hidden` are pods that may have any of its devices. Who is `joining` holds devices already; another's claim that
    can't be read is no obstacle then.
    """
    if node is None or not (node.shared or node.metadata.unreadable):
        return NOT_SHARED
    others_alone = joining and ledger and ledger.hidden_claims
    if fault := node_fault(node) or (ledger_fault(ledger) if ledger and not others_alone else None):
        return fault
    if hidden:
        names = listed((pod.name for pod in hidden), most=1)
        text = f"pod {names} on the node can't be read ({hidden[0].fault}) and may hold any of its devices"
        return Reason(ReasonKind.UNREADABLE, text, hidden[0].cure)
    if ledger is None:
        return NO_LEDGER
    if node.out_of_service:
        cure = f"once it is up again, kubectl taint node NODE {OUT_OF_SERVICE}-"
        return Reason(ReasonKind.NODE_OUT_OF_SERVICE, f"the node is out of service (taint {OUT_OF_SERVICE})", cure)
    return REBOOTED if rebooted(node, ledger.hardware) else None


def elsewhere(holder: Holder, home: str) -> Reason:
    """Why a group takes no pods on other nodes than its own."""
    return Reason(ReasonKind.GROUP_ELSEWHERE, f"{holder} lives on node {home}")


def counted_only(request: Request, why: str) -> Reason | None:
    """Why the request's parts can't be of this node's devices, which are only counted (NodeDevices.counts_only)."""
    if not (why and request.isolated and request.share):
        return None
    text, _, cure = why.partition(": ")
    return Reason(ReasonKind.COUNTED_ONLY, f"node(s) that only count shares: {text}", cure)


def not_claimable(request: Request, claimable: Collection[str]) -> Reason | None:
    """Why a ResourceClaim can't bring the group devices of this node (NodeDevices.claimable)."""
    if not request.by_claim or not (missing := sorted(request.resources.keys() - claimable)):
        return None
    text = f"node(s) whose {listed(missing)} no DRA driver publishes for spec.handover: claim"
    return Reason(ReasonKind.NOT_HANDED_OVER, text, "install the vendor's driver there, or leave spec.handover out")


def withheld_reason(withheld: Withheld) -> Reason:
    """Why a group gets nothing of a resource on a node, whatever is free."""
    text = f"the node offers no {withheld.resource} to groups: {withheld.reason}"
    return Reason(ReasonKind.DEVICES_WITHHELD, text, withheld.cure)


def opaque_reason(resources: Collection[str]) -> Reason | None:
    """Why a group that wants these opaque resources gets none."""
    if not resources:
        return None
    text = f"pods on the node hold {listed(sorted(resources))} through the device plugin, unknown which devices"
    seen = "which sees what the vendor's own device plugin allocated"
    cure = f"delete those pods, or run deviceshare's agent there (agent.enabled=true), {seen}"
    return Reason(ReasonKind.DEVICES_OPAQUE, text, cure)


def joining_obstacle(ledger: NodeDevices, states: Iterable[DeviceState], holder: Holder) -> Reason | None:
    """What is wrong with the holder's claim or its devices.

    A missing claim is no obstacle: the ledger may be stale, and the bind reads it fresh. Nor are devices that were kept
    out since: they are there, and the holder's.
    """
    if holder.uid in ledger.hidden_claims:
        return ledger_fault(ledger)
    claim = ledger.claims.get(holder.uid)
    if claim is None:
        return None
    if claim.releasing:
        return Reason(ReasonKind.CLAIM_RELEASING, f"the devices of {holder} are being released")
    states = tuple(states)
    if twice := claimed_twice(states, holder):
        return twice
    mine = held_by(states, holder.uid)
    if unhealthy := unhealthy_among(mine):
        cure = RECREATE_POD if holder.kind == POD else f"deviceshare rebind {holder.name}"
        return Reason(ReasonKind.DEVICES_UNHEALTHY, f"{unhealthy} of {holder}", cure)
    if fault := handover_fault(ledger, claim):
        return fault
    lost = [state.device for state in mine if state.lost]
    for device in lost:
        if unknown := ledger.unknown(device.resource):
            return withheld_reason(unknown)
    if not lost:
        return None
    text = f"the node lost {listed(map(str, lost))} of {holder}"
    return Reason(ReasonKind.DEVICES_LOST, text, recreating(holder))


def claimed_twice(states: Iterable[DeviceState], holder: Holder) -> Reason | None:
    """Which of the holder's devices other claims mean, too, whatever the cause."""
    twice = [state for state in states if any(each.uid == holder.uid for each in state.claimed_twice)]
    if not twice:
        return None
    others = sorted({str(each) for state in twice for each in state.claimed_twice if each.uid != holder.uid})
    devices = listed(f"{state.device}{f' ({state.device.uuid})' * bool(state.device.uuid)}" for state in twice)
    claimed = f"{'is' if len(twice) == 1 else 'are'} claimed by {listed(others, most=SHOWN_HOLDERS)}, too"
    cure = "delete one of them with its pods, and recreate it; no pod joins either until then"
    return Reason(ReasonKind.CLAIMED_TWICE, f"{devices} of {holder} {claimed}", cure)


def recreating(holder: Holder) -> str:
    """How a holder gets another node, or other devices."""
    if holder.kind == POD:
        return RECREATE_POD
    return f"delete and recreate the group (kubectl delete sdg {holder.name})"


def request_of(pod: Pod, group: Group | None) -> Request | None:
    """What is to be allocated before the pod can be bound: its group's devices, a share, or a share of the group's.

    `group` is the one that it names; None where that doesn't exist, and where it names none.
    """
    priority = pod.spec.priority or 0
    if pod.group:
        if group is None:
            return None
        request = group.request
        if pod.share:
            request = request._replace(share=pod.share, sharer=pod.sharer, isolated=pod.isolated)
        return request._replace(priority=priority) if priority else request
    if not pod.share:
        return None
    return Request(pod.sharer, {}, pod.strategy, {}, "", pod.share, priority=priority, isolated=pod.isolated)


def pod_obstacle(pod: Pod, group: Group | None, namespaces: Namespaces) -> Reason | None:
    """Why the pod can't be bound to any node, whatever is free there; `namespaces` are those of the Fleet."""
    if pod.left_out:
        return left_out(pod)
    share = pod.share
    gated = Reason(ReasonKind.GATED, f"the pod {behind_gates([pod])}") if pod.gates else None
    by_claim = contract.CLAIM in pod.metadata.annotations or (group is not None and group.spec.handover)
    if by_claim and group is not None and not group.metadata.unreadable and pod.claim != group.claim:
        whose = f"the ResourceClaim {group.claim}" if group.claim else "variables"
        text = f"group {group.name} hands its devices over by {whose}, which the pod was not given at its creation"
        return Reason(ReasonKind.NOT_INJECTED, text, RECREATE_POD)
    if lacking := pod.lacking(vendors_of(group.spec.resources if group else () if pod.group else share.of)):
        cure = UnreadableObject("Pod", pod.metadata.key, "").cure
        return _fault("the pod", pod.metadata, cure) or not_injected(lacking)
    if share.faults:
        return Reason(ReasonKind.INVALID_SPEC, f"the share is invalid: {share.faults[0]}", RECREATE_POD)
    if share and (reason := oversize(pod.sharer, share)):
        return reason
    if not pod.group:
        return gated
    if group is None:
        return missing(pod)
    if share and not set(share.of) & group.spec.resources.keys():
        text = f"group {group.name} has no devices of which {listed(share.resources)} asks for a part"
        return Reason(ReasonKind.INVALID_SPEC, text, "ask for a part of the group's devices, or leave one of both out")
    if group.deleting:
        text = f"group {pod.group} is being deleted and takes no pods"
        return Reason(ReasonKind.GROUP_DELETING, text, "recreate it when it is gone")
    return invalid(group) or namespaces.obstacle(group, pod.metadata.namespace) or gated


def not_injected(lacking: Iterable[str]) -> Reason:
    """Why a pod can't be bound that lacks these parts of the injection."""
    text = f"deviceshare did not inject {listed(lacking)}, so its containers could see other devices"
    return Reason(ReasonKind.NOT_INJECTED, text, RECREATE_POD)


def missing(pod: Pod) -> Reason:
    """Why a pod waits whose group isn't there."""
    return Reason(ReasonKind.GROUP_MISSING, f"group {pod.group} does not exist", "create it")


def invalid(group: Group) -> Reason | None:
    """Why no node can have the group: its spec, or that it can't be read."""
    cure = f"kubectl edit sdg {group.name}"
    if group.metadata.fault:
        return Reason(ReasonKind.UNREADABLE, f"group {group.name} can't be read ({group.metadata.fault})", cure)
    if not (faults := spec_faults(group.spec)):
        return None
    return Reason(ReasonKind.INVALID_SPEC, f"group {group.name} is invalid: {faults[0]}", cure, tuple(faults[1:]))


def left_out(pod: Pod) -> Reason:
    """Why a pod can't join the group that it names: its namespace is excluded (pod_guard.py)."""
    what = "have shares of devices" if "/" in pod.left_out else f"join group {pod.left_out}"
    text = f"deviceshare leaves namespace {pod.metadata.namespace} out, so none of its pods can {what}"
    setting = "webhooks.excludedNamespaces in the chart's values (--excluded-namespaces)"
    cure = f"create it in another one, or take this one out of {setting}"
    return Reason(ReasonKind.NAMESPACE_LEFT_OUT, text, cure)


def behind_gates(pods: Iterable[Pod]) -> str:
    """What gated pods wait for, such as Kueue's: the end of a sentence about one of them."""
    names = sorted({gate for pod in pods for gate in pod.gates})
    gates = "scheduling gate" if len(names) == 1 else "scheduling gates"
    return f"waits for its {gates} {listed(names, most=SHOWN_GATES)} to be removed"
