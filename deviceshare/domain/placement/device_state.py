"""DeviceState: who uses a device, its health, every reason why nobody gets it, and how much of it is left for shares.

Use and health are two dimensions: an unhealthy GPU on which a group trains is held *and* unhealthy.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Part, Withheld
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.requests import Holder
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.rooms import Room, capacity, used
from deviceshare.domain.wording import listed

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
    """Why a claim may mean it that names devices otherwise (steady_numbers.py), so that nobody new gets it."""
    claimed_twice: tuple[Holder, ...] = ()
    """Whose claims contradict each other about it, be it as a former device or by more shares than it has room for."""

    @property
    def free(self) -> bool:
        """Whether a group may get it now."""
        return self.use is Use.FREE and self.serves != SERVES_SHARES

    @property
    def shareable(self) -> bool:
        """Whether pods without a group may get shares of it now, as far as there is room."""
        return self.use in (Use.FREE, Use.SHARED) and not self.barriers and self.serves != SERVES_GROUPS

    @property
    def room(self) -> Room:
        """What of it is left for shares of pods without a group."""
        return self.room_within("") if self.shareable else self.room_within("")._replace(free=0)

    @property
    def whole(self) -> Room:
        """All of it, as a group gets it."""
        return Room(self.device.resource, self.memory_mib, capacity(self.memory_mib))

    def room_within(self, within: str) -> Room:
        """What of it is left for shares of the group that holds it, by the group's UID; "" for nobody's device.

        Whether anybody may get it is another question.
        """
        mine = [each for each in self.sharers if each.claim.within == within]
        taken = sum(used(each.shares, self.memory_mib) for each in mine)
        return Room(self.device.resource, self.memory_mib, capacity(self.memory_mib) - taken)

    @property
    def lost(self) -> bool:
        """Whether the node doesn't have it any more."""
        return self.health is Health.LOST

    @property
    def offered(self) -> bool:
        """Whether the node has it for groups, whoever has it now."""
        return not self.lost and not self.withheld

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
        reasons: dict[Use | Health, str] = {
            Use.PLUGIN: f"allocated to pod {self.pod} by the device plugin" if self.pod else "",
            Use.CLAIMED: f"held by ResourceClaim {self.resource_claim}" if self.resource_claim else "",
            Use.SPLIT: "split by MIG" if self.split else "",
            Use.WITHHELD: f"withheld: {self.withheld}" if self.withheld else "",
            Use.LEFT: "left to the device plugin" if self.left else "",
            Use.UNUSABLE: self._unsure,
            self.health: self.fault,
        }
        return {kind: reason for kind, reason in reasons.items() if reason}

    @property
    def _unsure(self) -> str:
        if self.claimed_twice:
            return f"claimed by each of {listed(map(str, self.claimed_twice), most=SHOWN_HOLDERS)}"
        return f"in doubt: {self.doubt.reason}" if self.doubt and not self.uid else ""

    @property
    def dependable(self) -> bool:
        """Whether a group that holds it can count on it: it is sound, and nobody else has it or may get it."""
        others = self.pod or self.resource_claim or self.left or self.claimed_twice
        return self.health.sound and self.offered and not others

    @property
    def allocated_twice(self) -> bool:
        """Whether groups or shares have it, and the device plugin or DRA allocated it to others, too."""
        return bool(self.holders) and bool(self.pod or self.resource_claim)
