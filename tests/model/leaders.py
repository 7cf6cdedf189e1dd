"""What leaders do in the model: the steps of Release (claims.md), of claims that nobody needs (collect) and for causes.

There are two leaders, since an old one may still be running. Each does one thing at a time, and may stop for ever
at any step.
"""

from collections.abc import Callable, Iterator
from functools import partial

from tests.model.rules import Rule
from tests.model.world import (
    DELETING,
    GONE,
    GROUPS,
    LEDGERS,
    NOWHERE,
    PENDING,
    STEPS,
    Draft,
    ModelProcess,
    Step,
    group_bit,
    ledger_bit,
    step,
)

Begun = Iterator[tuple[str, Callable[[Draft], object]]]


def idle_leaders(world: Draft) -> list[int]:
    """The first leader that has nothing to do: which of two it is makes no difference."""
    busy = {process.leader for process in world.processes if process.pod == NOWHERE}
    return [leader for leader in range(world.bounds.leaders) if leader not in busy][:1]


def begin(world: Draft, leader: int, holder: int, node: int, first: Step) -> object:
    return first(world, ModelProcess("", leader, holder, NOWHERE, node, 0, 0, 0, 0, ()))


def _claims(world: Draft) -> Iterator[tuple[int, int]]:
    for node, ledger in enumerate(world.ledgers):
        for claim in ledger.claims if ledger else ():
            yield node, claim.holder


def _marked(world: Draft, holder: int, node: int) -> bool:
    claim = world.claim(node, holder)
    return claim is not None and claim.marked


def collections(world: Draft) -> Begun:
    """Of any claim whose group isn't bound there, or that is marked: the mirror that makes it suspect may be old."""
    for leader in idle_leaders(world):
        for node, holder in _claims(world):
            if world.bounds.suspects_only and world.groups[holder].node == node and not _marked(world, holder, node):
                continue
            yield (
                f"leader {leader} collects {holder} on {node}: 1",
                partial(begin, leader=leader, holder=holder, node=node, first=collect_1),
            )


@step(LEDGERS)
def collect_1(world: Draft, me: ModelProcess) -> object:
    """CAS L: mark the claim."""
    claim = world.claim(me.node, me.holder)
    if claim is None:
        return None
    if not world.must(Rule.COLLECT_2_READ):
        return None if world.groups[me.holder].node == me.node else world.go(me, collect_1_late)
    return _mark(world, me, Rule.COLLECT_1_MARK, collect_2)


@step(LEDGERS)
def collect_1_late(world: Draft, me: ModelProcess) -> object:
    """Without the rule that the group is read after the mark."""
    return _mark(world, me, Rule.COLLECT_1_MARK, collect_3) if world.claim(me.node, me.holder) else None


def _mark(world: Draft, me: ModelProcess, rule: Rule, then: Step) -> object:
    claim = world.claim(me.node, me.holder)
    assert claim is not None
    if not claim.marked and world.must(rule):
        world.write_claim(me.node, me.holder, claim._replace(marked=True))
    world.begin_to_wait(me.leader)
    return world.go(me.saw(ledger_bit(me.node)), then)


@step(GROUPS, LEDGERS)
def unmark(world: Draft, me: ModelProcess) -> object:
    """Bump G, if it is still bound here: a Release that read it before can't go on. Then unmark."""
    group = world.groups[me.holder]
    if not world.must(Rule.UNMARK_FENCE):
        return unmark_claim(world, me)
    if group.life == GONE or group.node != me.node:
        return None
    world.write_group(me.holder)
    return world.go(me, unmark_claim)


@step(LEDGERS)
def unmark_claim(world: Draft, me: ModelProcess) -> object:
    """CAS L: take the mark away, with a version that was read before G was bumped."""
    claim = world.claim(me.node, me.holder)
    if claim is not None and claim.marked and me.has(ledger_bit(me.node)):
        world.write_claim(me.node, me.holder, claim._replace(marked=False))
    return None


@step(LEDGERS)
def collect_2(world: Draft, me: ModelProcess) -> object:
    """Read G: bound here after all → unmark. Unbound → bump it."""
    group = world.groups[me.holder]
    if group.life != GONE:
        if group.node == me.node:
            return world.go(me, unmark)
        if group.node == NOWHERE and world.must(Rule.COLLECT_2_FENCE):
            world.write_group(me.holder)
    return world.go(me, collect_3)


@step(LEDGERS)
def collect_3(world: Draft, me: ModelProcess) -> object:
    """LIST the pods. One lives here → keep the claim, marked. Some are pending → touch them, and wait."""
    if world.live(me.holder, me.node) and world.must(Rule.COLLECT_3_LIST):
        return None
    if world.must(Rule.COLLECT_3_WAIT) and touch_pending(world, me.holder):
        return world.go(me, collect_3_again)
    return world.go(me, collect_4)


