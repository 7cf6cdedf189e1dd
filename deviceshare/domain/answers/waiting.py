"""Why a group waits, in words for the person who waits.

The same facts as the extender's reasons, but with who holds what, and bounded: a condition must stay readable on 300
nodes.
"""

import heapq
from collections.abc import Iterable, Mapping
from typing import Final

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.device_state import DeviceState, Use
from deviceshare.domain.placement.device_states import numbers
from deviceshare.domain.placement.fleet import TOO_FULL, Fleet

SHOWN_NODES = 5
SHOWN_GATES = 3


def explain(fleet: Fleet, group: Group) -> str:
    """What an unbound group waits for, and who is in the way on which node."""
    home = fleet.home(group)
    if home:
        # A bind died half-way: its claim is there, and the group's next pod goes to it.
        obstacle = fleet.joining_obstacle(group, home)
        return f"waiting for a pod to be placed on node {home}" + (f": {obstacle}" if obstacle else "")
    wants = " and ".join(f"{count} {resource}" for resource, count in sorted(group.spec.resources.items()))
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
    more = f" and {len(names) - SHOWN_GATES} more" if len(names) > SHOWN_GATES else ""
    gates = "scheduling gate" if len(names) == 1 else "scheduling gates"
    return f"waits for its {gates} {', '.join(names[:SHOWN_GATES])}{more} to be removed"


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
    states = [state for state in fleet.states(name) if state.device.resource == resource]
    total = sum(state.offered for state in states)
    free = sum(device.resource == resource for device in fleet.free(name))
    return f"{free} of {total} free" + _bracketed(
        [*_holding(states), *_barred(each for each in states if not each.claim)]
    )


def _holding(states: Iterable[DeviceState]) -> Iterable[str]:
    mine: dict[tuple[str, str, str], list[DeviceState]] = {}
    for state in states:
        if state.claim:
            mine.setdefault((state.group, state.uid, _VERBS[state.use]), []).append(state)
    for (group, _, verb), theirs in sorted(mine.items()):
        barred = ", ".join(_barred(theirs))
        yield f"{group} {verb} {numbers(theirs)}" + (f", of which {barred}" if barred else "")


def _barred(states: Iterable[DeviceState]) -> Iterable[str]:
    """The devices that no group gets, whoever has them."""
    for state in states:
        if barriers := state.barriers:
            yield f"{state.device.index} is {' and '.join(barriers.values())}"


_VERBS: Final = {Use.HELD: "holds", Use.RELEASING: "still uses", Use.FORMER: "may still use"}


def _bracketed(texts: Iterable[str]) -> str:
    joined = "; ".join(texts)
    return f" ({joined})" if joined else ""
