"""Rebind (claims.md) as a model of its own: a group on a node, whose claim is moved, and another that wants devices.

A group's claim has one device at a time and former ones. A live pod may hold any device that its annotations ever
named: none of these may be another holder's. As in world.py each process has a bit for each object that nobody wrote
since it read it, a GET and the write that needs its version are one step, and any process may stop for ever.
"""

from collections.abc import Iterator
from enum import Enum
from functools import partial
from typing import NamedTuple

from tests.model.explorer import Exploration, Happening, explore
from tests.model.world import LIVE, OVER, PENDING

NOTHING = -1
LEDGER = 1 << 8
"""The bit of the ledger; a pod's is 1 << its number."""


class RebindRule(Enum):
    """What can be taken away, one at a time."""

    FORMER = "rebind 2: former devices count as claimed"
    UPDATE_AFTER = "rebind 3: the ledger is read after the pod"
    UPDATE_VERSION = "rebind 3: the pod is written with its version"
    UPDATE_RECORD = "rebind 3: the pod's former devices stay on record"
    RELEASE_TOUCH = "rebind 4: pending pods are touched, or binds waited out"
    RELEASE_LIST = "rebind 4: what live pods ever had stays"
    RELEASE_STOP = "rebind 4: not while a pod is yet to be updated"
    RELEASE_CAS = "rebind 4: the ledger is written with the version from before the list"


class RebindPod(NamedTuple):
    """Its annotations, and what they ever named."""

    phase: str
    device: int
    record: frozenset[int]
    had: frozenset[int]


class RebindProcess(NamedTuple):
    """Before its next step. A bind has no leader; `older` are the leaders that wait for it."""

    step: str
    leader: int
    pod: int
    same: int
    device: int
    record: tuple[int, ...]
    older: int


class Rebinding(NamedTuple):
    """Everything, hashable."""

    device: int
    former: frozenset[int]
    other: int
    """The other holder's device."""
    rebinds: int
    pods: tuple[RebindPod, ...]
    processes: tuple[RebindProcess, ...]


class RebindBounds(NamedTuple):
    """How large the world is."""

    devices: int = 3
    rebinds: int = 2
    leaders: int = 2
    compares: bool = True
    without: RebindRule | None = None


class _Next:
    """A state while one step changes it."""

    def __init__(self, bounds: RebindBounds, state: Rebinding) -> None:
        self.bounds, self.state = bounds, state

    def must(self, rule: RebindRule) -> bool:
        return self.bounds.without is not rule

    def go(self, process: RebindProcess, step: str, **changes: object) -> None:
        after = process._replace(step=step, **changes)  # type: ignore[arg-type]
        self.state = self.state._replace(processes=(*self.state.processes, after))

    def _wrote(self, thing: int) -> None:
        left = tuple(each._replace(same=each.same & ~thing) for each in self.state.processes)
        self.state = self.state._replace(processes=left)

    def write_pod(self, number: int, **changes: object) -> None:
        pods = list(self.state.pods)
        pods[number] = pods[number]._replace(**changes)  # type: ignore[arg-type]
        self.state = self.state._replace(pods=tuple(pods))
        self._wrote(1 << number)

    def write_ledger(self, **changes: object) -> None:
        self.state = self.state._replace(**changes)  # type: ignore[arg-type]
        self._wrote(LEDGER)

    def free(self) -> list[int]:
        taken = {self.state.device, self.state.other}
        taken |= self.state.former if self.must(RebindRule.FORMER) else frozenset()
        return [device for device in range(self.bounds.devices) if device not in taken]


def run_rebinds(bounds: RebindBounds) -> Exploration:
    """Explores all of it: a pod that lives, and one that is pending."""
    pods = (RebindPod(LIVE, 0, frozenset(), frozenset({0})), RebindPod(PENDING, NOTHING, frozenset(), frozenset()))
    first = Rebinding(0, frozenset(), NOTHING, 0, pods, ())
    return explore(first, partial(_happenings, bounds), _broken)


def _broken(state: Rebinding) -> str:
    taken = any(pod.phase == LIVE and state.other in pod.had for pod in state.pods)
    return "another holder has a device that a live pod may hold" if taken else ""


