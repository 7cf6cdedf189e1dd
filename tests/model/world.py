"""The world of the model: groups, ledgers, pods and nodes in an API server, and the processes that work on them.

A resourceVersion only ever serves to tell whether an object was written since it was read. So there are none here: each
process has one bit for each object, "nobody wrote it since I read it", and a write takes that bit from everybody else.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tests.model.rules import Rule

T = TypeVar("T")
NOWHERE = -1
ALIVE, DELETING, GONE = "alive", "deleting", "gone"
PENDING, LIVE, OVER = "pending", "live", "over"


class ModelGroup(NamedTuple):
    """G. `was` is what it ever said, nodes and tokens: a mirror may still say so."""

    life: str
    node: int
    device: int
    token: int
    was: tuple[tuple[int, int], ...]


class ModelClaim(NamedTuple):
    """A claim of one device. The token tells it from any other claim that its holder ever had."""

    holder: int
    device: int
    marked: bool
    token: int


class ModelLedger(NamedTuple):
    """L. A new one isn't open: it has no claims and names no devices, so nothing in it is free, and nobody joins by it.

    One that is being deleted serves on: its finalizer keeps it as long as it has claims.
    """

    open: bool
    deleting: bool
    claims: tuple[ModelClaim, ...]

    def claim_of(self, holder: int) -> ModelClaim | None:
        for claim in self.claims:
            if claim.holder == holder:
                return claim
        return None


class ModelPod(NamedTuple):
    """P. `over` is a pod that is gone, or whose containers have ended."""

    group: int
    phase: str
    node: int
    device: int


class ModelProcess(NamedTuple):
    """A bind, or something that a leader does, before its next step.

    `same` has a bit for each object that nobody wrote since this process read it; `older` one for each leader that
    waits for this bind; `found` is what else it remembers.
    """

    step: str
    leader: int
    holder: int
    pod: int
    node: int
    device: int
    token: int
    same: int
    older: int
    found: tuple[ModelClaim, ...]

    def saw(self, thing: int) -> "ModelProcess":
        return self._replace(same=self.same | thing)

    def has(self, thing: int) -> bool:
        """Whether a write of this process that carries the version which it read would succeed."""
        return bool(self.same & thing)


class WorldState(NamedTuple):
    """Everything, hashable."""

    groups: tuple[ModelGroup, ...]
    ledgers: tuple[ModelLedger | None, ...]
    pods: tuple[ModelPod, ...]
    nodes: tuple[bool, ...]
    processes: tuple[ModelProcess, ...]
    spent: tuple[int, ...]
    """How often each bounded misfortune has happened."""


@dataclass(frozen=True)
class Bounds:
    """How large the world is, and what happens in it."""

    actions: tuple["Action", ...]
    pods: tuple[int, ...]
    """The group of each."""
    groups: int = 2
    nodes: int = 2
    devices: int = 1
    binders: int = 2
    leaders: int = 2
    compares: bool = True
    """Whether the API server compares the version that a Binding carries, as from Kubernetes 1.23 on."""
    bound: bool = False
    """Whether the first group begins bound to the first node."""
    wipes: bool = False
    """Whether somebody may wipe a group's status."""
    careless: bool = False
    """Whether somebody may delete a claim, also while pods use it."""
    suspects_only: bool = True
    """Whether collections begin only where a look at the API server makes the claim suspect."""
    finalizers: bool = False
    """Whether groups go only by a finalizer's end."""
    shares: bool = False
    """Whether each pod is its own holder."""
    settles: bool = True
    """Whether all is there that the world needs to come to rest."""
    misfortunes: int = 1
    """How often at most each of those happens that could go on for ever."""
    without: Rule | None = None


def group_bit(group: int) -> int:
    return 1 << group


def ledger_bit(node: int) -> int:
    return 1 << (8 + node)


def pod_bit(pod: int) -> int:
    return 1 << (16 + pod)


