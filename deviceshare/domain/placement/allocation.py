"""Allocation: the devices that a group or a share gets on a node, by topology and by room."""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final, NamedTuple

from deviceshare.domain.objects.devices import Device, Devices, identities
from deviceshare.domain.objects.hardware import NUMA, NVLINK, SWITCH, Link
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import INIT, INITS, SIDECAR, Need, Request, Share, ShareRequest, share_of
from deviceshare.domain.placement.device_states import DeviceState, device_states, free_devices, held_by
from deviceshare.domain.placement.rooms import Room, units, used
from deviceshare.domain.wording import listed

# The topology of a node's devices: how they are joined, and which of them are joined best.
# A set is better if more of its pairs are joined by NVLink, then by NVLinks in number, then if more pairs share a
# PCIe switch, then a NUMA node; of equals the one with the lowest indices.

EXHAUSTIVE: Final = 2_000
"""Sets that are all compared, a few milliseconds' work: any of up to 12 devices. Of more, sets are grown one by one."""


class Closeness(NamedTuple):
    """How well a set of devices is connected; the greater the better."""

    nvlink_pairs: int = 0
    lanes: int = 0
    switch_pairs: int = 0
    numa_pairs: int = 0


Pairs = Mapping[tuple[str, int, int], Link]


def closest(candidates: Sequence[Device], count: int, links: Iterable[Link], kept: Devices = ()) -> Devices:
    """The `count` best connected of the candidates, which are sorted and of one resource, at least `count`.

    `kept` are devices that the group has already and keeps: being close to them counts as well.
    """
    pairs = _pairs(links, {device.resource for device in candidates})
    if not pairs or count == 0 or count == len(candidates):
        return tuple(candidates[:count])
    sets: Iterable[Devices] = combinations(candidates, count)
    if comb(len(candidates), count) > EXHAUSTIVE:
        sets = (_grown(first, candidates, count, pairs, kept) for first in candidates)
    # max takes the first of equals, so the lowest indices win.
    return max(sets, key=lambda chosen: _closeness((*kept, *chosen), pairs))


def topology_reason(devices: Iterable[Device], links: Iterable[Link]) -> str:
    """How these devices are connected, for people; "" where that is unknown, or there is but one."""
    chosen, known = tuple(devices), tuple(links)
    if not (pairs := comb(len(chosen), 2)) or not known:
        return ""
    found = _closeness(chosen, _pairs(known, {device.resource for device in chosen}))
    if found.nvlink_pairs == pairs:
        return "all joined by NVLink"
    if found.nvlink_pairs + found.switch_pairs == pairs and not found.nvlink_pairs:
        return "all behind one PCIe switch"
    if found.numa_pairs == pairs:
        return "all on one NUMA node"
    numbers = (found.nvlink_pairs, found.switch_pairs, found.numa_pairs)
    named = zip(numbers, ("by NVLink", "by a PCIe switch", "by their NUMA node"), strict=True)
    joined = [(number, how) for number, how in named if number]
    if not joined:
        return "not close to one another"
    if pairs == 1:
        return f"joined {joined[0][1]}"
    return f"of {pairs} pairs joined: {', '.join(f'{number} {how}' for number, how in joined)}"


def _grown(first: Device, candidates: Sequence[Device], count: int, pairs: Pairs, kept: Devices) -> Devices:
    chosen, rest = [first], [device for device in candidates if device != first]
    while len(chosen) < count:
        best = max(rest, key=lambda device: _closeness((*kept, *chosen, device), pairs))
        chosen.append(best)
        rest.remove(best)
    return tuple(sorted(chosen))


def _closeness(devices: Sequence[Device], pairs: Pairs) -> Closeness:
    keys = ((a.resource, a.index, b.index) for a, b in combinations(devices, 2) if a.resource == b.resource)
    found = [link for key in keys if (link := pairs.get(key))]
    kinds = [link.kind for link in found]
    return Closeness(kinds.count(NVLINK), sum(link.lanes for link in found), kinds.count(SWITCH), kinds.count(NUMA))


def _pairs(links: Iterable[Link], resources: Container[str]) -> Pairs:
    mine = [link for link in links if link.resource in resources]
    return {(link.resource, *ends): link for link in mine for ends in ((link.a, link.b), (link.b, link.a))}


# The choice of devices for shares: best fit, or most room, each container's parts on distinct devices.
# All or nothing: every container of a pod gets its parts on one node, from devices of one resource, or none does.

