"""What leaders do in the model about nodes and ledgers: Move, retire, and the repair of what is missing (claims.md).

A ledger disappears only once it is empty, or by force. A missing one is created new: nobody claims or joins by it until
it has been filled with the claims that groups and live pods speak of.
"""

from functools import partial

from tests.model.leaders import Begun, begin, idle_leaders, release_1
from tests.model.rules import Rule
from tests.model.world import (
    ALIVE,
    GONE,
    GROUPS,
    LEDGERS,
    LIVE,
    NOWHERE,
    PENDING,
    Draft,
    ModelClaim,
    ModelLedger,
    ModelProcess,
    group_bit,
    ledger_bit,
    step,
)


def moves(world: Draft) -> Begun:
    """A release of a group whose node is gone, or whose claim names no devices, since others have what it had."""
    for leader in idle_leaders(world):
        for holder, group in enumerate(world.groups):
            claim = world.claim(group.node, holder) if group.node != NOWHERE and group.life != GONE else None
            if claim and (claim.device == NOWHERE or not world.nodes[group.node]):
                yield (
                    f"leader {leader} moves {holder} off {group.node}: 1",
                    partial(begin, leader=leader, holder=holder, node=group.node, first=release_1),
                )


def retirements(world: Draft) -> Begun:
    """Of an empty ledger that is being deleted, or whose node is gone."""
    for leader in idle_leaders(world):
        for node, ledger in enumerate(world.ledgers):
            if ledger and not ledger.claims and (ledger.deleting or not world.nodes[node]):
                yield (
                    f"leader {leader} retires ledger {node}: 1",
                    partial(begin, leader=leader, holder=0, node=node, first=retire_1),
                )


@step(LEDGERS)
def retire_1(world: Draft, me: ModelProcess) -> object:
    """Read L, empty."""
    return world.go(me.saw(ledger_bit(me.node)), retire_2)


@step(LEDGERS)
def retire_2(world: Draft, me: ModelProcess) -> object:
    """CAS the finalizer away with that version. (DELETE alone harms nobody: L serves on.)"""
    if me.has(ledger_bit(me.node)) or not world.must(Rule.RETIRE_CAS):
        world.write_ledger(me.node, None)
    return None


def creations(world: Draft) -> Begun:
    """Of a ledger that is missing where a node is, or where anybody is: new, and empty."""
    for node, ledger in enumerate(world.ledgers):
        if ledger is None and (world.nodes[node] or _evidence(world, node)):
            yield (
                f"ledger {node} is created",
                partial(Draft.write_ledger, node=node, ledger=ModelLedger(False, False, ())),
            )


def _evidence(world: Draft, node: int) -> list[ModelClaim]:
    """Who holds what on the node, by live pods, then by groups."""
    pods = [(pod.group, pod.device) for pod in world.pods if pod.phase == LIVE and pod.node == node]
    groups = [
        (number, group.device) for number, group in enumerate(world.groups) if group.node == node and group.life != GONE
    ]
    found: dict[int, ModelClaim] = {}
    for holder, device in (*pods, *groups):
        if holder not in found:
            here = world.groups[holder].node == node and world.groups[holder].life != GONE
            token = world.groups[holder].token if here else world.new_token(holder)
            found[holder] = ModelClaim(holder, device, world.must(Rule.REPAIR_MARK), token)
    return sorted(found.values())


def repairs(world: Draft) -> Begun:
    """Of a ledger that is new, or that lacks a claim of a group bound there, or of a live pod."""
    for leader in idle_leaders(world):
        for node, ledger in enumerate(world.ledgers):
            if ledger and (not ledger.open or _missing(world, node, ledger)):
                yield (
                    f"leader {leader} repairs ledger {node}: 1",
                    partial(begin, leader=leader, holder=0, node=node, first=repair_1),
                )


def _missing(world: Draft, node: int, ledger: ModelLedger) -> list[ModelClaim]:
    return [claim for claim in _evidence(world, node) if ledger.claim_of(claim.holder) is None]


@step(LEDGERS)
def repair_1(world: Draft, me: ModelProcess) -> object:
    """GET L. It is new, and pods are pending → wait: a bind may be under way that read an earlier one."""
    ledger = world.ledgers[me.node]
    if ledger is None:
        return None
    if not ledger.open and world.must(Rule.OPEN_WAIT) and any(pod.phase == PENDING for pod in world.pods):
        world.begin_to_wait(me.leader, by_clock=True)
        return world.go(me.saw(ledger_bit(me.node)), repair_wait)
    return world.go(me.saw(ledger_bit(me.node)), repair_2)


@step(LEDGERS)
def repair_wait(world: Draft, me: ModelProcess) -> object:
    """Since this very ledger was seen."""
    return world.go(me, repair_2) if world.binds_over(me.leader, by_clock=True) else False


@step(LEDGERS)
def repair_2(world: Draft, me: ModelProcess) -> object:
    """LIST groups and pods."""
    ledger = world.ledgers[me.node]
    if ledger is None:
        return None
    found = ledger.claims
    for claim in _missing(world, me.node, ledger):
        taken = any(each.device == claim.device for each in found)
        found = (*found, claim._replace(device=NOWHERE) if taken else claim)
    return world.go(me._replace(found=tuple(sorted(found))), repair_3)


@step(LEDGERS)
def repair_3(world: Draft, me: ModelProcess) -> object:
    """CAS L with these claims. A new one is open from here on."""
    ledger = world.ledgers[me.node]
    if ledger is not None and (me.has(ledger_bit(me.node)) or not world.must(Rule.REPAIR_CAS)):
        world.write_ledger(me.node, ModelLedger(True, ledger.deleting, me.found))
    return None


def namings(world: Draft) -> Begun:
    """Of a claim of a bound group that the group doesn't name."""
    for leader in idle_leaders(world):
        for holder, group in enumerate(world.groups):
            claim = world.claim(group.node, holder) if group.life == ALIVE and group.node != NOWHERE else None
            if claim and not claim.marked and claim.token != group.token:
                yield (
                    f"leader {leader} names the claim of {holder} on {group.node}: 1",
                    partial(begin, leader=leader, holder=holder, node=group.node, first=name_1),
                )


@step(GROUPS)
def name_1(world: Draft, me: ModelProcess) -> object:
    """Read G."""
    return world.go(me.saw(group_bit(me.holder)), name_2) if world.groups[me.holder].node == me.node else None


@step(GROUPS)
def name_2(world: Draft, me: ModelProcess) -> object:
    """GET L: the claim is there, unmarked."""
    claim = world.claim(me.node, me.holder)
    if claim is None or claim.marked:
        return None
    return world.go(me._replace(device=claim.device, token=claim.token), name_3)


@step(GROUPS)
def name_3(world: Draft, me: ModelProcess) -> object:
    """CAS G with that token."""
    if me.has(group_bit(me.holder)) and world.groups[me.holder].life != GONE:
        world.write_home(me.holder, me.node, me.device, me.token)
    return None