class Draft:
    """A state while one step changes it. A step that has to choose is run once for each choice."""

    def __init__(self, bounds: Bounds, state: WorldState, script: Sequence[int]) -> None:
        self.bounds = bounds
        self.groups, self.ledgers, self.pods = list(state.groups), list(state.ledgers), list(state.pods)
        self.nodes, self.processes, self.spent = list(state.nodes), list(state.processes), list(state.spent)
        self.script = script
        self.taken: list[tuple[int, int]] = []

    def frozen(self) -> WorldState:
        """The state; of what nobody can ask about any more, nothing is left in it."""
        groups = [group._replace(was=self._still_said(number)) for number, group in enumerate(self.groups)]
        return WorldState(
            tuple(groups),
            tuple(self.ledgers),
            tuple(self.pods),
            tuple(self.nodes),
            tuple(sorted(self.processes)),
            tuple(self.spent),
        )

    def _still_said(self, number: int) -> tuple[tuple[int, int], ...]:
        """What an old mirror may say that makes a difference: to a pending pod, by a claim that may be there."""
        was = self.groups[number].was
        if not was or not any(pod.group == number and pod.phase == PENDING for pod in self.pods):
            return ()
        if not self.must(Rule.BIND_2_TOKEN):
            return was
        tokens = self.tokens(number)
        return tuple(said for said in was if said[1] in tokens)

    def tokens(self, group: int) -> set[int]:
        """Those by which anything may still be recognised."""
        claims = (claim for ledger in self.ledgers if ledger for claim in ledger.claims if claim.holder == group)
        mine = (process.token for process in self.processes if process.holder == group)
        return {self.groups[group].token, *(claim.token for claim in claims), *mine}

    def new_token(self, group: int) -> int:
        """One that nothing bears; without the rule, they are all the same."""
        if not self.must(Rule.BIND_2_TOKEN):
            return 1
        used = self.tokens(group)
        return next(token for token in range(1, len(used) + 2) if token not in used)

    def must(self, rule: Rule) -> bool:
        """Whether the rule stands; one at a time is taken away, to show that something breaks."""
        return self.bounds.without is not rule

    def choose(self, options: Sequence[T]) -> T:
        at = self.script[len(self.taken)] if len(self.taken) < len(self.script) else 0
        self.taken.append((at, len(options)))
        return options[at]

    # What writes, and so takes away everybody's bit.

    def _wrote(self, thing: int) -> None:
        self.processes = [p._replace(same=p.same & ~thing) if p.same & thing else p for p in self.processes]

    def write_group(self, group: int, life: str | None = None) -> None:
        """Makes it newer: a fence, unless it says what else is new."""
        if life:
            was = self.groups[group].was
            self.groups[group] = ModelGroup(life, *((NOWHERE, 0, 0) if life == GONE else self.groups[group][1:4]), was)
        self._wrote(group_bit(group))

    def write_home(self, group: int, node: int, device: int, token: int) -> None:
        old = self.groups[group]
        was = old.was if node == NOWHERE else tuple(sorted({*old.was, (node, token)}))
        self.groups[group] = ModelGroup(old.life, node, device, token, was)
        self._wrote(group_bit(group))

    def write_ledger(self, node: int, ledger: ModelLedger | None) -> None:
        self.ledgers[node] = ledger
        self._wrote(ledger_bit(node))

    def write_claim(self, node: int, holder: int, claim: ModelClaim | None) -> None:
        ledger = self.ledgers[node]
        assert ledger is not None
        rest = [each for each in ledger.claims if each.holder != holder]
        claims = tuple(sorted([*rest, claim] if claim else rest))
        self.write_ledger(node, ledger._replace(claims=claims))

    def write_pod(self, pod: int, **changes: int | str) -> None:
        self.pods[pod] = self.pods[pod]._replace(**changes)  # type: ignore[arg-type]
        self._wrote(pod_bit(pod))

    # What reads.

    def claim(self, node: int, holder: int) -> ModelClaim | None:
        ledger = self.ledgers[node]
        return ledger.claim_of(holder) if ledger else None

    def live(self, group: int, node: int) -> list[ModelPod]:
        return [pod for pod in self.pods if pod.group == group and pod.phase == LIVE and pod.node == node]

    def free(self, node: int) -> list[int]:
        ledger = self.ledgers[node]
        assert ledger is not None
        taken = {claim.device for claim in ledger.claims}
        return [device for device in range(self.bounds.devices) if device not in taken] if ledger.open else []

    # Processes.

    def go(self, process: ModelProcess, step: "Step") -> object:
        """The process goes on with this step, some time. A step that doesn't say so was the last one."""
        name = step.__name__
        self.processes.append(process._replace(step=name, same=process.same & NEEDS[name]))
        return None

    def begin_to_wait(self, leader: int, *, by_clock: bool = False) -> None:
        """Binds under way now are those that this leader has to wait for."""
        if self.bounds.compares and not by_clock:
            return
        bit = 1 << leader
        self.processes = [p._replace(older=p.older | bit) if p.pod != NOWHERE else p for p in self.processes]

    def binds_over(self, leader: int, *, by_clock: bool = False) -> bool:
        """Whether each bind under way then has ended or given up. Where versions are compared, hardly anybody waits."""
        return (self.bounds.compares and not by_clock) or not any(
            process.older >> leader & 1 for process in self.processes
        )


Step = Callable[[Draft, ModelProcess], object]
Action = Callable[[Draft], Iterator[tuple[str, Callable[[Draft], object]]]]
STEPS: dict[str, Step] = {}
NEEDS: dict[str, int] = {}
GROUPS, LEDGERS, PODS = 0xFF, 0xFF00, 0xFF0000


def step(*needs: int) -> Callable[[Step], Step]:
    """Marks a step, of a process that from here on needs to know only of these whether they were written.

    A step that answers False can't be taken yet.
    """

    def marked(function: Step) -> Step:
        STEPS[function.__name__], NEEDS[function.__name__] = function, sum(needs)
        return function

    return marked
