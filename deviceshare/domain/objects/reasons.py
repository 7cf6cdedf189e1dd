"""Reasons: why something is as it is, as one value for programs and for people, like a condition's reason and message.

Programs ask for the `kind`; the text is put together where a person reads it.
"""

from enum import StrEnum

from msgspec import Struct


class ReasonKind(StrEnum):
    """What is so, in one word. Those that a condition can have are its `reason`, unchanged."""

    # Of a node: no group gets devices there.
    NODE_NOT_SHARED = "NodeNotShared"
    NODE_GONE = "NodeGone"
    NODE_NOT_READY = "NodeNotReady"
    NODE_OUT_OF_SERVICE = "NodeOutOfService"
    NODE_CORDONED = "NodeCordoned"
    NODE_REBOOTED = "NodeRebooted"
    NODE_TAINTED = "NodeTainted"
    UNREADABLE = "Unreadable"
    DEVICES_UNKNOWN = "DevicesUnknown"

    # Of a node and a group: its next pod can't go there.
    NODE_SELECTOR = "NodeSelectorMismatch"
    OTHER_PLUGIN = "OtherDevicePlugin"
    DEVICES_OPAQUE = "UnknownAllocations"
    DEVICES_WITHHELD = "DevicesWithheld"
    TOO_FULL = "TooFewDevices"
    LEDGER_FULL = "LedgerFull"
    QUOTA = "QuotaExceeded"
    MEMORY_UNKNOWN = "DeviceMemoryUnknown"
    COUNTED_ONLY = "SharesNotEnforced"
    GROUP_ELSEWHERE = "GroupElsewhere"
    CLAIM_RELEASING = "ClaimReleasing"
    NOT_HELD = "DevicesNotHeld"
    INSUFFICIENT = "InsufficientResources"
    NODE_AVOIDED = "NodeAvoided"
    NODE_NOMINATED = "NodeNominated"

    # Of a pod: it can't join its group anywhere, or nothing of ours is in its way.
    NAMESPACE_LEFT_OUT = "NamespaceLeftOut"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    NAMESPACE_UNKNOWN = "NamespaceUnknown"
    NOT_INJECTED = "NotInjected"
    GROUP_MISSING = "GroupMissing"
    GROUP_DELETING = "GroupDeleting"
    GATED = "SchedulingGated"
    NODES_RULED_OUT = "NodesRuledOut"
    UNSCHEDULABLE = "Unschedulable"
    NOT_TRIED = "NotTried"
    REFUSED = "Refused"

    # Of a group's condition Bound.
    CLAIMED = "Claimed"
    NO_PODS = "NoPods"
    RELEASED = "Released"
    WAITING = "Waiting"
    NO_NODE_LARGE_ENOUGH = "NoNodeLargeEnough"
    INVALID_SPEC = "InvalidSpec"
    REPAIRING = "Repairing"

    # Of a group's condition Healthy, with some of those above.
    AS_CLAIMED = "AsClaimed"
    NOT_BOUND = "NotBound"
    CLAIM_MISSING = "ClaimMissing"
    DEVICES_LOST = "DevicesLost"
    DEVICES_UNHEALTHY = "DevicesUnhealthy"
    DEVICES_GIVEN_AWAY = "DevicesGivenAway"
    DEVICES_NOT_RESERVED = "DevicesNotReserved"
    CLAIMED_TWICE = "DevicesClaimedTwice"
    NOT_HANDED_OVER = "DevicesNotHandedOver"
    PODS_USE_PREVIOUS_DEVICES = "PodsUsePreviousDevices"


class Reason(Struct, frozen=True, gc=False, omit_defaults=True):
    """Why something is as it is, or can't be. Where nothing is in the way there is none: None."""

    kind: ReasonKind
    text: str
    cure: str = ""
    """The next step; "" where there is none to take: it ends without anybody's doing, or nothing is wrong."""
    details: tuple[str, ...] = ()
    """Particulars, such as who holds what on which node."""

    @property
    def headline(self) -> str:
        """It without its particulars."""
        return f"{self.text}: {self.cure}" if self.cure else self.text

    def __str__(self) -> str:
        """All of it in one line, as messages, events and answers have it."""
        return "; ".join((self.headline, *self.details))
