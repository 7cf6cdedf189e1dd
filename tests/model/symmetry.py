"""Which states of the model are the same but for the numbers of nodes, groups and pods.

Nodes are alike, and so are groups that have the same pods. Of states that differ in numbers only, one stands for all.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import permutations

from tests.model.world import NOWHERE, Bounds, ModelGroup, ModelLedger, ModelPod, ModelProcess, WorldState

Order = tuple[int, ...]


def one_of_its_kind(bounds: Bounds) -> Callable[[WorldState], WorldState]:
    """Answers with the state that stands for all that differ from the given one in numbers only."""
    renamings = [
        renaming(nodes, groups, pods)
        for nodes in permutations(range(bounds.nodes))
        for groups in permutations(range(bounds.groups))
        for pods in permutations(range(len(bounds.pods)))
        if all(groups[bounds.pods[old]] == bounds.pods[new] for old, new in enumerate(pods))
    ]
    others = renamings[1:]  # The first one changes nothing.
    return lambda state: min([state, *(rename(state) for rename in others)], key=hash)


def renaming(nodes: Order, groups: Order, pods: Order) -> Callable[[WorldState], WorldState]:
    """Gives each its new number."""
    node = {NOWHERE: NOWHERE, **dict(enumerate(nodes))}
    pod = {NOWHERE: NOWHERE, **dict(enumerate(pods))}

    @lru_cache(1 << 16)
    def bits(same: int) -> int:
        moved = 0
        for start, order in ((0, groups), (8, nodes), (16, pods)):
            for old, new in enumerate(order):
                moved |= (same >> (start + old) & 1) << (start + new)
        return moved

    @lru_cache(1 << 16)
    def of_group(old: ModelGroup) -> ModelGroup:
        was = tuple(sorted((node[home], token) for home, token in old.was))
        return ModelGroup(old.life, node[old.node], old.device, old.token, was)

    @lru_cache(1 << 16)
    def of_ledger(old: ModelLedger | None) -> ModelLedger | None:
        if old is None:
            return None
        claims = (claim._replace(holder=groups[claim.holder]) for claim in old.claims)
        return ModelLedger(old.open, old.deleting, tuple(sorted(claims)))

    @lru_cache(1 << 16)
    def of_pod(old: ModelPod) -> ModelPod:
        return ModelPod(groups[old.group], old.phase, node[old.node], old.device)

    @lru_cache(1 << 16)
    def of_process(old: ModelProcess) -> ModelProcess:
        found = tuple(sorted(claim._replace(holder=groups[claim.holder]) for claim in old.found))
        same, holder = bits(old.same), groups[old.holder]
        return old._replace(holder=holder, pod=pod[old.pod], node=node[old.node], same=same, found=found)

    new_groups, new_nodes, new_pods = (sorted(range(len(o)), key=o.__getitem__) for o in (groups, nodes, pods))

    def rename(state: WorldState) -> WorldState:
        return WorldState(
            tuple([of_group(state.groups[old]) for old in new_groups]),
            tuple([of_ledger(state.ledgers[old]) for old in new_nodes]),
            tuple([of_pod(state.pods[old]) for old in new_pods]),
            tuple([state.nodes[old] for old in new_nodes]),
            tuple(sorted(map(of_process, state.processes))),
            state.spent,
        )

    return rename
