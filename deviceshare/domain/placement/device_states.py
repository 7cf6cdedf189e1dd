"""Device states: who has each device of a node, and what is free, evaluated once for each ledger and node."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device, Devices, Identity
from deviceshare.domain.objects.hardware import Hardware, Part, Withheld
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.shares import Holder, Share
from deviceshare.domain.placement.handover import doubts
from deviceshare.domain.placement.rooms import Room, capacity, units, used
from deviceshare.domain.wording import listed

K = TypeVar("K", bound=Hashable)

# DeviceState: who uses a device, its health, every reason why nobody gets it, and how much of it is left for shares.
# Use and health are two dimensions: an unhealthy GPU on which a group trains is held *and* unhealthy.

SHOWN_HOLDERS: Final = 4


class Use(StrEnum):
    """Who has a device; or, where nobody has it, whether a group may get it. Metrics and page use these words."""

    HELD = "held"
    """A group has it, by its claim."""
    SHARED = "shared"
    """Pods have shares of it, by their claims."""
    RELEASING = "releasing"
    """Its claim is being released; the last pods of the group may still use it."""
    FORMER = "former"
    """A rebind replaced it, and pods that received it may still use it."""
    PLUGIN = "plugin"
    """The vendor's device plugin allocated it to a pod."""
    CLAIMED = "claimed"
    """A ResourceClaim holds it: DRA allocated it."""
    SPLIT = "split"
    """Nobody's, but split by NVIDIA's MIG: its parts may be others', as another resource."""
    WITHHELD = "withheld"
    """Nobody's, and not for groups, such as by the node's annotation."""
    LEFT = "left"
    """Nobody's, but the device plugin may allocate it: no placeholder pod reserves it for groups."""
    UNUSABLE = "unusable"
    """Nobody's, and nobody gets it: it is unhealthy or lost, its ledger can't be read, or a claim may mean it."""
    FREE = "free"
    """Nobody's, and a group or shares may get it now, as far as it serves these."""


ALLOCATED: Final = frozenset({Use.HELD, Use.SHARED, Use.RELEASING, Use.FORMER, Use.PLUGIN, Use.CLAIMED})
"""Uses of devices that somebody has."""


class Health(StrEnum):
    """Whether a device works, whoever has it."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    """The node doesn't have it any more."""
    UNKNOWN = "unknown"
    """No agent watches it. It is taken for healthy."""

    @property
    def sound(self) -> bool:
        """Whether the device is there and not known to be unhealthy."""
        return self is Health.HEALTHY or self is Health.UNKNOWN


class Sharer(NamedTuple):
    """A pod that has a part of the device."""

    uid: str
    claim: Claim
    shares: tuple[Share, ...]
    """Of this device."""


SERVES_SHARES: Final = "shares"
SERVES_GROUPS: Final = "groups"


