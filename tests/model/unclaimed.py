"""Groups without a claim in the model (claims.md, repair): one that is bound where an open ledger lacks its claim.

It leaves that node, unless a pod of it lives there: then the pod's devices are claimed again.
"""

from functools import partial

from tests.model.leaders import Begun, begin, idle_leaders, touch_pending
from tests.model.rules import Rule
from tests.model.world import (
    ALIVE,
    CLAIMS,
    GONE,
    GROUPS,
    LEDGERS,
    NOWHERE,
    Draft,
    ModelClaim,
    ModelProcess,
    claim_bit,
    group_bit,
    ledger_bit,
    step,
)


def claims_are_deleted(world: Draft) -> Begun:
    """By a careless hand, whoever uses it."""
    for node, ledger in enumerate(world.ledgers):
        for claim in ledger.claims if ledger else ():
            if world.spent[2] < world.bounds.misfortunes:
                yield (
                    f"the claim of {claim.holder} on {node} is deleted",
                    partial(_claim_is_deleted, node=node, holder=claim.holder),
                )


def _claim_is_deleted(world: Draft, node: int, holder: int) -> None:
    world.spent[2] += 1
    world.write_claim(node, holder, None)


def unclaimed(world: Draft) -> Begun:
    """Of a group that is bound where an open ledger has no claim of it. That no pod lives there is looked at later."""
    for leader in idle_leaders(world):
        for holder, group in enumerate(world.groups):
            if group.life == ALIVE and group.node != NOWHERE and _lacks(world, group.node, holder):
                yield (
                    f"leader {leader} has {holder} leave {group.node}: 1",
                    partial(begin, leader=leader, holder=holder, node=group.node, first=leave_1),
                )


def _lacks(world: Draft, node: int, holder: int) -> bool:
    ledger = world.ledgers[node]
    return ledger is not None and ledger.open and ledger.claim_of(holder) is None


@step(LEDGERS, CLAIMS)
def leave_1(world: Draft, me: ModelProcess) -> object:
    """GET L: open, without the claim. From here on the leader notices when the claim is there again."""
    if not _lacks(world, me.node, me.holder):
        return None
    return world.go(me.saw(claim_bit(me.holder)), leave_2)


@step(CLAIMS)
def leave_2(world: Draft, me: ModelProcess) -> object:
    """Touch pending pods: a bind that read the claim before it was lost may be under way."""
    if world.must(Rule.LEAVE_2_WAIT):
        touch_pending(world, me.holder)
    world.begin_to_wait(me.leader)
    return world.go(me, leave_3)


@step(GROUPS, CLAIMS)
def leave_3(world: Draft, me: ModelProcess) -> object:
    """When binds that began before are over, and the claim was missing all the time: read G."""
    if world.must(Rule.LEAVE_2_WAIT) and not world.binds_over(me.leader):
        return False
    group = world.groups[me.holder]
    if group.life != ALIVE or group.node != me.node:
        return None
    if not me.has(claim_bit(me.holder)) and world.must(Rule.LEAVE_2_SINCE):
        return None
    return world.go(me.saw(group_bit(me.holder)), leave_3_ledger)


@step(GROUPS, LEDGERS, CLAIMS)
def leave_3_ledger(world: Draft, me: ModelProcess) -> object:
    """GET L once more."""
    if not _lacks(world, me.node, me.holder):
        return None
    if not me.has(claim_bit(me.holder)) and world.must(Rule.LEAVE_2_SINCE):
        return None
    return world.go(me.saw(ledger_bit(me.node)), leave_3_list)


@step(GROUPS, LEDGERS)
def leave_3_list(world: Draft, me: ModelProcess) -> object:
    """LIST the pods. One lives here → stop: its devices are claimed again."""
    if world.live(me.holder, me.node) and world.must(Rule.LEAVE_3_LIST):
        return None
    return world.go(me, leave_3_write)


@step(GROUPS, LEDGERS)
def leave_3_write(world: Draft, me: ModelProcess) -> object:
    """CAS L, with the version of that GET: nobody has claimed since, and who read L before can't any more."""
    if not me.has(ledger_bit(me.node)) and world.must(Rule.LEAVE_3_CAS):
        return None
    if world.ledgers[me.node] is not None and world.must(Rule.LEAVE_3_WRITE):
        world.write_ledger(me.node, world.ledgers[me.node])
    return world.go(me, leave_4)


@step(GROUPS)
def leave_4(world: Draft, me: ModelProcess) -> object:
    """CAS G to no node, with the version of step 3."""
    group = world.groups[me.holder]
    if group.life == GONE or (not me.has(group_bit(me.holder)) and world.must(Rule.LEAVE_4_CAS)):
        return None
    world.write_home(me.holder, NOWHERE, 0, 0)
    return None


def coverings(world: Draft) -> Begun:
    """Of a live pod whose node has an open ledger without its claim."""
    for leader in idle_leaders(world):
        for pod in {pod for pod in world.pods if pod.node != NOWHERE and _lacks(world, pod.node, pod.group)}:
            yield (
                f"leader {leader} covers {pod.group} on {pod.node}: 1",
                partial(begin, leader=leader, holder=pod.group, node=pod.node, first=cover_1),
            )


@step(LEDGERS)
def cover_1(world: Draft, me: ModelProcess) -> object:
    """GET L."""
    return world.go(me.saw(ledger_bit(me.node)), cover_2) if _lacks(world, me.node, me.holder) else None


@step(LEDGERS)
def cover_2(world: Draft, me: ModelProcess) -> object:
    """LIST the pods that live here. The claim is the one that G names, if it is bound here; else a new one."""
    living = world.live(me.holder, me.node)
    if not living:
        return None
    group = world.groups[me.holder]
    token = group.token if group.life != GONE and group.node == me.node else world.new_token(me.holder)
    return world.go(me._replace(device=living[0].device, token=token), cover_3)


@step(LEDGERS)
def cover_3(world: Draft, me: ModelProcess) -> object:
    """CAS L with the claim, if its device is free."""
    if me.has(ledger_bit(me.node)) and me.device in world.free(me.node):
        world.write_claim(me.node, me.holder, ModelClaim(me.holder, me.device, False, me.token))
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