BINPACK: Final = "binpack"
SPREAD: Final = "spread"
_STEPS: Final = 1_000
"""Situations looked at for one pod on one node, at most: some milliseconds. What takes more is refused, though it may
fit."""


class Effort:
    """How many more situations may be looked at, for all nodes of one call together.

    Who can create a pod can ask for dozens of parts that nearly fit, and the search for those takes long on each node.
    """

    def __init__(self, steps: int = _STEPS) -> None:
        self.left = steps


class Placed(NamedTuple):
    """The place of one need: a position in the rooms that were given."""

    need: Need
    place: int


Places = list[Placed] | None
"""Where each need is met; None where they don't fit, or the effort is spent."""


def choose_shares(
    share: ShareRequest, strategy: str, devices: Sequence[tuple[Device, Room]]
) -> tuple[Share, ...] | None:
    """The parts of these devices that the pod gets; None where they have no room for all of it."""
    parts = place(share, strategy, [room for _, room in devices])
    return None if parts is None else tuple(sorted(share_of(part.need, devices[part.place][0]) for part in parts))


def place(share: ShareRequest, strategy: str, rooms: Sequence[Room], effort: Effort | None = None) -> Places:
    """Where the share's needs go in these rooms: all in those of one resource."""
    for resource in share.of:
        here = [position for position, room in enumerate(rooms) if room.resource == resource]
        parts = meet(share.needs, strategy, [rooms[position] for position in here], effort)
        if parts is not None:
            return [Placed(need, here[position]) for need, position in parts]
    return None


def meet(needs: Iterable[Need], strategy: str, rooms: Sequence[Room], effort: Effort | None = None) -> Places:
    """Where the needs go in these rooms, which are all of one resource."""
    inits: dict[str, list[Need]] = {}
    running: list[Need] = []
    for need in needs:
        (inits.setdefault(need.container, []) if need.role in INITS else running).append(need)
    search = _Search(rooms, strategy, effort or Effort(), [_largest_first(mine) for mine in inits.values()])
    return search.run(_largest_first(running), (), set())


class _Search:
    """One search: the rooms as they get fuller, and the steps that are left."""

    def __init__(self, rooms: Sequence[Room], strategy: str, effort: Effort, inits: list[list[Need]]) -> None:
        self._before = tuple(rooms)
        self._rooms = list(rooms)
        self._beside = [0] * len(rooms)
        """What sidecars take of each room: what they leave, an init container may have before the others start."""
        self._spread = strategy == SPREAD
        self._effort = effort
        self._spent = max(effort.left - _STEPS, 0)
        self._inits = inits

    def run(self, needs: Sequence[Need], placed: tuple[Placed, ...], failed: set[tuple[object, ...]]) -> Places:
        """Meets what runs together; goes back where that, or an init container, then finds no room."""
        if not needs:
            more = self._each_init({part.place for part in placed})
            return None if more is None else [*placed, *more]
        need, *others = needs
        mine = {part.place for part in placed if part.need.container == need.container}
        for position in self._candidates(self._rooms, need, (), mine):
            if not self._step():
                return None
            room, beside = self._rooms[position], self._beside[position]
            cost = units(need, room.size) or 0
            self._rooms[position] = room.less(cost)
            self._beside[position] += cost if need.role == SIDECAR else 0
            # One device is as good as another with the same room, so a situation is tried once.
            taken = {*mine, position} if others and others[0].container == need.container else ()
            now = enumerate(zip(self._rooms, self._before, self._beside, strict=True))
            alike = sorted((room.free, before.free, room.size, by, i in taken) for i, (room, before, by) in now)
            situation = len(others), tuple(alike)
            if situation not in failed:
                parts = self.run(others, (*placed, Placed(need, position)), failed)
                if parts is not None:
                    return parts
                failed.add(situation)
            self._rooms[position], self._beside[position] = room, beside
        return None

    def _each_init(self, preferred: Collection[int]) -> Places:
        """Where each init container has its parts beside the sidecars alone; best where others get theirs."""
        parts: list[Placed] = []
        for needs in self._inits:
            beside = self._beside if needs[0].role == INIT else [0] * len(self._before)
            rooms = [room.less(taken) for room, taken in zip(self._before, beside, strict=True)]
            mine: set[int] = set()
            for need in needs:
                # Parts of one container are alike but for one, which comes last: the first that fits will do.
                position = next(iter(self._candidates(rooms, need, preferred, mine)), None)
                if position is None:
                    return None
                mine.add(position)
                parts.append(Placed(need, position))
        return parts

    def _step(self) -> bool:
        self._effort.left -= 1
        return self._effort.left >= self._spent

    def _candidates(
        self, rooms: Sequence[Room], need: Need, preferred: Collection[int], mine: Collection[int]
    ) -> list[int]:
        """The devices with room for it, the best first, but for those of which its container has a part."""
        fits = [position for position, room in enumerate(rooms) if room.takes(need) and position not in mine]
        sign = -1 if self._spread else 1
        # In MiB, since the same part leaves less of a smaller card; a card of unknown size counts for what it has.
        return sorted(fits, key=lambda each: (each not in preferred, sign * rooms[each].free, each))


