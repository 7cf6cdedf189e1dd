"""Sources: where the inventory of each shared node comes from, and what DRA allocates of it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from deviceshare.doctor.findings import PROBLEM, WARNING, Check, Finding, check, listed, unread
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import is_some
from deviceshare.domain.placement import annotated_devices
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.join_obstacles import claimed_twice
from deviceshare.domain.placement.ledger_budget import BUDGET, crowding
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.ports import ApiError, Cluster

Ledgers = Mapping[str, NodeDevices]
"""By node."""

ANNOTATION: Final = f"its annotation {contract.INVENTORY_ANNOTATION}"
AGENT: Final = "deviceshare's agent"
SLICES: Final = "ResourceSlices of its DRA driver"
COUNTED: Final = "its labels and allocatable resources"


async def examine(api: Cluster) -> Check:
    """Looks at shared nodes and their ledgers, into which the leader writes what DRA drivers publish."""
    try:
        nodes, ledgers = await api.list(NODES), await api.list(NODE_DEVICES)
    except ApiError as error:
        return check("inventory", "", [unread("nodes and their ledgers (NodeDevices)", error)])
    shared, books = [node for node in nodes if node.shared], {ledger.node: ledger for ledger in ledgers}
    return check("inventory", summary(shared, books) or "no shared node has devices", judge(shared, books))


def summary(shared: Iterable[Node], ledgers: Ledgers) -> str:
    """Which nodes have which source: `nvidia.com/gpu from deviceshare's agent: n1 and n2`."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in shared:
        for source, resources in sources(node, _status(node, ledgers)).items():
            found[f"{listed(sorted(resources))} from {source}"].append(node.metadata.name)
    return "; ".join(f"{what}: {listed(names)}" for what, names in sorted(found.items()))


def judge(shared: Sequence[Node], ledgers: Ledgers) -> list[Finding]:
    """One finding for nodes with a device plugin and a DRA driver, one for each double claim or allocation, and one for
    each ledger that has no room for much more."""
    both = [
        node.metadata.name
        for node in shared
        if any(is_some(node.status.allocatable.get(each)) for each in _status(node, ledgers).published.resources)
    ]
    what = f"a device plugin and a DRA driver both allocate the same devices: {listed(both)}"
    findings = [Finding(WARNING, what, "let one of the two serve the node: neither knows of the other")] if both else []
    for node in shared:
        if ledger := ledgers.get(node.metadata.name):
            findings += [*_twice(ledger), *_crowded(ledger)]
    return findings


def _status(node: Node, ledgers: Ledgers) -> LedgerStatus:
    ledger = ledgers.get(node.metadata.name)
    return ledger.status if ledger else LedgerStatus()


def sources(node: Node, status: LedgerStatus) -> dict[str, set[str]]:
    """The resources of the node by where they come from, the first source that knows a vendor's devices."""
    named = annotated_devices.read(node.metadata.annotations.get(contract.INVENTORY_ANNOTATION, "")).resources
    reported = {part.resource for part in status.hardware.devices}
    every = {*named, *reported, *status.published.resources, *(device.resource for device in status.devices)}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for resource in every:
        theirs = {each for each in named if vendors.vendor_of(each) is vendors.vendor_of(resource)}
        if theirs:
            source = ANNOTATION
        elif resource in reported:
            source = AGENT
        else:
            source = SLICES if resource in status.published.resources else COUNTED
        found[source].add(resource)
    return dict(found)


def _crowded(ledger: NodeDevices) -> Iterable[Finding]:
    crowded = crowding(ledger)
    if crowded is None:
        return
    namespace, most = max(crowded.namespaces, key=lambda each: each[1])
    what = f"claims take {crowded.used} of the {BUDGET} bytes that they may take of the ledger of {ledger.node}"
    cure = f"delete pods with shares there ({namespace or 'groups'} has {most} bytes), or share another node"
    yield Finding(WARNING if crowded.used <= BUDGET else PROBLEM, what, cure)


def _twice(ledger: NodeDevices) -> Iterable[Finding]:
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
