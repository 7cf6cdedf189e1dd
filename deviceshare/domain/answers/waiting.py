"""Why a group waits, in words for the person who waits.

The same facts as the extender's reasons, but with who holds what, and bounded: a condition must stay readable on 300
nodes.
"""

import heapq
from collections.abc import Iterable, Mapping

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import identities, selected
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import TOO_FULL, Fleet
from deviceshare.domain.placement.inventory import KEPT_OUT
from deviceshare.domain.wording import listed

SHOWN_NODES = 5
SHOWN_GATES = 3


def explain(fleet: Fleet, group: Group) -> str:
    """What an unbound group waits for, and who is in the way on which node."""
    home = fleet.home(group)
    if home:
        # A bind died half-way: its claim is there, and the group's next pod goes to it.
        obstacle = fleet.joining_obstacle(group, home)
        return f"waiting for a pod to be placed on node {home}" + (f": {obstacle}" if obstacle else "")
    wants = listed(f"{count} {resource}" for resource, count in sorted(group.spec.resources.items()))
    shared = [name for name in fleet.names() if _shared(fleet, name)]
    if not shared:
        label = f"{contract.MODE_LABEL}={contract.MODE_SHARED}"
        return f"waiting for {wants}: no node is shared; share one with kubectl label node NODE {label}"
    names = [name for name in shared if _selected(fleet, name, group.spec.node_selector)]
    if not names:
        selector = ",".join(f"{key}={value}" for key, value in sorted(group.spec.node_selector.items()))
        return f"waiting for {wants}: none of {len(shared)} shared nodes matches spec.nodeSelector {selector}"
    fits, reasons = fleet.filter(group, names)
    if fits:
        have = "1 shared node has" if len(fits) == 1 else f"{len(fits)} shared nodes have"
        return f"{have} {wants} free; what else its pods wait for is in their events (kubectl describe pod)"
    # Nodes that only lack devices first: on the others something else has to change before devices help.
    shown = heapq.nsmallest(SHOWN_NODES, names, key=lambda name: (not reasons[name].startswith(TOO_FULL), name))
    lines = [
        f"{name}: {_holders(fleet, group, name) if reasons[name].startswith(TOO_FULL) else reasons[name]}"
        for name in shown
    ]
    rest = len(names) - len(shown)
    if rest:
        lines.append("and 1 more node" if rest == 1 else f"and {rest} more nodes")
    where = "which no shared node that matches its nodeSelector" if group.spec.node_selector else "which no shared node"
    return f"waiting for {wants}, {where} has free; " + "; ".join(lines)


def behind_gates(pods: Iterable[Pod]) -> str:
    """What pods wait for that somebody else holds back, as Kueue does: the end of a sentence about one of them."""
    names = sorted({gate for pod in pods for gate in pod.gates})
    gates = "scheduling gate" if len(names) == 1 else "scheduling gates"
    return f"waits for its {gates} {listed(names, most=SHOWN_GATES)} to be removed"


def _shared(fleet: Fleet, name: str) -> bool:
    node = fleet.node(name)
    return node is not None and node.shared


def _selected(fleet: Fleet, name: str, selector: Mapping[str, str]) -> bool:
    node = fleet.node(name)
    return node is not None and node.metadata.labels.items() >= selector.items()


def _holders(fleet: Fleet, group: Group, name: str) -> str:
    resources = sorted(group.spec.resources)
    texts = (_resource_line(fleet, name, resource) for resource in resources)
    if len(resources) == 1:
        return next(texts)
    return ", ".join(f"{resource} {text}" for resource, text in zip(resources, texts, strict=True))


def _resource_line(fleet: Fleet, name: str, resource: str) -> str:
    ledger = fleet.ledger(name) or NodeDevices()
    total = sum(device.resource == resource for device in ledger.devices)
    free = sum(device.resource == resource for device in fleet.free(name))
    return f"{free} of {total} free" + _bracketed([*_holding(ledger, resource), *_withheld(ledger, resource)])


def _holding(ledger: NodeDevices, resource: str) -> Iterable[str]:
    for claim in sorted(ledger.claims.values(), key=lambda claim: claim.group):
        verbs = {"still uses" if claim.releasing else "holds": ledger.held(claim), "may still use": claim.former}
        for verb, devices in verbs.items():
            if indices := selected(devices).get(resource):
                yield f"{claim.group} {verb} {indices}"


def _withheld(ledger: NodeDevices, resource: str) -> Iterable[str]:
    """The devices that no group holds and yet nobody is given."""
    reasons = dict.fromkeys(ledger.left(), "is left to the device plugin")
    reasons |= {device: f"is {reason}" for device, reason in ledger.kept_out.items() if reason == KEPT_OUT}
    reasons |= {device: f"is pod {pod}'s" for device, pod in ledger.allocated().items()}
    reasons |= dict.fromkeys(ledger.split(), "is split by MIG")
    reasons |= {device: f"is unhealthy: {reason}" for device, reason in ledger.unhealthy().items()}
    claimed = identities(ledger.claimed())
    for device in sorted(reasons):
        if device.resource == resource and device.identity not in claimed:
            yield f"{device.index} {reasons[device]}"


def _bracketed(texts: Iterable[str]) -> str:
    joined = "; ".join(texts)
    return f" ({joined})" if joined else ""
