"""Nodes, their ledgers, groups and pods: what keeps devices from groups, and pods waiting."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from deviceshare.doctor.findings import OK, PROBLEM, WARNING, Check, Finding, about, check, listed, logs, unread
from deviceshare.doctor.kinds import Installation
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import NO_HARDWARE, Withheld
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import is_some
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.placement import shared_resources
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.holds import not_held
from deviceshare.domain.placement.inventory import KEPT_OUT, take
from deviceshare.domain.placement.join_obstacles import UnreadableObject, claimed_twice, request_of, unreadable
from deviceshare.domain.placement.ledger_budget import BUDGET, crowding
from deviceshare.domain.placement.node_choice import ruled_out
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS, SHARED_NODES
from deviceshare.loops.ports import ApiError, Cluster, Kind

ALIKE: Final = 0.85
"""How similar a label's key must be to ours to be regarded as a slip, as `deviceshare/mode` is."""
_SHARE: Final = f"kubectl label node NODE --overwrite {contract.MODE_LABEL}={contract.MODE_SHARED}"
_LOOKED_AT: Final[tuple[tuple[Kind[Any], dict[str, str]], ...]] = (
    (GROUPS, {}),
    (NODE_DEVICES, {}),
    (NODES, {"label_selector": SHARED_NODES}),
    (PODS, {"field_selector": "status.phase!=Succeeded,status.phase!=Failed"}),
)
"""What is judged by whether it can be read: what it hides counts as in use."""

ANNOTATION: Final = f"its annotation {contract.INVENTORY_ANNOTATION}"
AGENT: Final = "deviceshare's agent"
SLICES: Final = "ResourceSlices of its DRA driver"
COUNTED: Final = "its labels and allocatable resources"
"""Sources of an inventory."""

Ledgers = Mapping[str, NodeDevices]
"""By node."""
_Found = defaultdict[str, list[str]]
"""The nodes of which something is to be said."""


async def examine_objects(api: Cluster) -> tuple[str, list[Finding]]:
    """Lists groups, ledgers, shared nodes, and the pods that haven't ended."""
    findings: list[Finding] = []
    for kind, selectors in _LOOKED_AT:
        try:
            objects = await api.list(kind, **selectors)
        except ApiError as error:
            findings.append(unread(kind.plural, error))
        else:
            findings += judge_unreadable(unreadable(kind.kind, (each.metadata for each in objects)))
    return "groups, ledgers, shared nodes and pods can all be read", findings


def judge_unreadable(found: Iterable[UnreadableObject]) -> list[Finding]:
    """One finding for each unreadable object."""
    return [Finding(PROBLEM, f"{each.kind} {each.name} can't be read: {each.fault}", each.cure) for each in found]


async def examine(api: Cluster, ours: Installation) -> AsyncIterator[Check]:
    """The checks that need nodes and their ledgers, which are listed once for all of them."""
    what, pods_too = "nodes and their ledgers (NodeDevices)", "nodes, ledgers, groups and their pods"
    nodes: list[Node] | None = None
    try:
        nodes = await api.list(NODES)
        ledgers = {ledger.node: ledger for ledger in await api.list(NODE_DEVICES)}
    except ApiError as error:
        known = [] if nodes is None else judge(nodes, None, ours.namespace)
        yield check("nodes", "", [*known, unread("nodes" if nodes is None else "ledgers (NodeDevices)", error)])
        for name in ("inventory", "waiting pods", "plugin", "shares"):
            yield check(name, "", [unread(pods_too if name == "waiting pods" else what, error)])
        return
    shared = [node for node in nodes if node.shared]
    total = sum(len(ledger.devices) for ledger in ledgers.values())
    free = sum(state.free for ledger in ledgers.values() for state in device_states(ledger))
    said = f"{len(shared)} shared, {total} devices, {free} of them free"
    yield check("nodes", said, judge(nodes, ledgers, ours.namespace))
    said = summary(shared, ledgers) or "no shared node has devices"
    yield check("inventory", said, judge_inventory(shared, ledgers))
    try:
        groups, pods = await api.list(GROUPS), await api.list(PODS, label_selector=contract.GROUP)
    except ApiError as error:
        yield check("waiting pods", "", [unread(pods_too, error)])
    else:
        said = f"{sum(pod.pending for pod in pods)} waiting, none of them barred by its own node affinity"
        findings = [*judge_waiting(nodes, ledgers.values(), groups, pods), *judge_placement(pods, gates=ours.by_gates)]
        yield check("waiting pods", said, [*judge_homes(nodes, groups), *findings])
    said = "no device plugin may allocate a group's devices to a plain pod"
    yield check("plugin", said, judge_plugins(nodes, ledgers.values()))
    said = "the memory of every device is known, and no node advertises a resource of shares itself"
    yield check("shares", said, judge_shares(nodes, ledgers.values()))


