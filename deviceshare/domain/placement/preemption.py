"""Preemption: who would have to go so that a pod of higher priority gets devices, as kube-scheduler decides it for CPU.

An extender can't add victims where kube-scheduler's own dry run finds none, so deviceshare's leader makes the room.
Victims are pods with shares, of lower priority, and groups that no pod uses, as if they had priority 0. Pods of groups
never are: their group would keep its devices.
https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/
"""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from deviceshare.domain.objects.devices import identities
from deviceshare.domain.objects.ledger import Claim, NodeDevices, claim_of, share_claim_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GROUP, POD, Request, current
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import counted_only
from deviceshare.domain.placement.node_choice import unusable

MOST_VICTIMS: Final = 32
"""Of one pod; where more would have to go, nobody does."""
MOST_NODES: Final = 200
"""Compared for one pod."""
NEVER: Final = "Never"
"""The preemptionPolicy of pods for which nobody goes."""

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A search that pauses at each `yield`, since a ledger may have a thousand claims."""


class PreemptedHolder(NamedTuple):
    """A holder that would have to go. The first to go come first."""

    priority: int
    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" (priority {self.priority})" if self.kind == POD else "")


class MadeRoom(NamedTuple):
    """Where room can be made."""

    node: str
    victims: tuple[PreemptedHolder, ...]
    """Empty where enough comes free anyway: others are ending."""

    @property
    def cost(self) -> tuple[int, int, int, int, str]:
        """The less, the better: first of all no pod of much priority goes, then few pods."""
        priorities, pods = [each.priority for each in self.victims], sum(each.kind == POD for each in self.victims)
        return max(priorities, default=-(1 << 31)), pods, len(priorities), sum(priorities), self.node


class Holders(NamedTuple):
    """What is known of holders besides their claims."""

    pods: Callable[[str], Pod | None]
    """By `namespace/name`."""
    is_idle: Callable[[Claim], bool]
    """Whether no pod uses the claim's group, nor waits for it."""
    spared: Collection[str] = ()
    """The UIDs of pods that a PodDisruptionBudget keeps now."""