def _largest_first(needs: Iterable[Need]) -> list[Need]:
    """The alike parts of a container one after the other, on which `run` relies."""
    return sorted(needs, key=lambda need: (-need.percent, -need.memory_mib, need.container))


def how_many(share: ShareRequest, rooms: Sequence[Room], most: int, effort: Effort | None = None) -> int:
    """How many pods with this share have room here together; counts no further than `most`, or `effort` lasts."""
    left = list(rooms)
    for number in range(most):
        parts = place(share, "", left, effort)
        if not parts:
            return number
        for position in {part.place for part in parts}:
            mine = [part.need for part in parts if part.place == position]
            left[position] = left[position].less(used(mine, left[position].size))
    return most


def tightness(share: ShareRequest, rooms: Sequence[Room], effort: Effort | None = None) -> int:
    """How much room the devices have together that the share would get here: the less, the better the fit."""
    if len(share.needs) == 1:
        [need] = share.needs
        fits = ([room.free for room in rooms if room.resource == each and room.takes(need)] for each in share.of)
        return min(next(filter(None, fits), (0,)))
    parts = place(share, "", rooms, effort)
    return sum(rooms[position].free for position in {position for _, position in parts}) if parts else 0


def share_shortage(share: ShareRequest, rooms: Sequence[Room], effort: Effort | None = None) -> Reason | None:
    """Why the share doesn't fit on a node with these rooms, or None where it does."""
    if len(share.needs) == 1:  # it fits where any device takes it; of sorted rooms the last ones have the most left
        fits = any(room.takes(share.needs[0]) and room.resource in share.of for room in reversed(rooms))
    else:
        fits = place(share, "", rooms, effort) is not None
    if fits:
        return None
    if effort and effort.left <= 0 and len(share.needs) > 1:
        return NOT_COMPARED
    mine = [room for room in rooms if room.resource in share.of]
    if mine and any(need.memory_mib for need in share.needs) and not any(room.size for room in mine):
        return MEMORY_UNKNOWN
    largest = max(mine, key=lambda room: room.free, default=None)
    # kube-scheduler writes the number of nodes in front of a reason, hence words like those of its own reasons.
    free = f"at most {largest} of one are free" if largest else "the node has none for shares"
    if largest and all(map(largest.takes, share.needs)):
        free = "no devices have room for all of that together"
    return Reason(ReasonKind.TOO_FULL, f"node(s) too full: the pod needs {share.wanted}; {free}")


NOT_COMPARED: Final = Reason(
    ReasonKind.TOO_FULL,
    "the pod's parts are so many that not every node has been looked at yet; the others follow",
    "ask for fewer parts in one pod",
)
"""Where the effort of a call is spent: no answer, and never kept as one."""

MEMORY_UNKNOWN: Final = Reason(
    ReasonKind.MEMORY_UNKNOWN,
    "the memory of the node's GPUs is not known, so no share by memory can be allocated",
    "run deviceshare's agent there (agent.enabled=true) or GPU feature discovery, or ask by percent"
    " (deviceshare.io/gpu-percent)",
)


# Fit, choice and score: which devices a request gets on a node, and which node is better.

Preference = tuple[int, int]
"""What nodes are compared by, and by what those that are equal: the less, the fuller (`Shape.preference`)."""
MAX_SCORE = 10
"""kube-scheduler's MaxExtenderPriority (k8s.io/kube-scheduler/extender/v1)."""


