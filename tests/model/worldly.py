"""What the world does in the model: people delete groups and ledgers, pods end, nodes go and return."""

from collections.abc import Callable, Iterator
from functools import partial

from tests.model.binds import binds
from tests.model.world import ALIVE, GONE, LIVE, NOWHERE, OVER, PENDING, Action, Draft

Begun = Iterator[tuple[str, Callable[[Draft], object]]]


def groups_go(world: Draft) -> Begun:
    """A group is deleted, and gone at once."""
    for number, group in enumerate(world.groups):
        if group.life == ALIVE:
            yield f"group {number} goes", partial(Draft.write_group, group=number, life=GONE)


def pods_end(world: Draft) -> Begun:
    """Whether it ran or not."""
    for number, pod in enumerate(world.pods):
        if pod.phase in (LIVE, PENDING):
            yield f"pod {number} ends", partial(Draft.write_pod, pod=number, phase=OVER, node=NOWHERE, device=0)


def nodes_go(world: Draft) -> Begun:
    """A node object is deleted. Its ledger stays."""
    for node, there in enumerate(world.nodes):
        if there and world.spent[0] < world.bounds.misfortunes:
            yield f"node {node} goes", partial(_node_goes, node=node)


def _node_goes(world: Draft, node: int) -> None:
    world.spent[0] += 1
    world.nodes[node] = False


def nodes_return(world: Draft) -> Begun:
    """A node of the same name is created."""
    for node, there in enumerate(world.nodes):
        if not there:
            yield f"node {node} returns", partial(_node_returns, node=node)


def _node_returns(world: Draft, node: int) -> None:
    world.nodes[node] = True


def ledgers_are_deleted(world: Draft) -> Begun:
    """Somebody deletes a ledger: it gets a deletionTimestamp, and its finalizer keeps it."""
    for node, ledger in enumerate(world.ledgers):
        if ledger and not ledger.deleting and world.spent[3] < world.bounds.misfortunes:
            yield f"ledger {node} is deleted", partial(_ledger_is_deleted, node=node)


def _ledger_is_deleted(world: Draft, node: int) -> None:
    ledger = world.ledgers[node]
    assert ledger is not None
    world.spent[3] += 1
    world.write_ledger(node, ledger._replace(deleting=True))


def ledgers_are_lost(world: Draft) -> Begun:
    """Somebody deletes a ledger and removes its finalizer by force."""
    for node, ledger in enumerate(world.ledgers):
        if ledger and world.spent[1] < world.bounds.misfortunes:
            yield f"ledger {node} is lost", partial(_ledger_is_lost, node=node)


def _ledger_is_lost(world: Draft, node: int) -> None:
    world.spent[1] += 1
    world.write_ledger(node, None)


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


WORLDLY: tuple[Action, ...] = (
    binds,
    groups_go,
    pods_end,
    nodes_go,
    nodes_return,
    ledgers_are_deleted,
    ledgers_are_lost,
    claims_are_deleted,
)
