"""The bounds of the model: small ones for each run of the unit tests, and larger ones for `tox run -e model`."""

from tests.model.binds import binds
from tests.model.deletions import deletions, finalizations
from tests.model.leaders import collections, releases
from tests.model.repairs import creations, moves, namings, repairs, retirements
from tests.model.shares import share_binds, share_collections
from tests.model.world import Bounds
from tests.model.worldly import (
    claims_are_deleted,
    groups_go,
    ledgers_are_deleted,
    ledgers_are_lost,
    nodes_go,
    nodes_return,
    pods_end,
)

COLLECT = (binds, collections, groups_go, pods_end)
RELEASE = (binds, releases, collections, pods_end)
REPAIR = (creations, repairs, namings)
MOVE = (binds, moves, collections, pods_end, nodes_go, nodes_return, retirements, *REPAIR)
LOST = (binds, collections, pods_end, ledgers_are_lost, *REPAIR)
DELETION = (binds, deletions, finalizations, collections, pods_end)
UNCLAIMED = (binds, collections, pods_end, claims_are_deleted, *REPAIR)
SHARES = (share_binds, share_collections, pods_end)

SMALL: dict[str, Bounds] = {
    "bind and collect, two groups on a node": Bounds(COLLECT, (0, 1), nodes=1, leaders=1, binders=1),
    "bind, two groups at once": Bounds((binds,), (0, 1), nodes=1, leaders=1, binders=2, settles=False),
    "bind and collect, two binds at once": Bounds(COLLECT, (0, 0), groups=1, nodes=1, leaders=1, binders=2),
    "bind and collect, two leaders": Bounds(COLLECT, (0,), groups=1, nodes=1, binders=1, suspects_only=False),
    "release, two leaders": Bounds(RELEASE, (0,), groups=1, nodes=1, binders=1),
    "release, two groups on a node": Bounds(RELEASE, (0, 1), nodes=1, leaders=1, binders=1),
    "deletion, two leaders": Bounds(DELETION, (0,), groups=1, nodes=1, binders=1, finalizers=True),
    "move, two leaders": Bounds(MOVE, (0,), groups=1, nodes=1, binders=1, bound=True),
    "retire, two leaders": Bounds(
        (*RELEASE, ledgers_are_deleted, retirements, *REPAIR), (0,), groups=1, nodes=1, binders=1
    ),
    "a ledger is lost, two groups on a node": Bounds((*LOST, groups_go), (0, 1), nodes=1, leaders=1, binders=1),
    "a ledger is lost, two leaders": Bounds((*LOST, releases), (0,), groups=1, nodes=1, binders=1),
    "a claim is deleted, two leaders": Bounds(
        (*UNCLAIMED, releases), (0,), groups=1, nodes=1, binders=1, bound=True, careless=True
    ),
    "a claim is deleted, two pods": Bounds(UNCLAIMED, (0, 0), groups=1, nodes=1, binders=1, bound=True, careless=True),
    "shares, two pods on two nodes": Bounds(SHARES, (0, 1), leaders=1, binders=2, shares=True),
    "shares, two leaders": Bounds(SHARES, (0,), groups=1, leaders=2, binders=2, shares=True),
}
"""By name. Each with servers that compare versions, and with those that don't (`compares`)."""


LARGE: dict[str, Bounds] = {
    "release, a group of two pods on two nodes": Bounds(RELEASE, (0, 0), groups=1, leaders=1, binders=1),
    "bind and collect, a group of two pods on two nodes": Bounds(COLLECT, (0, 0), groups=1, leaders=1, binders=1),
    "bind and collect, two groups on two nodes": Bounds(COLLECT, (0, 1), leaders=1, binders=1),
    "bind and collect, two groups on a node, two binds at once": Bounds(COLLECT, (0, 1), nodes=1, leaders=1, binders=2),
    "bind and collect, three pods, two devices": Bounds(COLLECT, (0, 0, 1), nodes=1, devices=2, leaders=1, binders=2),
    "release, two leaders, two pods": Bounds(RELEASE, (0, 0), groups=1, nodes=1, binders=2),
    "release, two leaders, two nodes": Bounds(RELEASE, (0,), groups=1, binders=1),
    "deletion, two leaders, two pods": Bounds(DELETION, (0, 0), groups=1, nodes=1, binders=2, finalizers=True),
    "move, two leaders, a ledger is lost": Bounds(
        (*MOVE, ledgers_are_lost, ledgers_are_deleted), (0,), groups=1, nodes=1, binders=1, bound=True
    ),
    "a ledger is lost twice, two leaders": Bounds((*LOST, releases), (0,), groups=1, nodes=1, binders=1, misfortunes=2),
    "a ledger is lost, two pods, two leaders": Bounds((*LOST, releases), (0, 0), groups=1, nodes=1, binders=2),
    "a claim is deleted twice, two pods": Bounds(
        (*UNCLAIMED, releases), (0, 0), groups=1, nodes=1, binders=1, bound=True, careless=True, misfortunes=2
    ),
    "a claim is deleted, two leaders, two nodes": Bounds(
        UNCLAIMED, (0,), groups=1, binders=1, bound=True, careless=True
    ),
    "shares, two leaders, two pods on two nodes": Bounds(SHARES, (0, 1), binders=2, shares=True),
}
"""What `tox run -e model` explores besides, within an hour."""