class DeviceState(Struct, frozen=True):
    """One device. Several reasons may keep it from groups at once: `use` is the first, `barriers` names them all."""

    device: Device
    """In the node's present numbering; a lost one as it was called last."""
    use: Use
    health: Health
    uid: str = ""
    """Whose claim it is in, be it as a former device; "" in none."""
    claim: Claim | None = None
    holders: frozenset[str] = frozenset()
    """The UIDs of the claims that hold it. Two of them contradict each other; each is judged by all that it names."""
    part: Part | None = None
    """What the node's agent reports of it."""
    pod: str = ""
    """`namespace/name` of the pod that the device plugin allocated it to."""
    placeholder: str = ""
    """`namespace/name` of the pod that keeps it from the device plugin, for groups."""
    withheld: str = ""
    """Why it isn't for groups, whoever has it."""
    left: bool = False
    """Whether the device plugin may allocate it to any pod next."""
    memory_mib: int = 0
    """0 where it is unknown."""
    sharers: tuple[Sharer, ...] = ()
    """The pods with shares of it, sorted by name."""
    serves: str = ""
    """SERVES_SHARES or SERVES_GROUPS alone, by the node's annotation; "" for either."""
    resource_claim: str = ""
    """`namespace/name` of the ResourceClaim that holds it, or the names of several."""
    doubt: Withheld | None = None
    """Why a claim may mean it that names devices otherwise (handover.doubts), so that nobody new gets it."""
    claimed_twice: tuple[Holder, ...] = ()
    """Whose claims contradict each other about it, be it as a former device or by more shares than it has room for."""
    shareable: bool = False
    """Whether pods without a group may get shares of it now, as far as there is room. It and `room` follow from the
    rest, once for all that ask for them."""
    room: Room = Room("", 0, 0)
    """What of it is left for shares of pods without a group."""

    def __post_init__(self) -> None:
        sound = self.use in (Use.FREE, Use.SHARED) and self.serves != SERVES_GROUPS and self.health.sound
        elsewhere = self.pod or self.resource_claim or self.withheld or self.left or self.split
        shareable = sound and not (elsewhere or self.claimed_twice or (self.doubt and not self.uid))
        free = self.room_within("").free if shareable else 0
        force_setattr(self, "shareable", shareable)
        force_setattr(self, "room", _room(self.device.resource, self.memory_mib, free))

    @property
    def free(self) -> bool:
        """Whether a group may get it now."""
        return self.use is Use.FREE and self.serves != SERVES_SHARES

    @property
    def whole(self) -> Room:
        """All of it, as a group gets it."""
        return Room(self.device.resource, self.memory_mib, capacity(self.memory_mib))

    def room_within(self, within: str) -> Room:
        """What of it is left for shares of the group that holds it, by the group's UID; "" for nobody's device.

        Whether anybody may get it is another question.
        """
        size = self.memory_mib
        taken = sum([used(each.shares, size) for each in self.sharers if each.claim.within == within])
        return _room(self.device.resource, size, capacity(size) - taken)

    @property
    def lost(self) -> bool:
        """Whether the node doesn't have it any more."""
        return self.health is Health.LOST

    @property
    def offered(self) -> bool:
        """Whether the node has it for groups, whoever has it now."""
        return self.health is not Health.LOST and not self.withheld

    @property
    def split(self) -> bool:
        """Whether it is split by MIG, whoever has it."""
        return self.part is not None and self.part.mig

    @property
    def group(self) -> str:
        """The group whose claim it is in, or ""."""
        return self.claim.holder_name if self.claim else ""

    @property
    def unhealthy(self) -> str:
        """What is wrong with it, such as `Xid 79: GPU has fallen off the bus`; "" where that is nothing or unknown."""
        return self.part.unhealthy if self.part else ""

    @property
    def since(self) -> str:
        """When that was found, RFC 3339."""
        return self.part.since if self.part else ""

    @property
    def fault(self) -> str:
        """Its health in words: `unhealthy: Xid 79`, `lost: no longer on the node`; "" for a sound one."""
        return "" if self.health.sound else f"{self.health}: {self.unhealthy or 'no longer on the node'}"

    @property
    def barriers(self) -> dict[Use | Health, str]:
        """Every reason but its claim why no group gets it, as the end of a sentence that begins with the device."""
        unsure = f"in doubt: {self.doubt.reason}" if self.doubt and not self.uid else ""
        if self.claimed_twice:
            unsure = f"claimed by each of {listed(map(str, self.claimed_twice), most=SHOWN_HOLDERS)}"
        reasons: dict[Use | Health, str] = {
            Use.PLUGIN: f"allocated to pod {self.pod} by the device plugin" if self.pod else "",
            Use.CLAIMED: f"held by ResourceClaim {self.resource_claim}" if self.resource_claim else "",
            Use.SPLIT: "split by MIG" if self.split else "",
            Use.WITHHELD: f"withheld: {self.withheld}" if self.withheld else "",
            Use.LEFT: "left to the device plugin" if self.left else "",
            Use.UNUSABLE: unsure,
            self.health: self.fault,
        }
        return {kind: reason for kind, reason in reasons.items() if reason}

    @property
    def dependable(self) -> bool:
        """Whether a group that holds it can count on it: it is sound, and nobody else has it or may get it."""
        others = self.pod or self.resource_claim or self.left or self.claimed_twice
        return self.health.sound and self.offered and not others

    @property
    def allocated_twice(self) -> bool:
        """Whether groups or shares have it, and the device plugin or DRA allocated it to others, too."""
        return bool(self.holders) and bool(self.pod or self.resource_claim)