# Nodes


def judge(nodes: Sequence[Node], ledgers: Ledgers | None, release: str) -> Iterator[Finding]:
    """What is wrong with the nodes; without ledgers, as far as node objects show it."""
    if not any(node.shared for node in nodes):
        able = [node.metadata.name for node in nodes if take(node, NO_HARDWARE).devices]
        hint = f"; these have devices: {listed(able)}" if able else ""
        yield Finding(PROBLEM, f"no node is shared, so no group can be placed{hint}", _SHARE)
    yield from _slips(nodes)
    bare, unbooked, unready = [], [], []
    withheld: dict[str, tuple[Withheld, list[str]]] = {}
    for node in (each for each in nodes if each.shared):
        name = node.metadata.name
        status = _status(node, ledgers or {})
        inventory = take(node, status.hardware, status.published)
        kept_out = [each for each in inventory.withheld if each.reason == KEPT_OUT and not inventory.faults]
        for each in (*kept_out, *inventory.untold):
            withheld.setdefault(str(each), (each, []))[1].append(name)
        if not inventory.devices and not inventory.withheld:
            bare.append(name)
        elif ledgers is not None and name not in ledgers:
            unbooked.append(name)
        if not node.ready:
            unready.append(name)
        for fault in inventory.faults:
            cure = f"kubectl annotate node {name} --overwrite {fault.annotation}=nvidia.com/gpu=0-3"
            yield Finding(PROBLEM, f"annotation {fault.annotation} of {name}: {fault.text}", cure)
    for each, names in withheld.values():
        if each.reason == KEPT_OUT:
            yield from about(names, OK, str(each), "")
        else:
            yield from about(names, WARNING, f"no group gets {each.named}: {each.reason}", each.cure)
    yield from _counted(nodes)
    declare = f"kubectl annotate node NODE {contract.INVENTORY_ANNOTATION}=nvidia.com/gpu=4"
    cure = f"run the vendor's device plugin or deviceshare's agent there, or declare the devices: {declare}"
    yield from about(bare, WARNING, "shared, but without devices", cure)
    what = "shared, but without a ledger (NodeDevices), so no leader is running"
    yield from about(unbooked, PROBLEM, what, logs(release, contract.NAME))
    yield from about(unready, WARNING, "shared, but not Ready", "kubectl describe node NODE")


def _status(node: Node, ledgers: Ledgers) -> LedgerStatus:
    ledger = ledgers.get(node.metadata.name)
    return ledger.status if ledger else LedgerStatus()


def _slips(nodes: Iterable[Node]) -> Iterator[Finding]:
    slips = _Found(list)
    for node in nodes:
        for key, value in node.metadata.labels.items():
            if key == contract.MODE_LABEL:
                slip = value != contract.MODE_SHARED
            else:  # the check of the hand-over reports a wrong value of its label, which makes the node offer nothing
                alike = SequenceMatcher(None, key.lower(), contract.MODE_LABEL).ratio() >= ALIKE
                slip = (key.startswith(contract.PREFIX) or alike) and key != contract.HANDOVER_LABEL
            if slip:
                slips[f"{key}={value}"].append(node.metadata.name)
    for label, names in sorted(slips.items()):
        ours, key = label.startswith(f"{contract.MODE_LABEL}="), label.partition("=")[0]
        cure = _SHARE if ours else f"{_SHARE}; kubectl label node NODE {key}-"
        yield from about(names, WARNING, f"the label {label} {'shares nothing' if ours else 'has no meaning'}", cure)


def _counted(nodes: Iterable[Node]) -> Iterator[Finding]:
    """How the devices of shared nodes were counted where labels, annotations or plugins describe sharing."""
    found = _Found(list)
    for node in (each for each in nodes if each.shared):
        for resource, counted in shared_resources.count_devices(node).items():
            if counted.found and counted.number:
                found[f"{counted.number} {resource} ({counted.found})"].append(node.metadata.name)
    for what, names in sorted(found.items()):
        yield from about(names, OK, what, "")


# Where the inventory of each shared node comes from, and who else allocates what is in it


def summary(shared: Iterable[Node], ledgers: Ledgers) -> str:
    """Which nodes have which source: `nvidia.com/gpu from deviceshare's agent: n1 and n2`."""
    found = _Found(list)
    for node in shared:
        for source, resources in _sources(node, _status(node, ledgers)).items():
            found[f"{listed(resources)} from {source}"].append(node.metadata.name)
    return "; ".join(f"{what}: {listed(names)}" for what, names in sorted(found.items()))