class Available(NamedTuple):
    """What can be claimed on a node now."""

    devices: Devices
    links: list[Link]
    """How the node's devices are joined, as far as its agent reports."""
    rooms: tuple[tuple[Device, Room], ...] = ()
    """What is left for shares, of each device that serves any."""


def rooms(states: Iterable[DeviceState], within: str = "") -> tuple[tuple[Device, Room], ...]:
    """What is left for shares of nobody's devices, or of those that the group with this UID holds."""
    if within:
        return tuple((state.device, state.room_within(within)) for state in held_by(states, within))
    return tuple((state.device, state.room) for state in states if state.shareable)


class Assumption(NamedTuple):
    """Devices, or shares of devices, that a bind under way takes on a node, before its claim is in the ledger."""

    node: str
    devices: Devices = ()
    shares: tuple[Share, ...] = ()
    within: str = ""
    """The UID of the group of whose devices the shares are parts."""


def free_beside(devices: Devices, assumed: Collection[Assumption]) -> Devices:
    """The devices that are free beside these, too."""
    whole = [device for each in assumed for device in each.devices]
    taken = identities([*whole, *(share.device for each in assumed for share in each.shares)])
    return tuple([device for device in devices if device.identity not in taken]) if taken else devices


def rooms_beside(
    rooms: tuple[tuple[Device, Room], ...], assumed: Collection[Assumption], within: str = ""
) -> tuple[tuple[Device, Room], ...]:
    """What is left for shares of the devices of the group with the UID `within`, or of nobody's, beside these."""
    if not assumed:
        return rooms
    whole = set() if within else {identity for each in assumed for identity in identities(each.devices)}
    parts = [[(share.device.identity, share) for share in each.shares] for each in assumed if each.within == within]
    left = []
    for device, room in rooms:
        identity = device.identity
        rest = room._replace(free=0) if identity in whole else room
        for mine in parts:
            if shares := [share for key, share in mine if key == identity]:
                rest = rest.less(used(shares, room.size))
        left.append((device, rest))
    return tuple(left)


def available(ledger: NodeDevices, within: str = "", beside: Collection[Assumption] = ()) -> Available:
    """What nobody holds, by the ledger, and beside what is assumed; rooms of the group `within`, or of nobody's."""
    states = device_states(ledger)
    free, left = free_beside(free_devices(states), beside), rooms_beside(rooms(states, within), beside, within)
    return Available(free, ledger.hardware.links, left)


def shortage(request: Request, free: Mapping[str, int], total: Mapping[str, int]) -> str:
    """What is missing on a node with `free` of `total` devices by resource, or "" when the request fits."""
    return listed(
        f"{count} {resource} ({free.get(resource, 0)} of {total.get(resource, 0)} free)"
        for resource, count in sorted(request.resources.items())
        if free.get(resource, 0) < count
    )


def choose(request: Request, available: Available) -> Devices | None:
    """What meets the request: of each resource the best connected, else the lowest indices; None if none do."""
    chosen: list[Device] = []
    for resource, count in request.resources.items():
        candidates = sorted(device for device in available.devices if device.resource == resource)
        if len(candidates) < count:
            return None
        chosen.extend(closest(candidates, count, available.links))
    return tuple(sorted(chosen))


def meets(request: Request, devices: Iterable[Device]) -> bool:
    """Whether these are what is requested, no more and no less."""
    return Counter(device.resource for device in devices) == request.resources


def best(strategy: str, preferences: Iterable[Preference]) -> Preference:
    """What those with the highest of `scores` have; there is at least one."""
    return min(preferences) if strategy == BINPACK else max(preferences)


def scores(strategy: str, preferences: Mapping[str, Preference]) -> dict[str, int]:
    """How good each node is, 0 to `MAX_SCORE`, from what nodes are compared by.

    binpack prefers fuller nodes, spread emptier ones. The best ones alone get `MAX_SCORE`, so that kube-scheduler's own
    scores choose among equals only. Behind them any difference shows, whatever the nodes' sizes, as far as ten steps
    go: past that, neighbouring ranks share a score.
    """
    ordered = sorted(set(preferences.values()), reverse=strategy == BINPACK)
    ranks = {preference: rank for rank, preference in enumerate(ordered)}
    best, top = len(ranks) - 1, max(len(ranks) - 2, 1)
    steps = {
        preference: MAX_SCORE if rank == best else round((MAX_SCORE - 1) * rank / top)
        for preference, rank in ranks.items()
    }
    return {node: steps[preference] for node, preference in preferences.items()}
