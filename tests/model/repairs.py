"""What leaders do in the model about nodes and ledgers: Move, and the repair of a lost ledger (claims.md).

Nobody claims or joins by a ledger that isn't open. So what matters is what is in it when it is opened.
"""

from functools import partial

from tests.model.leaders import Begun, begin, idle_leaders, release_1, release_2
from tests.model.rules import Rule
from tests.model.world import (
    GONE,
    GROUPS,
    LEDGERS,
    LIVE,
    NO_OWNER,
    NOWHERE,
    ORPHANED,
    OWNED,
    PENDING,
    Draft,
    ModelClaim,
    ModelLedger,
    ModelProcess,
    ledger_bit,
    step,
)


def moves(world: Draft) -> Begun:
    """Of a group whose node is gone. That no pod of it lives there is looked at later."""
    for leader in idle_leaders(world):
        for holder, group in enumerate(world.groups):
            if group.node != NOWHERE and group.life != GONE and not world.nodes[group.node]:
                yield (
                    f"leader {leader} moves {holder} off {group.node}: 1",
                    partial(begin, leader=leader, holder=holder, node=group.node, first=move_1),
                )


@step(GROUPS, LEDGERS)
def move_1(world: Draft, me: ModelProcess) -> object:
    """Mark the claim, as Release does. L is gone → create it: closed, without an owner, and with the claim marked."""
    if world.ledgers[me.node] is not None:
        return release_1(world, me)
    _fence_unbound(world)
    if not world.must(Rule.MOVE_1_CREATE):
        world.begin_to_wait(me.leader)
        return world.go(me.saw(ledger_bit(me.node)), release_2)
    return world.go(me._replace(found=_evidence(world, me.node)), move_1_create)


@step(GROUPS, LEDGERS)
def move_1_create(world: Draft, me: ModelProcess) -> object:
    """The create of it. Whoever joined by the lost one before has to be waited for: the wait begins here."""
    if world.ledgers[me.node] is not None:
        return None
    world.begin_to_wait(me.leader)
    claims = tuple(
        claim._replace(marked=claim.holder == me.holder and world.must(Rule.MOVE_1_MARKED)) for claim in me.found
    )
    world.write_ledger(me.node, ModelLedger(False, NO_OWNER, claims))
    return world.go(me._replace(found=()).saw(ledger_bit(me.node)), release_2)


def _evidence(world: Draft, node: int, claims: tuple[ModelClaim, ...] = ()) -> tuple[ModelClaim, ...]:
    """Who holds what on the node: by claims, then by live pods, then by groups; whatever contradicts is left out."""
    pods = [(pod.group, pod.device) for pod in world.pods if pod.phase == LIVE and pod.node == node]
    groups = [
        (number, group.device) for number, group in enumerate(world.groups) if group.node == node and group.life != GONE
    ]
    found = {claim.holder: claim for claim in claims}
    for holder, device in (*pods, *groups):
        if holder not in found and device not in [claim.device for claim in found.values()]:
            here = world.groups[holder].node == node
            found[holder] = ModelClaim(holder, device, False, world.groups[holder].token if here else 0)
    return tuple(sorted(found.values()))


def adoptions(world: Draft) -> Begun:
    """A node that came back becomes the owner of its ledger."""
    for node, ledger in enumerate(world.ledgers):
        if world.nodes[node] and ledger and ledger.owner != OWNED:
            yield (
                f"ledger {node} is adopted",
                partial(Draft.write_ledger, node=node, ledger=ledger._replace(owner=OWNED)),
            )


def retirements(world: Draft) -> Begun:
    """An empty ledger without an owner, of a node that is gone."""
    for leader in idle_leaders(world):
        for node, ledger in enumerate(world.ledgers):
            if ledger and not ledger.claims and not world.nodes[node]:
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
    """Delete L with that version."""
    if me.has(ledger_bit(me.node)) or not world.must(Rule.RETIRE_CAS):
        world.write_ledger(me.node, None)
    return None


def recreations(world: Draft) -> Begun:
    """Of a ledger that is missing on a node that is there."""
    for leader in idle_leaders(world):
        for node, ledger in enumerate(world.ledgers):
            if world.nodes[node] and ledger is None:
                yield (
                    f"leader {leader} recreates ledger {node}: 1",
                    partial(begin, leader=leader, holder=0, node=node, first=recreate_1),
                )


@step()
def recreate_1(world: Draft, me: ModelProcess) -> object:
    """Fence the unbound groups, so that no bind commits a claim that the lost ledger had. LIST the pods."""
    _fence_unbound(world)
    late = [pod for pod in world.pods if world.groups[pod.group].life == GONE and pod.phase in (PENDING, LIVE)]
    if late and world.must(Rule.RECREATE_WAIT):
        world.begin_to_wait(me.leader, by_clock=True)
        return world.go(me, recreate_wait)
    return world.go(me._replace(found=_evidence(world, me.node)), recreate_2)


def _fence_unbound(world: Draft) -> None:
    """Fails binds that claimed in the lost ledger, whoever creates it again."""
    if world.must(Rule.RECREATE_FENCE):
        for number, group in enumerate(world.groups):
            if group.life != GONE and group.node == NOWHERE:
                world.write_group(number)


@step()
def recreate_wait(world: Draft, me: ModelProcess) -> object:
    """No group's fence stops a bind whose group is gone: wait it out, then LIST."""
    if not world.binds_over(me.leader, by_clock=True):
        return False
    return world.go(me._replace(found=_evidence(world, me.node)), recreate_2)


@step()
def recreate_2(world: Draft, me: ModelProcess) -> object:
    """Create L, closed."""
    if world.ledgers[me.node] is None:
        owner = OWNED if world.nodes[me.node] else ORPHANED
        world.write_ledger(me.node, ModelLedger(False, owner, me.found))
    return None


def openings(world: Draft) -> Begun:
    """Of a ledger that names no devices yet."""
    for leader in idle_leaders(world):
        for node, ledger in enumerate(world.ledgers):
            if world.nodes[node] and ledger and not ledger.open:
                yield (
                    f"leader {leader} opens ledger {node}: 1",
                    partial(begin, leader=leader, holder=0, node=node, first=open_1),
                )


@step(LEDGERS)
def open_1(world: Draft, me: ModelProcess) -> object:
    """Read L."""
    return world.go(me.saw(ledger_bit(me.node)), open_2)


@step(LEDGERS)
def open_2(world: Draft, me: ModelProcess) -> object:
    """Bump each group that is bound here. LIST once more: what was missed is added, what is over is marked."""
    ledger = world.ledgers[me.node]
    if ledger is None or not me.has(ledger_bit(me.node)):
        return None
    if world.must(Rule.OPEN_FENCE):
        for number, group in enumerate(world.groups):
            if group.node == me.node and group.life != GONE:
                world.write_group(number)
    claims = _evidence(world, me.node, ledger.claims) if world.must(Rule.OPEN_LIST) else ledger.claims
    if world.must(Rule.OPEN_MARK):
        claims = tuple(
            claim._replace(marked=claim.marked or world.groups[claim.holder].node != me.node) for claim in claims
        )
    return world.go(me._replace(found=claims), open_3)


@step(LEDGERS)
def open_3(world: Draft, me: ModelProcess) -> object:
    """CAS L with these claims and its devices."""
    ledger = world.ledgers[me.node]
    if ledger is not None and (me.has(ledger_bit(me.node)) or not world.must(Rule.OPEN_CAS)):
        world.write_ledger(me.node, ModelLedger(True, ledger.owner, me.found))
    return None
