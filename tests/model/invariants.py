"""What must hold in every state of the model, and when it is settled."""

from tests.model.repairs import repairs
from tests.model.world import GONE, LIVE, NOWHERE, Bounds, WorldState
from tests.model.worldly import ledgers_are_lost


def broken(bounds: Bounds, state: WorldState) -> str:
    """What is wrong, or ""."""
    return _pods(bounds, state) or _groups(bounds, state)


def _pods(bounds: Bounds, state: WorldState) -> str:
    homes: dict[int, int] = {}
    owners: dict[tuple[int, int], int] = {}
    for pod in state.pods:
        if pod.phase != LIVE:
            continue
        if homes.setdefault(pod.group, pod.node) != pod.node:
            return "a group lives on two nodes"
        if owners.setdefault((pod.node, pod.device), pod.group) != pod.group:
            return "live pods of two groups hold a device"
        group, ledger = state.groups[pod.group], state.ledgers[pod.node]
        if ledger is None and ledgers_are_lost not in bounds.actions:
            return "a ledger with claims has disappeared, and nobody removed its finalizer by force"
        if (
            not bounds.shares
            and group.life != GONE
            and group.node != pod.node
            and not (group.node == NOWHERE and bounds.wipes)
        ):
            return "a pod lives on a node, and its group isn't bound there"
        claim = ledger.claim_of(pod.group) if ledger and ledger.open else None
        lost = claim.device != pod.device if claim else not bounds.careless
        if ledger and ledger.open and lost:
            return "a live pod has lost its device"
        if bounds.finalizers and group.life == GONE:
            return "a group is gone, and a pod of it lives"
    return ""


def _groups(bounds: Bounds, state: WorldState) -> str:
    """Where nothing would repair it, no bound group may ever lack its claim; elsewhere it must not when all is done."""
    if repairs not in bounds.actions and _unclaimed(state):
        return "a bound group has no claim"
    return ""


def _unclaimed(state: WorldState) -> bool:
    for number, group in enumerate(state.groups):
        if group.life != GONE and group.node != NOWHERE:
            ledger = state.ledgers[group.node]
            if ledger and ledger.open and ledger.claim_of(number) is None:
                return True
    return False


def settled(state: WorldState) -> bool:
    """Nothing is under way, and each claim is of a group that is bound there, unmarked, or of pods that live there."""
    if state.processes or _unclaimed(state):
        return False
    for number, group in enumerate(state.groups):
        if group.node != NOWHERE and not state.nodes[group.node] and not _lives(state, number, group.node):
            return False
    for node, ledger in enumerate(state.ledgers):
        if state.nodes[node]:
            if ledger is None or not ledger.open or (ledger.deleting and not ledger.claims):
                return False
        elif ledger is not None and not ledger.claims:
            return False
        for claim in ledger.claims if ledger else ():
            group = state.groups[claim.holder]
            here = group.life != GONE and group.node == node
            if not _lives(state, claim.holder, node) and not (here and not claim.marked):
                return False
    return True


def _lives(state: WorldState, group: int, node: int) -> bool:
    return any(pod.phase == LIVE and (pod.group, pod.node) == (group, node) for pod in state.pods)