def touch_pending(world: Draft, group: int) -> bool:
    """Makes Bindings fail whose bind read the pod before; whether there is any pending pod."""
    pending = [number for number, pod in enumerate(world.pods) if pod.group == group and pod.phase == PENDING]
    for number in pending:
        world.write_pod(number)
    return bool(pending)


@step(LEDGERS)
def collect_3_again(world: Draft, me: ModelProcess) -> object:
    """When binds that began before are over, LIST again."""
    if not world.binds_over(me.leader):
        return False
    if world.live(me.holder, me.node) and world.must(Rule.COLLECT_3_AGAIN):
        return None
    return world.go(me, collect_4)


@step(LEDGERS)
def collect_4(world: Draft, me: ModelProcess) -> object:
    """CAS L without the claim, with the version of step 1."""
    return drop(world, me, Rule.COLLECT_4_CAS)


def drop(world: Draft, me: ModelProcess, rule: Rule) -> object:
    if world.claim(me.node, me.holder) and (me.has(ledger_bit(me.node)) or not world.must(rule)):
        world.write_claim(me.node, me.holder, None)
    return None


def releases(world: Draft) -> Begun:
    """Of any group: it says itself when it counts as idle. The mirror that shows no pod may be old."""
    for leader in idle_leaders(world):
        for node, holder in _claims(world):
            if world.groups[holder].node == node:
                yield (
                    f"leader {leader} releases {holder} on {node}: 1",
                    partial(begin, leader=leader, holder=holder, node=node, first=release_1),
                )


@step(LEDGERS)
def release_1(world: Draft, me: ModelProcess) -> object:
    """CAS L: mark the claim, before the group is touched."""
    if world.claim(me.node, me.holder) is None:
        return None
    return _mark(world, me, Rule.RELEASE_1_MARK, release_2)


@step(GROUPS, LEDGERS)
def release_2(world: Draft, me: ModelProcess) -> object:
    """Touch pending pods."""
    if world.must(Rule.RELEASE_2_WAIT):
        touch_pending(world, me.holder)
    return world.go(me, release_3)


@step(GROUPS, LEDGERS)
def release_3(world: Draft, me: ModelProcess) -> object:
    """When binds that began before are over, read G: gone, or not bound here → leave the mark to Collect."""
    if world.must(Rule.RELEASE_2_WAIT) and not world.binds_over(me.leader):
        return False
    group = world.groups[me.holder]
    if group.life == GONE or group.node != me.node:
        return None
    me = me.saw(group_bit(me.holder)) if world.must(Rule.RELEASE_3_READ) else me
    return world.go(me, release_3_mark if world.must(Rule.RELEASE_3_MARK) else release_3_list)


@step(GROUPS, LEDGERS)
def release_3_mark(world: Draft, me: ModelProcess) -> object:
    """CAS L: mark the claim once more, so that nobody can take the mark away that read it before."""
    if not me.has(ledger_bit(me.node)):
        return None
    if world.ledgers[me.node] is not None:
        world.write_ledger(me.node, world.ledgers[me.node])
    return world.go(me.saw(ledger_bit(me.node)), release_3_list)


@step(GROUPS, LEDGERS)
def release_3_list(world: Draft, me: ModelProcess) -> object:
    """LIST the pods. One lives here → unmark."""
    if world.live(me.holder, me.node) and world.must(Rule.RELEASE_3_LIST):
        return world.go(me, unmark)
    if world.groups[me.holder].life == DELETING:
        return world.go(me, STEPS["finalize_4"])
    return world.go(me, release_4 if world.must(Rule.RELEASE_5_LAST) else release_5)


@step(GROUPS, LEDGERS)
def release_4(world: Draft, me: ModelProcess) -> object:
    """CAS G to no node, with the version of step 3."""
    unread = not world.must(Rule.RELEASE_3_READ)  # It is read here, after the list.
    if world.groups[me.holder].node != me.node and world.must(Rule.RELEASE_4_CAS):
        return None
    if not (me.has(group_bit(me.holder)) or unread) and world.must(Rule.RELEASE_4_CAS):
        return None
    if world.groups[me.holder].life == GONE:
        return None
    world.write_home(me.holder, NOWHERE, 0, 0)
    return world.go(me, release_5) if world.must(Rule.RELEASE_5_LAST) else None


@step(GROUPS, LEDGERS)
def release_5(world: Draft, me: ModelProcess) -> object:
    """CAS L without the claim, with the version of step 1."""
    drop(world, me, Rule.RELEASE_5_CAS)
    return None if world.must(Rule.RELEASE_5_LAST) else world.go(me, release_4)
