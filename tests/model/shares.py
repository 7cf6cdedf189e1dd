"""The steps of Shares (claims.md) in the model: each pod is its own holder, and there is no group."""

from functools import partial

from tests.model.binds import bind_5, scheduled
from tests.model.leaders import Begun, begin, drop, idle_leaders, touch_pending, unmark_claim
from tests.model.rules import Rule
from tests.model.world import LEDGERS, PENDING, PODS, Draft, ModelClaim, ModelProcess, ledger_bit, pod_bit, step


def share_binds(world: Draft) -> Begun:
    """kube-scheduler has a pod bound to a node; a bind that gave up may still be followed by one elsewhere."""
    return scheduled(world, share_1)


def share_1(world: Draft, pod: int, node: int) -> object:
    """P and its version."""
    return world.go(ModelProcess("", 0, world.pods[pod].group, pod, node, 0, 0, pod_bit(pod), 0, ()), share_2)


@step(PODS)
def share_2(world: Draft, me: ModelProcess) -> object:
    """GET L fresh, after P. The claim is there unmarked → use it. Not there → choose, and CAS L with the claim."""
    if world.ledgers[me.node] is None:
        return None
    claim = world.claim(me.node, me.holder)
    if claim is not None:
        if claim.marked and world.must(Rule.SHARE_MARK):
            return None
        return world.go(me._replace(device=claim.device), bind_5)
    free = world.free(me.node)
    if not free:
        return None
    me = me._replace(device=world.choose(free))
    return share_2_claim(world, me) if world.must(Rule.SHARE_CAS) else world.go(me, share_2_claim)


@step(PODS)
def share_2_claim(world: Draft, me: ModelProcess) -> object:
    """CAS L with the claim."""
    world.write_claim(me.node, me.holder, ModelClaim(me.holder, me.device, False, 0))
    return world.go(me, bind_5)


def share_collections(world: Draft) -> Begun:
    """Of any claim: the mirror that makes it suspect may be old."""
    for leader in idle_leaders(world):
        for node, ledger in enumerate(world.ledgers):
            for claim in ledger.claims if ledger else ():
                yield (
                    f"leader {leader} collects {claim.holder} on {node}: mark",
                    partial(begin, leader=leader, holder=claim.holder, node=node, first=share_collect_1),
                )


@step(LEDGERS)
def share_collect_1(world: Draft, me: ModelProcess) -> object:
    """CAS L: mark."""
    claim = world.claim(me.node, me.holder)
    if claim is None:
        return None
    if not claim.marked and world.must(Rule.COLLECT_1_MARK):
        world.write_claim(me.node, me.holder, claim._replace(marked=True))
    world.begin_to_wait(me.leader)
    return world.go(me.saw(ledger_bit(me.node)), share_collect_2)


@step(LEDGERS)
def share_collect_2(world: Draft, me: ModelProcess) -> object:
    """GET the pod. Bound here after all → unmark. Pending → touch it, and wait. Else go on at once."""
    if world.live(me.holder, me.node):
        return world.go(me, unmark_claim)
    pending = any(pod.phase == PENDING and pod.group == me.holder for pod in world.pods)
    if pending and world.must(Rule.COLLECT_3_WAIT):
        touch_pending(world, me.holder)
        return world.go(me, share_collect_3)
    return world.go(me, share_collect_4)


@step(LEDGERS)
def share_collect_3(world: Draft, me: ModelProcess) -> object:
    """When binds are over, GET the pod once more."""
    if not world.binds_over(me.leader):
        return False
    if world.live(me.holder, me.node) and world.must(Rule.COLLECT_3_AGAIN):
        return world.go(me, unmark_claim)
    return world.go(me, share_collect_4)


@step(LEDGERS)
def share_collect_4(world: Draft, me: ModelProcess) -> object:
    """CAS L (the version of the mark) without the claim."""
    return drop(world, me, Rule.COLLECT_4_CAS)
