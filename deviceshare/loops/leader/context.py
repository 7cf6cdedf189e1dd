"""What the leader's reconcilers share in one term: the cluster, its mirrors and indexes of them, and the clock."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Generator, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Generic, NamedTuple, TypeVar

from deviceshare.domain import contract
from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import Group, GroupLife, LabelSelector, NamespaceObject, uses
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import SHARE_KEY, Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import HandoverSetting
from deviceshare.loops.kinds import PODS, subject_of
from deviceshare.loops.ports import ApiError, Cluster, Conflict, Mirror, NotFound, ObjectChange, Recorder
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from deviceshare.loops.protocol.holders import BindStop, stands_for
from deviceshare.loops.queue import Later, Queue
from deviceshare.loops.replica.binder import Binder

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

ALL: Final = "all"
"""The one key of a reconciler each of whose decisions depends on those before it."""
SAID_SECONDS: Final = 5.0
"""Between two Events of one pod, doubled with each change: its reasons may alternate with every pod that comes and
goes, each text is an object of its own in the API server, and thousands of pods may wait."""
SAID_AGAIN_SECONDS: Final = 600.0
"""Before the same is said again, and the longest time between two."""


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """The next term gets a new one."""

    cluster: Cluster
    fleet: Fleet
    """Fed from the same mirrors, before they call the controller."""
    groups: Mirror[Group]
    ledgers: Mirror[NodeDevices]
    nodes: Mirror[Node]
    pods: Mirror[Pod]
    others: Mirror[Pod]
    """The pods on nodes that may have devices from a device plugin; with `lifting` all that want nothing of
    deviceshare: they take CPU, memory and the like."""
    uninjected: Mirror[Pod]
    """Pods without a node that admission should have injected and didn't; empty where they are left as they are."""
    namespaces: Mirror[NamespaceObject]
    quotas: Mirror[DeviceQuota]
    slices: Mirror[ResourceSlice]
    resource_claims: Mirror[ResourceClaim]
    """Of known DRA drivers."""
    recorder: Recorder
    life: GroupLife
    handover: HandoverSetting
    namespace_selector: LabelSelector
    """Which namespaces admission selects by their labels, besides leaving some out by name."""
    binds_over: float = BINDS_OVER_SECONDS
    compares: bool = False
    """Both as protocol/bind.py says of this API server."""
    clock: Callable[[], float] = time.monotonic
    queues: list[Queue[Any]] = field(default_factory=list, init=False)
    """Those of this term's reconcilers."""
    claims_known: Callable[[], bool] = lambda: True
    """Whether ResourceClaims were listed: their mirror is also empty where they may not be read, or aren't served."""
    lifting: Binder | None = None
    """By which the leader places pods itself, lifting their gate (decision 16); None where the extender is asked."""
    share_resources: Collection[str] = ()
    """The resources by which pods may ask for shares."""
    preempts: bool = True
    """Whether others make room for pods of higher priority."""
    scaling_namespace: str = ""
    """Where autoscalers are shown pods for those that wait; "" where they are shown none."""
    holds_namespace: str = ""
    """Where our own ResourceClaims are."""
    holds: bool = False
    """Whether there are to be some, on nodes whose devices DRA publishes."""
    group_binder: Binder | None = None
    """Who claims devices for groups that hand them over by a ResourceClaim; None where there are to be none."""
    on_released: Callable[[], object] = lambda: None
    """Called when a group was released since it had been idle for long enough."""
    on_uncovered: Callable[[int], object] = lambda _: None
    """Called with the number of pods that run with devices that another holds, each time it changes."""
    on_recreated: Callable[[], object] = lambda: None
    """Called when an uninjected pod was deleted, for its controller to recreate."""

    @cached_property
    def index(self) -> "Index":
        """Of the mirrors of pods and groups; the controller keeps it up to date."""
        return Index(self.pods, self.groups)

    @cached_property
    def waits(self) -> WaitingReasons:
        """What groups wait for, kept for all reconcilers."""
        return WaitingReasons(self.fleet)

    def queue(self, name: str, reconcile: Callable[[K], Awaitable[None]], **how: Any) -> Queue[K]:
        """A queue of this term, by its clock; `how` as `Queue` has it."""
        made = Queue(name, reconcile, clock=self.clock, **how)
        self.queues.append(made)
        return made

    def holder(self, uid: str, claim: Claim) -> Group | Pod | None:
        """The claim's holder by the mirrors, or a pod that got the Binding of that pod with shares."""
        found = self.pods.get(claim.pod) if claim.pod else self.groups.get(claim.group)
        return found if found is not None and stands_for(found, uid) else None

    def report_unwritable(self, pod: Pod, why: ApiError) -> None:
        """Tells the owner of a pod that refuses our writes, which no other waits for."""
        text = f"deviceshare can't write this pod, to wake it or to tell it of other devices: {why.said or why}"
        self.recorder.warn(subject_of(pod), "CannotBeWritten", text)

    async def delete_unchanged(self, pod: Pod) -> bool:
        """Deletes the pod; False where it has changed: what it is now is looked at when the mirror shows it."""
        meta = pod.metadata
        try:
            await self.cluster.delete(
                PODS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
        except (NotFound, Conflict):
            return False
        return True

    def is_over(self, group: Group) -> bool:
        """Whether the group was deleted, waits for our finalizer, and no pod uses it by what the mirror shows."""
        ours = group.deleting and contract.PODS_FINALIZER in group.metadata.finalizers
        return ours and not any(uses(pod, group) for pod in self.index.named[group.name])

    def wait_until(self, due: float) -> None:
        """Raises `Later` while it is before `due`, by `clock`."""
        rest = due - self.clock()
        if rest > 0:
            raise Later(rest)

    def stop_binds(self, since: "UnchangedSince[K]", key: K) -> BindStop:
        """How binds under way are stopped; no worker waits for them.

        Its `wait` raises `Later` until all are over that began before what it is called with was seen of the key.
        """

        async def wait(value: object) -> None:
            self.wait_until(since(key, value) + self.binds_over)

        return BindStop(wait, self.report_unwritable, self.compares)


async def in_pauses(steps: Generator[None, None, T]) -> T:
    """What a search finds; the mirrors, the webhooks and the probes go on at each of its pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)


class ClaimKey(NamedTuple):
    """A claim, or a group where it is bound; `node` is "" of one that lives nowhere."""

    node: str
    uid: str
    name: str
    """The holder's; of a pod `namespace/name`."""


def own_key(group: Group) -> ClaimKey:
    """The group where it is bound."""
    return ClaimKey(group.node, group.uid, group.name)


class UnchangedSince(Generic[K]):
    """Since when the value of each key has been seen as it is now, by the leader's clock."""

    def __init__(self, context: ControllerContext) -> None:
        self._clock = context.clock
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


class WaitingEvents:
    """The Events of waiting pods, with one reason: why they wait, behind a scheduling gate or where they were placed.

    One is recorded when the words change, the more rarely the more often they do, and again after a while: Events
    expire after an hour. kube-scheduler records nothing about a gated pod.
    """

    def __init__(self, context: ControllerContext, reason: str) -> None:
        self._context = context
        self._reason = reason
        self._said: dict[str, tuple[str, float, float]] = {}
        """By UID: what was said, when, and the seconds before another reason is said."""

    def record(self, pod: Pod, why: str) -> None:
        """Records why the pod waits, unless that was said lately."""
        now, uid, apart = self._context.clock(), pod.metadata.uid, SAID_SECONDS
        if said := self._said.get(uid):
            text, at, before = said
            if now - at < (SAID_AGAIN_SECONDS if text == why else before):
                return
            apart = max(apart, before / 2) if text == why else min(2 * before, SAID_AGAIN_SECONDS)
        self._said[uid] = why, now, apart
        self._context.recorder.warn(subject_of(pod), self._reason, why)

    def forget(self, pod: Pod) -> None:
        """Ends what is remembered of a pod that no longer waits."""
        self._said.pop(pod.metadata.uid, None)


class Index:
    """Pods by holder, queue key and node, and groups by node: no reconciler goes through all of them."""

    def __init__(self, pods: Mirror[Pod], groups: Mirror[Group]) -> None:
        self.named = Buckets(pods)
        """By group: every pod that names it."""
        self.pending = Buckets(pods)
        """By queue key, the group or the share that they wait for: the pods that may yet be bound."""
        self.holding = Buckets(pods)
        """By node: the pods that live there with devices of a group, or with shares, by right."""
        self.bound = Buckets(groups)
        """By node: the groups that are bound to it."""
        self._gated = Buckets(pods)

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Applies a change of one pod."""
        key, _, pod = change
        self.named.put(key, pod.group if pod else "")
        self.pending.put(key, pod.queue_key if pod and pod.pending else "")
        self.holding.put(key, pod.node if pod and pod.lives and pod.holder_uid and not pod.impostor else "")
        self._gated.put(key, "gated" if pod and pod.awaits_placement and pod.bound_by_us else "")

    def change_group(self, change: ObjectChange[Group]) -> None:
        """Applies a change of one group."""
        self.bound.put(change.key, change.new.node if change.new else "")

    @property
    def gated(self) -> list[Pod]:
        """The pods that only deviceshare's scheduling gate holds back."""
        return self._gated["gated"]

    @property
    def waiting_groups(self) -> list[str]:
        """The names of groups, existing or not, that pods wait for."""
        return [key for key in self.pending.names() if not key.startswith(SHARE_KEY)]


Bucket = str | tuple[str, ...] | None


class Buckets(Generic[T]):
    """Objects of a mirror by a property of theirs; one without it ("" or None) is in no bucket.

    Keys are kept, not objects: what is asked for is as new as the mirror.
    """

    def __init__(self, mirror: Mirror[T]) -> None:
        self._mirror = mirror
        self._bucket_of: dict[str, Bucket] = {}
        self._keys: dict[Bucket, dict[str, None]] = {}

    def put(self, key: str, bucket: Bucket) -> None:
        before = self._bucket_of.get(key)
        if before == (bucket or None):
            return
        if before:
            del self._keys[before][key]
            if not self._keys[before]:
                del self._keys[before]
            del self._bucket_of[key]
        if bucket:
            self._bucket_of[key] = bucket
            self._keys.setdefault(bucket, {})[key] = None

    def names(self) -> list[str]:
        return [str(each) for each in self._keys]

    def count(self, bucket: Bucket) -> int:
        """How many keys it has, without a look at the mirror."""
        return len(self._keys.get(bucket, ()))

    def __getitem__(self, bucket: Bucket) -> list[T]:
        found = map(self._mirror.get, self._keys.get(bucket, ()))
        return [each for each in found if each is not None]