def _sources(node: Node, status: LedgerStatus) -> dict[str, set[str]]:
    """The resources of the node by where they come from, the first source that knows a vendor's devices."""
    named = shared_resources.read_annotated(node.metadata.annotations.get(contract.INVENTORY_ANNOTATION, "")).resources
    annotated = {vendors.vendor_of(each) for each in named}
    reported = {part.resource for part in status.hardware.devices}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for resource in {*named, *reported, *status.published.resources, *(each.resource for each in status.devices)}:
        if vendors.vendor_of(resource) in annotated:
            source = ANNOTATION
        elif resource in reported:
            source = AGENT
        else:
            source = SLICES if resource in status.published.resources else COUNTED
        found[source].add(resource)
    return dict(found)


def judge_inventory(shared: Sequence[Node], ledgers: Ledgers) -> Iterator[Finding]:
    """One finding for nodes with a device plugin and a DRA driver, one for those whose devices DRA may give to others.

    And one for each double claim or allocation, and each ledger with devices to be held, or without room for much more.
    """
    published = {node.metadata.name: _status(node, ledgers).published for node in shared}
    counted = {node.metadata.name: node.status.allocatable for node in shared}
    both = [name for name, each in published.items() if any(is_some(counted[name].get(r)) for r in each.resources)]
    what = "a device plugin and a DRA driver both allocate the same devices"
    yield from about(both, WARNING, what, "let one of the two serve the node: neither knows of the other")
    unheld = [name for name, each in published.items() if each.devices and each.held is None]
    what = "kube-scheduler may give devices of groups and shares to ResourceClaims"
    yield from about(unheld, WARNING, what, "helm upgrade --set dra.holds=true (Kubernetes 1.34 and later)")
    for ledger in filter(None, (ledgers.get(node.metadata.name) for node in shared)):
        states = device_states(ledger)
        for holder in sorted({holder for state in states for holder in state.claimed_twice}):
            if reason := claimed_twice(states, holder):
                yield Finding(PROBLEM, f"{reason.text}, on node {ledger.node}", reason.cure)
        for state in states:
            if state.holders and state.resource_claim:
                who = state.group or "pods with shares"
                what = f"{who} and ResourceClaim {state.resource_claim} both have {state.device}"
                cure = "delete the pods of one of them, and keep DRA from devices of groups"
                yield Finding(PROBLEM, f"{what} of {ledger.node}", cure)
        if reason := not_held(ledger, *ledger.claims):
            yield Finding(WARNING, reason.text, reason.cure)
        if crowded := crowding(ledger):
            namespace, most = max(crowded.namespaces, key=lambda each: each[1])
            what = f"claims take {crowded.used} of the {BUDGET} bytes that they may take of the ledger of {ledger.node}"
            cure = f"delete pods with shares there ({namespace or 'groups'} has {most} bytes), or share another node"
            yield Finding(WARNING if crowded.used <= BUDGET else PROBLEM, what, cure)


# Waiting pods that no change of nodes or devices helps


def judge_waiting(
    nodes: Iterable[Node], ledgers: Iterable[NodeDevices], groups: Iterable[Group], pods: Sequence[Pod]
) -> list[Finding]:
    """One finding for each reason and cure why pods are barred by their own node affinity."""
    fleet = Fleet()
    for node in nodes:
        fleet.set_node(node.metadata.name, node)
    for ledger in ledgers:
        fleet.set_ledger(ledger.node, ledger)
    found, lines = dict[str, Reason](), defaultdict[str, list[Pod]](list)
    for group in groups:
        found |= ruled_out(fleet, group.request, [pod for pod in pods if pod.group == group.name])
    for pod in pods:
        if pod.pending and not pod.group:
            lines[pod.queue_key].append(pod)
    for mine in lines.values():
        if request := request_of(mine[0], None):
            found |= ruled_out(fleet, request, mine)
    alike: defaultdict[Reason, list[str]] = defaultdict(list)
    for key, why in found.items():
        alike[why].append(key)
    return [
        Finding(WARNING, f"{listed(keys)} can't be bound: {reason.text}", reason.cure) for reason, keys in alike.items()
    ]


def judge_homes(nodes: Iterable[Node], groups: Iterable[Group]) -> list[Finding]:
    """Groups that are bound to nodes where no further pod of theirs starts."""
    there = {node.metadata.name: node.spec.unschedulable for node in nodes}
    gone = [group.name for group in groups if group.node and group.node not in there]
    cordoned = [f"{group.name} ({group.node})" for group in groups if there.get(group.node)]
    back = "recreate the nodes, or the groups; or let them move: spec.nodeLossPolicy (docs/operations.md#lost-nodes)"
    stay = "kubectl uncordon NODE; a group without a running pod leaves for one that waits, but for cordonPolicy: Stay"
    what = "no further pod starts where these groups live, since their nodes are cordoned"
    lost = about(gone, PROBLEM, "no pod joins these groups, whose nodes are gone", back)
    return [*lost, *about(cordoned, WARNING, what, stay)]