_room: Final = lru_cache(4096)(Room)
"""Most devices of a cluster are alike, and many are whole."""


# The state of every device of a node, decided from its ledger and its agent's report.


def device_states(ledger: NodeDevices) -> tuple[DeviceState, ...]:
    """Every device that is offered to groups, withheld from them, lost, or in a claim; sorted.

    A device that is offered under two names is there twice, as `huawei.com/Ascend910` 0 and `huawei.com/Ascend310P` 0.
    """
    known = _known.pop(ledger.node, ())
    states = next((states for each, states in known if each is ledger or _decides_the_same(each, ledger)), None)
    if states is None:
        states = _decide(ledger)
    _known[ledger.node] = ((ledger, states), *[each for each in known if each[1] is not states][:1])
    if len(_known) > KEPT:
        del _known[next(iter(_known))]
    return states


KEPT: Final = 128
"""Nodes of which the states are kept: who writes a ledger, watches it and says what came free asks again."""
_known: Final[dict[str, tuple[tuple[NodeDevices, tuple[DeviceState, ...]], ...]]] = {}
"""By node, of the last two ledgers that were asked about, the last first: as it was and as it is are compared."""


def _decides_the_same(one: NodeDevices, other: NodeDevices) -> bool:
    """Whether they agree in all that the states follow from, as a ledger with a proposed claim and the one written."""
    hidden = one.metadata.unreadable == other.metadata.unreadable
    return hidden and one.spec.claims == other.spec.claims and one.status == other.status


def concerned(old: NodeDevices | None, new: NodeDevices | None) -> Collection[str] | None:
    """The UIDs of the holders to whom a changed ledger says something else; None where that may be any."""
    if old is None or new is None or old.metadata.unreadable != new.metadata.unreadable or old.status != new.status:
        return None
    uids = _unlike(old.spec.claims, new.spec.claims)
    before, after = ({state.device: state for state in device_states(each)} for each in (old, new))
    for device in _unlike(before, after):
        for state in filter(None, (before.get(device), after.get(device))):
            uids |= {state.uid, *state.holders, *(holder.uid for holder in state.claimed_twice)}
    return uids


def _unlike(before: Mapping[K, object], after: Mapping[K, object]) -> set[K]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def _decide(ledger: NodeDevices) -> tuple[DeviceState, ...]:
    hardware, kept_out = ledger.hardware, ledger.kept_out
    lost = {part.device.identity: part for part in hardware.devices if part.lost}
    parts = lost | {part.device.identity: part for part in hardware.devices if not part.lost}
    withheld = {device.identity: reason for device, reason in kept_out.items()}
    there = {device: device.identity for device in (*ledger.devices, *kept_out)}
    present = set(there.values())
    named = _Names(ledger, there, {part.device: key for key, part in lost.items() if key not in present})
    held, holders, sharers, wholes = _claimed(ledger, named)
    serves = {named.find(device): SERVES_SHARES for device in ledger.status.for_shares}
    serves |= {named.find(device): SERVES_GROUPS for device in ledger.status.for_groups}
    pods, placeholders = _allocated(hardware, named)
    claims = {named.find(each.device): each.claim for each in ledger.status.published.claims}
    unsure = doubts(ledger)
    states = []
    for device, identity in named.devices.items():
        part, pod, kept = parts.get(identity), pods.get(identity, ""), placeholders.get(identity, "")
        resource_claim = claims.get(identity, "")
        gone = identity not in present or identity in lost
        if gone:
            health = Health.LOST
        elif part is None or hardware.published:
            health = Health.UNKNOWN
        else:
            health = Health.UNHEALTHY if part.unhealthy else Health.HEALTHY
        left = hardware.placeholders and part is not None and not (gone or pod or kept)
        use, uid, claim = held.get(identity, (None, "", None))
        if use is None:
            barriers = {
                Use.PLUGIN: pod,
                Use.CLAIMED: resource_claim,
                Use.SPLIT: part is not None and part.mig,
                Use.WITHHELD: identity in withheld,
                Use.LEFT: left,
                Use.UNUSABLE: not health.sound or ledger.metadata.unreadable or device.resource in unsure,
            }
            use = next((each for each, bars in barriers.items() if bars), Use.FREE)
        mine, why, size = frozenset(holders.get(identity, ())), withheld.get(identity, ""), ledger.memory_of(device)
        pods_with_shares, only = tuple(sharers.get(identity, ())), serves.get(identity, "")
        twice = _claimed_twice(ledger, wholes.get(identity, ()), pods_with_shares, size)
        shared = pods_with_shares, only, resource_claim, unsure.get(device.resource), twice
        states.append(DeviceState(device, use, health, uid, claim, mine, part, pod, kept, why, left, size, *shared))
    return tuple(sorted(states, key=attrgetter("device")))


