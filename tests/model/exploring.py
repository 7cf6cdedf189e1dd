"""Explores the world of the model within bounds: what may happen next in a state."""

from collections.abc import Callable, Iterator
from functools import partial

from tests.model import invariants
from tests.model.deletions import deletions
from tests.model.explorer import Exploration, Happening, explore
from tests.model.shares import share_binds
from tests.model.symmetry import one_of_its_kind
from tests.model.world import (
    ALIVE,
    NOWHERE,
    PENDING,
    STEPS,
    Bounds,
    Draft,
    ModelClaim,
    ModelGroup,
    ModelLedger,
    ModelPod,
    ModelProcess,
    WorldState,
)
from tests.model.worldly import WORLDLY


def first_state(bounds: Bounds) -> WorldState:
    groups = [ModelGroup(ALIVE, NOWHERE, 0, 0, ())] * bounds.groups
    ledgers = [ModelLedger(True, False, ())] * bounds.nodes
    if bounds.bound:
        groups[0] = ModelGroup(ALIVE, 0, 0, 1, ((0, 1),))
        ledgers[0] = ModelLedger(True, False, (ModelClaim(0, 0, False, 1),))
    pods = tuple(ModelPod(group, PENDING, NOWHERE, 0) for group in bounds.pods)
    return WorldState(tuple(groups), tuple(ledgers), pods, (True,) * bounds.nodes, (), (0, 0, 0, 0))


def happenings(bounds: Bounds, state: WorldState) -> Iterator[Happening[WorldState]]:
    """All that may happen next: a process takes its next step or stops for ever, or something begins."""
    for process in set(state.processes):
        name = f"{process.step} {_who(process)}"
        yield from _outcomes(bounds, state, name, partial(_take, process=process), by_protocol=True)
        yield from _outcomes(bounds, state, f"stop: {name}", partial(_stop, process=process), by_protocol=True)
    for action in bounds.actions:
        for name, begun in action(Draft(bounds, state, ())):
            yield from _outcomes(
                bounds, state, name, begun, by_protocol=action not in (*WORLDLY, deletions, share_binds)
            )


def _who(process: ModelProcess) -> str:
    who = f"leader {process.leader}" if process.pod == NOWHERE else f"pod {process.pod}"
    return f"({who}, group {process.holder}, node {process.node})"


def _take(world: Draft, process: ModelProcess) -> object:
    world.processes.remove(process)
    return STEPS[process.step](world, process)


def _stop(world: Draft, process: ModelProcess) -> object:
    world.processes.remove(process)
    return None


def _outcomes(
    bounds: Bounds, state: WorldState, name: str, take: Callable[[Draft], object], *, by_protocol: bool
) -> Iterator[Happening[WorldState]]:
    """Takes the step once for each way in which its choices can fall."""
    script: list[int] = []
    while True:
        world = Draft(bounds, state, script)
        if take(world) is not False:
            yield Happening(name, by_protocol, world.frozen())
        taken = world.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return
        script = [at for at, _ in taken]
        script[-1] += 1


def run(bounds: Bounds, *, progress: bool = False) -> Exploration:
    """Explores all of it."""
    one = one_of_its_kind(bounds)

    def alike(state: WorldState) -> Iterator[Happening[WorldState]]:
        return (Happening(name, by_protocol, one(after)) for name, by_protocol, after in happenings(bounds, state))

    return explore(
        one(first_state(bounds)),
        alike,
        partial(invariants.broken, bounds),
        invariants.settled if progress and bounds.settles else None,
    )