def judge_placement(pods: Iterable[Pod], *, gates: bool) -> Iterator[Finding]:
    """Pods that were admitted under the other setting of `placement`, and those that did not fit where they are."""

    def of_the_other(pod: Pod) -> bool:
        ours = pod.spec.scheduler_name == contract.SCHEDULER_NAME
        return ours and not pod.spec.scheduling_gates if gates else pod.awaits_placement

    known = list(pods)
    if left := [pod.metadata.key for pod in known if pod.pending and of_the_other(pod)]:
        other = "a kube-scheduler of deviceshare's" if gates else "deviceshare to lift its scheduling gate"
        what = f"{listed(left)} wait for {other}, as this was before `placement` was changed"
        yield Finding(WARNING, what, "delete and recreate the pods")
    for pod in known:
        if pod.placed_on and pod.refusal and not pod.metadata.controller:
            what = f"{pod.metadata.key} was placed on {pod.placed_on}, where it does not fit: {pod.refusal.message}"
            yield Finding(WARNING, what, "delete the pod and create it again")


# Device plugins, and other systems' shares


def judge_plugins(nodes: Iterable[Node], ledgers: Iterable[NodeDevices]) -> list[Finding]:
    """Nodes on which a plain pod and a group could receive the same device."""
    # An agent's placeholders hold only devices that it sees; another vendor's plugin on the node isn't held back.
    kept = {
        ledger.node: {part.resource for part in ledger.hardware.devices}
        for ledger in ledgers
        if ledger.hardware.placeholders
    }
    loose = []
    for node in (each for each in nodes if each.shared):
        # Plugins registered these; the kubelet sets those of a plugin that is gone to 0.
        registered = (resource for resource, quantity in node.status.allocatable.items() if is_some(quantity))
        plugged = {vendors.counted_as(resource) for resource in registered if vendors.plugin_vendor_of(resource)}
        if plugged - kept.get(node.metadata.name, set()):
            loose.append(node.metadata.name)
    cure = "keep it off shared nodes, or have placeholder pods hold the groups' devices (docs/agent.md)"
    return about(loose, WARNING, "the device plugin may allocate a group's devices to a plain pod", cure)


def judge_shares(nodes: Iterable[Node], ledgers: Iterable[NodeDevices]) -> Iterator[Finding]:
    """One finding for each resource that nodes advertise, and one for each of which the memory is unknown."""
    shared = {node.metadata.name: node for node in nodes if node.shared}
    advertised, unknown, counting = _Found(list), _Found(list), _Found(list)
    for name, node in shared.items():
        for resource in shared_resources.advertised(node):
            advertised[resource].append(name)
    shareable = {resource for dialect in DIALECTS.values() for resource in dialect.devices}
    for ledger in (each for each in ledgers if each.node in shared):
        for resource in {device.resource for device in ledger.devices if not ledger.memory_of(device)} & shareable:
            unknown[resource].append(ledger.node)
        if ledger.status.hardware.devices:  # An agent reports; what a DRA driver publishes says nothing of limits.
            counting[ledger.counts_only].append(ledger.node)
    for why, names in sorted(counting.items()):  # no warning: nobody has to enforce them
        text, _, cure = why.partition(": ")
        what = f"aren't enforced on {listed(names)}: {text}" if why else f"can't be exceeded on {listed(names)}"
        yield Finding(OK, f"limits of shares {what}", cure)
    for resource, names in sorted(advertised.items()):
        reason = shared_resources.leftover_reason([resource])
        what = f"{resource} is advertised by {listed(names)}: {reason.text}"
        yield Finding(WARNING, what, reason.cure)
    for resource, names in sorted(unknown.items()):  # no warning: percent works, and so do groups
        there = f"{listed(names)}: that of {resource} isn't known there"
        discovery, label = "GPU feature discovery", "memory=16384"
        if resource != vendors.NVIDIA.resource:
            discovery, label = "AMD's node labeller, with -vram", "vram=16G"
        cure = f"run deviceshare's agent there (agent.enabled=true), or {discovery}"
        cure = f"{cure}; or say how much: kubectl label node NODE {resource}.{label}"
        yield Finding(OK, f"pods that ask for an amount of memory don't go to {there}", cure)
