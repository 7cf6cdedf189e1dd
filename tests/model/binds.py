"""The steps of Bind (claims.md, bind) in the model.

A GET and the write that needs its version are one step here: where anything is written between the two, the write
fails, and the process ends as it would have. Only a rule that does without the version takes them apart.
"""

from collections.abc import Callable, Iterator
from functools import partial

from tests.model.rules import Rule
from tests.model.world import (
    ALIVE,
    GROUPS,
    LIVE,
    NOWHERE,
    PENDING,
    PODS,
    Draft,
    ModelClaim,
    ModelProcess,
    group_bit,
    pod_bit,
    step,
)


def binds(world: Draft) -> Iterator[tuple[str, Callable[[Draft], object]]]:
    """kube-scheduler has a pod bound to a node."""
    return scheduled(world, bind_1)


def scheduled(world: Draft, first: Callable[..., object]) -> Iterator[tuple[str, Callable[[Draft], object]]]:
    """Each pending pod on each node, by the `first` step of its bind, while so many may be under way."""
    under_way = [process.pod for process in world.processes if process.pod != NOWHERE]
    if len(under_way) >= world.bounds.binders:
        return
    for pod, found in enumerate(world.pods):
        if found.phase == PENDING:
            for node in range(world.bounds.nodes):
                yield f"bind pod {pod} to node {node}: 1", partial(first, pod=pod, node=node)


def bind_1(world: Draft, pod: int, node: int) -> object:
    """P and its version. Then G, in a mirror that may be of any age."""
    group = world.pods[pod].group
    now = world.groups[group]
    me = ModelProcess("", 0, group, pod, node, 0, 0, pod_bit(pod), 0, ())
    old = [(home, token, False) for home, token in now.was]
    said, token, fresh = world.choose([(NOWHERE, 0, False), *old, (now.node, now.token, True)])
    if fresh and (now.life != ALIVE or (said == NOWHERE and _evidence(world, group) not in (NOWHERE, node))):
        return False
    if said not in (NOWHERE, node):
        return False
    if fresh:
        me = me.saw(group_bit(group))
    return world.go(me._replace(token=token), bind_2 if said == node else bind_3)


def _evidence(world: Draft, group: int) -> int:
    """Where an unbound group's live pods are: of a group whose status was wiped, its next pods go there, too."""
    homes = {pod.node for pod in world.pods if pod.group == group and pod.phase == LIVE}
    return min(homes, default=NOWHERE)


@step(PODS)
def bind_2(world: Draft, me: ModelProcess) -> object:
    """Joining: L fresh. The claim must be there and unmarked, and the one that G named where it was read."""
    ledger = world.ledgers[me.node]
    if not world.must(Rule.BIND_2_FRESH):
        return world.go(me, bind_5)
    if ledger is None:
        return None
    claim = ledger.claim_of(me.holder)
    if claim is None:
        if world.must(Rule.BIND_2_CLAIM):
            return None
        claim = ModelClaim(me.holder, 0, False, me.token)
    if claim.marked and world.must(Rule.BIND_2_MARK):
        return None
    if claim.token != me.token or claim.device == NOWHERE:
        return None
    return world.go(me._replace(device=claim.device), bind_5)


@step(GROUPS, PODS)
def bind_3(world: Draft, me: ModelProcess) -> object:
    """First pod. Its unmarked claim is used, of L fresh; where there is none, free devices are claimed.

    The copy of L on which it chooses may be of any age: the CAS with that copy's version succeeds only where it is the
    newest, so that a choice by an older one is a bind that ends here. A claim that a copy shows proves nothing.
    """
    ledger = world.ledgers[me.node]
    old = [token for node, token in world.groups[me.holder].was if node == me.node]
    if not world.must(Rule.BIND_3_FRESH) and old:
        return world.go(me._replace(token=old[0]), bind_4)
    if ledger is None:
        return None
    claim = ledger.claim_of(me.holder)
    if claim is not None:
        if (claim.marked and world.must(Rule.BIND_3_MARK)) or claim.device == NOWHERE:
            return None
        return world.go(me._replace(device=claim.device, token=claim.token), bind_4)
    free = world.free(me.node)
    if not free:
        return None
    me = me._replace(device=world.choose(free), token=world.new_token(me.holder))
    return bind_3_claim(world, me) if world.must(Rule.BIND_3_CAS) else world.go(me, bind_3_claim)


@step(GROUPS, PODS)
def bind_3_claim(world: Draft, me: ModelProcess) -> object:
    """CAS L with the claim."""
    if world.ledgers[me.node] is None:
        return None
    world.write_claim(me.node, me.holder, ModelClaim(me.holder, me.device, False, me.token))
    return world.go(me, bind_4)


@step(GROUPS, PODS)
def bind_4(world: Draft, me: ModelProcess) -> object:
    """CAS G to this node, with the version that was read before L. Who loses leaves its claim."""
    group = world.groups[me.holder]
    if not me.has(group_bit(me.holder)) and world.must(Rule.BIND_4_CAS):
        if not world.must(Rule.BIND_4_LOSER) and world.claim(me.node, me.holder):
            world.write_claim(me.node, me.holder, None)
        return None
    if group.life != ALIVE:
        return None
    world.write_home(me.holder, me.node, me.device, me.token)
    return world.go(me, bind_5)


@step(PODS)
def bind_5(world: Draft, me: ModelProcess) -> object:
    """The Binding. In time, and where versions are compared, only while nobody has written the pod."""
    if world.pods[me.pod].phase != PENDING:
        return None
    if world.bounds.compares and not me.has(pod_bit(me.pod)) and world.must(Rule.BIND_5_VERSION):
        return None if world.must(Rule.BIND_5_AGAIN) else world.go(me.saw(pod_bit(me.pod)), bind_5)
    world.write_pod(me.pod, phase=LIVE, node=me.node, device=me.device)
    return None