def free_devices(states: Iterable[DeviceState]) -> Devices:
    """The devices that a group may get now, in the order of the states."""
    return tuple([state.device for state in states if state.free])


def doubted(states: Iterable[DeviceState]) -> dict[str, Withheld]:
    """By resource, why claims may mean any of its devices."""
    return {state.device.resource: state.doubt for state in states if state.doubt}


def unhealthy_among(states: Iterable[DeviceState]) -> str:
    """Which of these are unhealthy and why, in words; "" when none is."""
    return ", ".join(f"{each.device} is {each.health} ({each.unhealthy})" for each in states if each.unhealthy)


def held_by(states: Iterable[DeviceState], uid: str) -> list[DeviceState]:
    """The devices that the claim of this UID holds; former ones are not among them."""
    return [state for state in states if uid in state.holders]


def by_resource(states: Iterable[DeviceState]) -> dict[str, list[DeviceState]]:
    """The states by the resource of their devices."""
    mine: dict[str, list[DeviceState]] = {}
    for state in states:
        mine.setdefault(state.device.resource, []).append(state)
    return mine


def numbers(states: Iterable[DeviceState]) -> str:
    """The numbers of devices of one resource: `0,1`."""
    return ",".join(str(state.device.index) for state in states)


class _Names:
    """The node's devices by identity: finds the one that a name from any time means, and adds those it doesn't have."""

    def __init__(self, ledger: NodeDevices, there: dict[Device, Identity], lost: dict[Device, Identity]) -> None:
        self.devices = there | lost
        self._present, self._there = ledger.present, there
        self._known = set(self.devices.values())
        self._numbers = {(device.resource, device.index): identity for device, identity in lost.items()}

    def find(self, device: Device) -> Identity:
        """The device's identity. A lost one may be known by its number only, from before the node had an agent."""
        if device in self._there:
            return self._there[device]
        present = self._present(device)
        if present.identity in self._known or present.uuid:
            return present.identity
        return self._numbers.get((device.resource, device.index), present.identity)

    def add(self, device: Device) -> Identity:
        """The device's identity; it is listed from then on, also where the node doesn't have it."""
        identity = self.find(device)
        if identity not in self._known:
            self.devices[self._present(device)] = identity
            self._known.add(identity)
        return identity


class _Claimed(NamedTuple):
    """What the node's claims say of each device."""

    held: dict[Identity, tuple[Use, str, Claim | None]]
    """Who has it: what is held before what is former, and either before shares, which are nobody's in particular."""
    holders: defaultdict[Identity, set[str]]
    """The UIDs of the claims that hold it, former ones not among them."""
    sharers: defaultdict[Identity, list[Sharer]]
    """Who has which parts, former ones too. What a group no longer holds is shared like any other device."""
    wholes: defaultdict[Identity, list[tuple[str, str]]]
    """The groups' claims that reserve it, former ones too: the holder's UID, and the UUID that it names."""