def searched(steps: Steps[T]) -> T:
    """What the search finds, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def priority_of(pod: Pod) -> int:
    """Its priority, as the API server resolved its class."""
    return pod.spec.priority or 0


def fits_somewhere(fleet: Fleet, pod: Pod, request: Request) -> bool:
    """Whether a node that the pod may go to has what it needs now: it waits for something else, or not for long."""
    return any(not unusable(node, pod) for node in fleet.shared_nodes(fleet.fitting(request)))


def make_room(fleet: Fleet, pod: Pod, request: Request, holders: Holders) -> Steps[MadeRoom | None]:
    """Where room can be made for the pod at the least cost, or None: nobody of lower priority has what it needs."""
    if fleet.quotas.obstacle(request):
        return None
    best: MadeRoom | None = None
    selector, home = request.node_selector.items(), fleet.home(request)
    nodes = fleet.shared_nodes([home] if home else None)
    fitting = [node for node in nodes if not unusable(node, pod) and node.metadata.labels.items() >= selector]
    for node in fitting[:MOST_NODES]:
        name = node.metadata.name
        if fleet.obstacle(name) or fleet.opacity(request, name):
            continue
        found = yield from _on_node(fleet, name, pod, request, holders)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return best


def _on_node(fleet: Fleet, name: str, pod: Pod, request: Request, holders: Holders) -> Steps[MadeRoom | None]:
    ledger = fleet.ledger(name)
    if ledger is None or request.taker.uid in ledger.claims:
        return None
    lower = {uid: found for uid, each in ledger.claims.items() if (found := _victim(uid, each, request, holders))}
    going = {uid for uid, each in ledger.claims.items() if _is_going(uid, each, holders)}
    lower = {uid: each for uid, each in lower.items() if each.priority < priority_of(pod) and uid not in going}
    # What is kept free for others of as much priority comes first.
    nominated = ((who, each) for who, each in fleet.nominated(name) if each.priority >= request.priority)
    ahead = [each for who, each in nominated if who != pod.metadata.key]

    def fits(gone: Collection[str]) -> bool:
        away = going.union(gone)
        claims = {uid: claim for uid, claim in ledger.claims.items() if uid not in away}
        # No version: what is computed of it is not kept in place of what the real one is asked for.
        meta = replace(ledger.metadata, resource_version="")
        rest: NodeDevices | None = replace(ledger.with_claims(claims), metadata=meta)
        for each in (*ahead, request):
            rest = _with(rest, each) if rest else None
        return rest is not None

    yield
    if fits(()):
        return MadeRoom(name, ())
    best: MadeRoom | None = None
    for order in _orders(ledger, lower) if lower else ():
        victims = yield from _fewest(order, fits)
        if victims and (best is None or MadeRoom(name, victims).cost < best.cost):
            best = MadeRoom(name, victims)
    return best


def _victim(uid: str, claim: Claim, request: Request, holders: Holders) -> PreemptedHolder | None:
    if claim.group:
        return PreemptedHolder(0, GROUP, claim.group, uid) if not request.sharer and holders.is_idle(claim) else None
    pod = holders.pods(claim.pod)
    if pod is None or pod.metadata.uid != uid or uid in holders.spared or claim.within != request.within:
        return None
    return PreemptedHolder(priority_of(pod), POD, claim.pod, uid)


def _is_going(uid: str, claim: Claim, holders: Holders) -> bool:
    if claim.group or claim.releasing:
        return bool(claim.releasing)
    pod = holders.pods(claim.pod)
    # A pod that ended, or is gone, leaves its claim for a moment: nobody else has to go for what comes free by itself.
    return pod is None or pod.metadata.uid != uid or pod.finished or bool(pod.metadata.deletion_timestamp)


def _orders(ledger: NodeDevices, lower: Mapping[str, PreemptedHolder]) -> Iterable[list[PreemptedHolder]]:
    """In which order they would go: all of them, and those on each device alone, which for a share are the fewest."""
    every = sorted(lower.values())
    yield every
    mine = {uid: identities(map(ledger.present, ledger.claims[uid].devices)) for uid in lower}
    for device in sorted(set().union(*mine.values())):
        if 0 < len(found := [each for each in every if device in mine[each.uid]]) < len(every):
            yield found


def _fewest(
    order: list[PreemptedHolder], fits: Callable[[Collection[str]], bool]
) -> Steps[tuple[PreemptedHolder, ...]]:
    """The first of them that have to go, without those who may stay after all, the most important first."""
    few = order[:MOST_VICTIMS]
    low, high = 0, len(few)
    yield
    if not fits([each.uid for each in few]):
        return ()
    while low + 1 < high:
        middle = (low + high) // 2
        yield
        low, high = (low, middle) if fits([each.uid for each in few[:middle]]) else (middle, high)
    chosen = few[:high]
    for victim in reversed(few[:high]):
        yield
        if len(chosen) > 1 and fits([each.uid for each in chosen if each is not victim]):
            chosen.remove(victim)
    return tuple(chosen)


def _with(ledger: NodeDevices, request: Request) -> NodeDevices | None:
    """The ledger with what the request would get there; None where it doesn't fit."""
    if counted_only(request, ledger.counts_only):
        return None
    claims, free = dict(ledger.claims), allocation.available(ledger, request.within)
    if request.resources and request.holder.uid not in claims:
        if (devices := allocation.choose(request, free)) is None:
            return None
        claims[request.holder.uid] = claim_of(request.holder, devices)
        rooms = [(each.device, each.whole) for each in device_states(ledger) if each.device in devices]
    else:
        rooms = list(free.rooms)
    if request.share:
        if (shares := allocation.choose_shares(request.share, request.strategy, rooms)) is None:
            return None
        claims[request.taker.uid] = share_claim_of(request.taker, current(shares), request.within)
    return ledger.with_claims(claims)