def _happenings(bounds: RebindBounds, state: Rebinding) -> Iterator[Happening[Rebinding]]:
    for process in set(state.processes):
        rest = list(state.processes)
        rest.remove(process)
        without = state._replace(processes=tuple(rest))
        yield _happening(f"stop: {process.step} of pod {process.pod}", without)
        world = _Next(bounds, without)
        if _take(world, process):
            yield _happening(f"{process.step} (leader {process.leader}, pod {process.pod})", world.state)
    yield from _begun(bounds, state)
    for number, pod in enumerate(state.pods):
        if pod.phase != OVER:
            world = _Next(bounds, state)
            world.write_pod(number, phase=OVER, device=NOTHING, record=frozenset(), had=frozenset())
            yield _happening(f"pod {number} ends", world.state)
    for device in _Next(bounds, state).free():
        if state.rebinds < bounds.rebinds:
            world = _Next(bounds, state)
            former = state.former - {device} | {state.device}
            world.write_ledger(device=device, former=former, rebinds=state.rebinds + 1)
            yield _happening(f"rebind to {device}", world.state)
        if state.other == NOTHING:
            world = _Next(bounds, state)
            world.write_ledger(other=device)
            yield _happening(f"the other holder gets {device}", world.state)


def _happening(name: str, state: Rebinding) -> Happening[Rebinding]:
    return Happening(name, True, state._replace(processes=tuple(sorted(state.processes))))


def _begun(bounds: RebindBounds, state: Rebinding) -> Iterator[Happening[Rebinding]]:
    """A bind of a pending pod, one at a time; an update or a release by a leader that has nothing to do."""
    idle = [each for each in range(bounds.leaders) if each not in {process.leader for process in state.processes}][:1]
    for number, pod in enumerate(state.pods):
        if pod.phase == PENDING and all(process.leader != NOTHING for process in state.processes):
            world = _Next(bounds, state)
            world.go(RebindProcess("", NOTHING, number, 1 << number, NOTHING, (), 0), "bind_ledger")
            yield _happening(f"bind pod {number}", world.state)
        for leader in idle if pod.phase == LIVE else ():
            world = _Next(bounds, state)
            world.go(RebindProcess("", leader, number, 0, NOTHING, (), 0), "update_read")
            yield _happening(f"leader {leader} updates pod {number}", world.state)
    for leader in idle if state.former else ():
        world = _Next(bounds, state)
        _release(world, leader)
        yield _happening(f"leader {leader} releases", world.state)


def _release(world: _Next, leader: int) -> None:
    """Read L. Touch pending pods; where versions aren't compared, binds under way are waited for."""
    if world.must(RebindRule.RELEASE_TOUCH):
        for number, pod in enumerate(world.state.pods):
            if pod.phase == PENDING:
                world.write_pod(number)
        if not world.bounds.compares:
            older = (
                p._replace(older=p.older | 1 << leader) if p.leader == NOTHING else p for p in world.state.processes
            )
            world.state = world.state._replace(processes=tuple(older))
    world.go(RebindProcess("", leader, NOTHING, LEDGER, NOTHING, (), 0), "release_list")


def _take(world: _Next, me: RebindProcess) -> bool:
    """The process's next step; whether it can be taken now."""
    state = world.state
    if me.step == "bind_ledger":
        world.go(me, "bind_post", device=state.device)
    elif me.step == "bind_post":
        if state.pods[me.pod].phase == PENDING and (me.same >> me.pod & 1 or not world.bounds.compares):
            world.write_pod(me.pod, phase=LIVE, device=me.device, had=frozenset({me.device}))
    elif me.step.startswith("update"):
        _update(world, me)
    elif me.step == "release_list":
        if any(each.older >> me.leader & 1 for each in state.processes):
            return False
        living = [pod for pod in state.pods if pod.phase == LIVE]
        if world.must(RebindRule.RELEASE_STOP) and any(pod.device != state.device for pod in living):
            return True
        named = frozenset[int]().union(*({pod.device} | pod.record for pod in living))
        keep = named if world.must(RebindRule.RELEASE_LIST) else frozenset()
        world.go(me, "release_write", record=tuple(sorted(state.former & keep)))
    elif me.same & LEDGER or not world.must(RebindRule.RELEASE_CAS):
        world.write_ledger(former=frozenset(me.record))
    return True


def _update(world: _Next, me: RebindProcess) -> None:
    """Read the pod, then L, then write the pod with its version."""
    pod, after = world.state.pods[me.pod], world.must(RebindRule.UPDATE_AFTER)
    if pod.phase != LIVE:
        return
    old = tuple(sorted(pod.record | {pod.device})) if world.must(RebindRule.UPDATE_RECORD) else ()
    if me.step == "update_read" and after:
        world.go(me, "update_ledger", same=1 << me.pod, record=old)
    elif me.step == "update_read":
        world.go(me, "update_pod", device=world.state.device)
    elif me.step == "update_ledger":
        if pod.device != world.state.device:
            world.go(me, "update_write", device=world.state.device)
    elif me.step == "update_pod":
        if pod.device != me.device:
            world.go(me, "update_write", same=1 << me.pod, record=old)
    elif me.same >> me.pod & 1 or not world.must(RebindRule.UPDATE_VERSION):
        record = frozenset(me.record) - {me.device} if me.record else frozenset()
        world.write_pod(me.pod, device=me.device, record=record, had=pod.had | {me.device})
