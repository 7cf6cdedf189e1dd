"""One term as the leader: the context of all its reconcilers, and how long something has been so in it."""

import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, NamedTuple, Protocol, TypeVar

from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import DEFAULT_LIFE, Group, GroupLife, NamespaceObject
from deviceshare.domain.objects.label_selector import EVERYTHING, LabelSelector
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import DEFAULT, HandoverSetting
from deviceshare.loops.leader.members import Members
from deviceshare.loops.ports import ApiError, Cluster, Mirror, Recorder
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from deviceshare.loops.queue import Later
from deviceshare.loops.subjects import subject_of

K = TypeVar("K", bound=Hashable)


class PodBinder(Protocol):
    """What placing needs of the Binder."""

    def remember(self, pod: Pod) -> None: ...

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None: ...


class GatePlacement(NamedTuple):
    """What placing behind scheduling gates needs besides (decision 16)."""

    binds: PodBinder
    """A Binder whose last step lifts the gate."""
    others: Mirror[Pod]
    """The pods on nodes that want nothing of deviceshare: they take CPU, memory and the like."""
    share_resources: Collection[str]
    """Those by which pods may ask for shares."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """The cluster, its mirrors and its clock; the next term gets a new one."""

    cluster: Cluster
    fleet: Fleet
    """Fed from the same mirrors, before they call the controller."""
    groups: Mirror[Group]
    ledgers: Mirror[NodeDevices]
    nodes: Mirror[Node]
    pods: Mirror[Pod]
    recorder: Recorder
    members: Members = field(default_factory=Members)
    """Kept up to date by the controller."""
    binds_over: float = BINDS_OVER_SECONDS
    """As the claim protocol says of this API server."""
    compares: bool = False
    """Whether it refuses a Binding whose pod was written since; likewise."""
    handover: HandoverSetting = DEFAULT
    clock: Callable[[], float] = time.monotonic
    namespaces: Mirror[NamespaceObject] | None = None
    """None: not looked at, as in tests of other things."""
    quotas: Mirror[DeviceQuota] | None = None
    """Likewise."""
    others: Mirror[Pod] | None = None
    """The pods that may have devices from a device plugin; likewise."""
    slices: Mirror[ResourceSlice] | None = None
    """Of DRA drivers; empty where the API server serves none. None: not looked at, as in tests of other things."""
    resource_claims: Mirror[ResourceClaim] | None = None
    """Those that hold known vendors' devices; likewise."""
    claims_known: Callable[[], bool] = lambda: True
    """Whether ResourceClaims were listed: their mirror is also empty where they may not be read, or where an API
    server of an older version was asked, which slices may have been spared."""
    placement: GatePlacement | None = None
    """How the leader places pods itself; None where a kube-scheduler of ours asks the extender."""
    leaving: set[tuple[str, str]] = field(default_factory=set)
    """The claims, by node and UID, of groups that are being moved off their node."""
    idle: set[tuple[str, str]] = field(default_factory=set)
    """The claims, by node and UID, of groups that are being released since no pod uses them."""
    life: GroupLife = DEFAULT_LIFE
    uninjected: Mirror[Pod] | None = None
    """Pods without a node that admission should have injected and didn't; None where they are left as they are."""
    namespace_selector: LabelSelector = EVERYTHING
    """Which namespaces admission selects by their labels, besides leaving some out by name."""
    on_released: Callable[[], object] = lambda: None
    """Called when a group was released since it had been idle for long enough."""
    on_uncovered: Callable[[int], object] = lambda _: None
    """Called with the number of pods that run with devices that another holds, each time it changes."""

    on_recreated: Callable[[], object] = lambda: None
    """Called when an uninjected pod was deleted, for its controller to recreate."""

    @cached_property
    def waits(self) -> WaitingReasons:
        """What groups wait for, kept for all reconcilers."""
        return WaitingReasons(self.fleet)

    def report_unwritable(self, pod: Pod, why: ApiError) -> None:
        """Tells the owner of a pod that refuses our writes, which no other waits for."""
        text = f"deviceshare can't write this pod, to wake it or to tell it of other devices: {why.said or why}"
        self.recorder.warn(subject_of(pod), "CannotBeWritten", text)

    def wait_until(self, due: float) -> None:
        """Raises `Later` while it is before `due`, by `clock`."""
        rest = due - self.clock()
        if rest > 0:
            raise Later(rest)


class UnchangedSince(Generic[K]):
    """Since when the value of each key has been seen as it is now, by the term's clock."""

    def __init__(self, term: Term) -> None:
        self._clock = term.clock
        self._seen: dict[K, tuple[object, float]] = {}

    def __call__(self, key: K, value: object = None) -> float:
        """The time when this value, without another one in between, was first passed for the key."""
        if key not in self._seen or self._seen[key][0] != value:
            self._seen[key] = value, self._clock()
        return self._seen[key][1]

    def forget(self, key: K) -> None:
        self._seen.pop(key, None)

    def keep(self, keeps: Callable[[K], bool]) -> None:
        """Forgets the keys of which it says no."""
        self._seen = {key: seen for key, seen in self._seen.items() if keeps(key)}