def _claimed(ledger: NodeDevices, named: _Names) -> _Claimed:
    """One pass, since a node may have a thousand claims."""
    found, claims = _Claimed({}, defaultdict(set), defaultdict(list), defaultdict(list)), ledger.claims
    former, places = list[tuple[Identity, str, Claim]](), dict[tuple[str, int, str], Identity]()
    for uid, claim in sorted(claims.items(), key=lambda each: (each[1].pod, each[0])):
        for device in claim.whole:
            identity, use = named.add(device), Use.RELEASING if claim.releasing else Use.HELD
            found.held[identity] = use, uid, claim
            found.holders[identity].add(uid)
            if claim.group:
                found.wholes[identity].append((uid, device.uuid))
        for device in claim.former:
            former.append((named.add(device), uid, claim))
            if claim.group:
                found.wholes[former[-1][0]].append((uid, device.uuid))
        mine: dict[Identity, list[Share]] = {}
        for share in claim.shares:
            name = share.resource, share.index, share.uuid
            if name not in places:
                places[name] = named.add(share.device)
            mine.setdefault(places[name], []).append(share)
            if not share.former:
                found.holders[places[name]].add(uid)
        group = claims.get(claim.within) if claim.within else None
        theirs = {named.find(device) for device in (*group.whole, *group.former)} if group else ()
        for identity, shares in mine.items():
            counted = claim if identity in theirs or not claim.within else replace(claim, within="")
            found.sharers[identity].append(Sharer(uid, counted, tuple(shares)))
    for identity, uid, claim in former:
        found.held.setdefault(identity, (Use.FORMER, uid, claim))
    for identity in found.sharers:
        found.held.setdefault(identity, (Use.SHARED, "", None))
    return found


def _claimed_twice(
    ledger: NodeDevices, wholes: Collection[tuple[str, str]], sharers: Collection[Sharer], size: int
) -> tuple[Holder, ...]:
    """The holders whose claims contradict each other about one device, sorted.

    Where nothing is known of the hardware, names with different UUIDs may have been found by the same number: these are
    different devices all the same.
    """
    if len(wholes) + len(sharers) < 2:
        return ()
    twice: set[str] = set()
    for uuid in {name for _, name in wholes} | {each.shares[0].uuid for each in sharers}:
        owners = {uid for uid, name in wholes if name in ("", uuid)}
        parts = [each for each in sharers if each.shares[0].uuid in ("", uuid)]
        for within in {each.claim.within for each in parts}:
            mine = [each for each in parts if each.claim.within == within]
            beside = owners - {within, *(each.uid for each in mine)}
            if beside or (len(mine) > 1 and _exceeds(mine, size)):
                twice |= {*beside, *(each.uid for each in mine)}
        twice |= owners if len(owners) > 1 else set()
    return tuple(sorted(ledger.claims[uid].holder(uid) for uid in twice))


def _exceeds(sharers: Iterable[Sharer], size: int) -> bool:
    """Whether their shares are more than the device has; never where that can't be said."""
    each = [sharer.shares for sharer in sharers]
    more = sum(used(shares, size) for shares in each) > capacity(size)
    return more and all(units(share, size) is not None for shares in each for share in shares)


def _allocated(hardware: Hardware, named: _Names) -> tuple[dict[Identity, str], dict[Identity, str]]:
    """The pods that the vendor's device plugin allocated devices to: plain ones, and placeholders."""
    pods: dict[Identity, str] = {}
    placeholders: dict[Identity, str] = {}
    for allocation in hardware.allocations or ():
        # Who has a turn on a device has the device; a placeholder that has only a turn keeps nobody away.
        resource = allocation.resource if allocation.placeholder else vendors.counted_as(allocation.resource)
        found = {named.find(Device(resource, index)): allocation.pod for index in allocation.indices}
        (placeholders if allocation.placeholder else pods).update(found)
    return pods, placeholders
