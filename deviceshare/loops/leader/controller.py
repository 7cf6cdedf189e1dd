"""The controller: the leader's loops."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import structlog
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.device_quota import DeviceQuota, Reservation, counted
from deviceshare.domain.objects.groups import Group, NamespaceObject
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GROUP, Holder, Request
from deviceshare.domain.placement import shared_resources
from deviceshare.domain.placement.device_states import concerned
from deviceshare.domain.placement.resource_pools import DraView
from deviceshare.loops.kinds import annotate, says_the_same
from deviceshare.loops.leader.context import ControllerContext, UnchangedSince
from deviceshare.loops.leader.gates import Placer
from deviceshare.loops.leader.group_statuses import GroupStatuses
from deviceshare.loops.leader.holds import AVOID_SECONDS, GroupClaims, Holds, UnfitNodes
from deviceshare.loops.leader.ledgers import Ledgers
from deviceshare.loops.leader.pod_events import PodEvents
from deviceshare.loops.leader.preemptor import Preemptor
from deviceshare.loops.leader.rebinder import Rebinder
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.leader.scaler import Scaler
from deviceshare.loops.leader.uninjected_pods import UninjectedPods
from deviceshare.loops.leader.waker import Waker
from deviceshare.loops.ports import Mirror, ObjectChange, Watcher
from deviceshare.loops.protocol import reserve
from deviceshare.loops.protocol.bind import BIND_SECONDS
from deviceshare.loops.queue import Later

# The reconciler of failed pods whose containers are not reported to have ended: waits out their grace period.
# Until then such a pod lives: its devices stay reserved (pods.py). That the wait is over the leader writes into the
# pod, so that every replica, the next leader and the webhooks see the same.

log = structlog.get_logger(__name__)

MARGIN_SECONDS = 10.0
"""Beyond the grace period: for the kubelet to begin, and for the runtime to kill."""


class Endings:
    """Keyed by `namespace/name`."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("endings", self._reconcile)
        self._since: UnchangedSince[str] = UnchangedSince(context)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.pods.get(key)
        if pod is None or not pod.ending:
            self._since.forget(key)
            return
        uid = pod.metadata.uid
        self._context.wait_until(self._since(key, uid) + pod.grace_seconds + MARGIN_SECONDS)
        if marked := await annotate(self._context.cluster, pod, {contract.ENDED: uid}):
            self._context.pods.put(marked)
            log.warning("Marked failed pod as ended", pod=key, node=pod.node, phase=pod.status.phase)


# The reconciler of DeviceQuotas: what bound groups hold is counted, and what nobody needs is not (claims.md, Quotas).
# The protocol (protocol/reserve.py) is safe whenever it is begun. What is decided here is when that is worth the
# requests: not while a bind is under way, and not while a claim or a live pod of the group still has devices.

GATHER_SECONDS: Final = 0.1
"""Between a change and the count: a bind writes the quota, a ledger and the group one after the other."""


class QuotaCounts:
    """Keyed by the quota's name."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("quotas", self._reconcile, workers=1)
        self._unbound_since: UnchangedSince[tuple[str, str]] = UnchangedSince(context)

    def change_group(self, change: ObjectChange[Group]) -> None:
        """Enqueues the quotas that count the group, or did, unless only its status changed in other ways."""
        old, new = change.old, change.new
        if old and new and _group_facets(old) == _group_facets(new):
            return
        for quota in self._context.quotas.values():
            held = quota.status.reservations
            if any(quota.matches(side.metadata.labels) or side.uid in held for side in change.sides):
                self.queue.add(quota.name, GATHER_SECONDS)

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues the quotas with a reservation of a group whose claim went."""
        old, new = change.old, change.new
        gone = (old.claims.keys() if old else set()) - (new.claims.keys() if new else set())
        for quota in self._context.quotas.values() if gone else ():
            if gone & quota.status.reservations.keys():
                self.queue.add(quota.name, GATHER_SECONDS)

    async def _reconcile(self, name: str) -> None:
        quota = self._context.quotas.get(name)
        held = quota.status.reservations if quota else {}
        self._unbound_since.keep(lambda key: key[0] != name or key[1] in held)
        if quota is None or quota.metadata.unreadable:
            return
        suspects, rest = [], 0.0
        # What was counted stays while nobody knows what should be.
        sure = not quota.counts_all
        known = [group for group in self._context.groups.values() if sure and not group.metadata.unreadable]
        bound = [each for each in known if quota.matches(each.metadata.labels) and each.node and not quota.holds(each)]
        for uid, reservation in held.items() if sure else ():
            wait = self._wait(quota, uid, reservation)
            if wait == 0.0:
                suspects.append(uid)
            elif wait:
                rest = min(rest or wait, wait)
        if suspects or bound or counted(quota, held, complete=sure) != quota.status:
            written = await reserve.recount(self._context.cluster, name, suspects=suspects, bound=bound)
            for uid in suspects:
                self._unbound_since.forget((name, uid))
            if written is not None:
                self._context.quotas.put(written)
                log.info("Counted quota", quota=name, used=written.status.summary)
        if rest:
            raise Later(rest)

    def _wait(self, quota: DeviceQuota, uid: str, reservation: Reservation) -> float | None:
        """Seconds until the reservation may be dropped; None where it is needed."""
        key, group = (quota.name, uid), self._context.groups.get(reservation.name)
        if group is not None and group.uid == uid:
            if group.metadata.unreadable:
                return None  # what it holds is unknown until somebody corrects it
            if group.node:
                self._unbound_since.forget(key)
            matches = quota.matches(group.metadata.labels)
            if group.node or not matches:
                return None if group.node and matches else 0.0
        if self._context.fleet.home(Request(Holder(uid, GROUP, reservation.name), {}, "", {}, "")):
            return BIND_SECONDS  # a claim is there, or a pod lives, whose devices nobody else can have
        if group is None or group.uid != uid or not self._context.index.pending[group.name]:
            return 0.0
        waited = self._context.clock() - self._unbound_since(key, reservation.group_version)
        return max(BIND_SECONDS - waited, 0.0)


def _group_facets(group: Group) -> tuple[object, ...]:
    """What of a group concerns quotas."""
    return group.uid, group.node, group.metadata.labels, group.metadata.fault, group.spec.resources


def allows_no_more(new: DeviceQuota, old: DeviceQuota) -> bool:
    """Whether no group can be bound by the new one that could not by the old one."""
    same = new.spec == old.spec and new.metadata.unreadable == old.metadata.unreadable
    same = same and (old.observed or not new.observed)
    return same and old.status.reservations.items() <= new.status.reservations.items()


# The leader's subscriptions: which change enqueues what for which reconciler.

STUCK_SECONDS: Final = 30.0
"""A queue that has not looked for work for this long is stuck; it does so each second."""
AT_ONCE: Final = 50
"""Existing objects reported between two turns of the event loop: a few milliseconds."""


class Controller:
    """Reconciles everything in one term as the leader; `run` runs once."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._dra = DraView(context.holds_namespace, holds=context.holds)
        self._ledgers = Ledgers(context, self._dra)
        self._statuses = GroupStatuses(context)
        self._releaser = Releaser(context)
        self._rebinder = Rebinder(context)
        self._endings = Endings(context)
        self._waker = Waker(context)
        self._quotas = QuotaCounts(context)
        self._uninjected = UninjectedPods(context)
        unfit = UnfitNodes(context.clock, AVOID_SECONDS, forgotten=0)
        self._holds = Holds(context, self._dra, self._releaser, unfit) if context.holds else None
        self._group_claims = GroupClaims(context, context.group_binder, unfit) if context.group_binder else None
        self._placer = Placer(context, context.lifting, self._releaser) if context.lifting else None
        self._pod_watchers: list[Callable[[ObjectChange[Pod]], None]] = [
            context.index.change_pod,
            self._waker.change,
            self._uninjected.change_injected,
            PodEvents(context).change,
            self._ledgers.change_pod,
            self._releaser.change_pod,
        ]
        if context.preempts:
            self._pod_watchers.append(Preemptor(context, self._releaser).change)
        if context.scaling_namespace:
            self._pod_watchers.append(Scaler(context, context.scaling_namespace).change)
        if self._placer:
            self._pod_watchers.append(self._placer.change_pod)

    async def run(self) -> None:
        """Works until cancelled. The mirrors must have been listed: nothing may be concluded from half a cluster."""
        # Pods and ledgers first: what the others conclude from groups and nodes depends on them.
        context = self._context
        watched: tuple[tuple[Mirror[Any], Watcher], ...] = (
            (context.slices, lambda change: self._on_dra(self._dra.change_slice(change.old, change.new))),
            (context.resource_claims, lambda change: self._on_dra(self._dra.change_claim(change.old, change.new))),
            (context.namespaces, self._on_namespace),
            (context.quotas, self._on_quota),
            (context.uninjected, self._uninjected.change),
            (context.others, self._on_other),
            (context.pods, self._on_pod),
            (context.ledgers, self._on_ledger),
            (context.groups, self._on_group),
            (context.nodes, self._on_node),
        )
        try:
            async with AsyncExitStack() as subscriptions:
                for mirror, watcher in watched:
                    await subscriptions.enter_async_context(gradual_subscription(mirror, watcher))
                log.info("Started reconciling")
                async with asyncio.TaskGroup() as tasks:
                    for queue in context.queues:
                        tasks.create_task(queue.run(), name=queue.name)
        finally:
            context.on_uncovered(0)  # From now on the next leader counts, however what follows ends.
            await self._ledgers.close()
            if self._placer:
                await self._placer.close()
            log.info("Stopped reconciling")

    def stuck(self) -> str:
        """Why no work is done although the queues run, or ""."""
        now = self._context.clock()
        stuck = [queue.name for queue in self._context.queues if now - queue.ticked > STUCK_SECONDS]
        return f"not looked for work for {STUCK_SECONDS:.0f} s: {', '.join(stuck)}" if stuck else ""

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        # Hundreds of pods may change in a second. Only what makes a difference is enqueued at once.
        if change.old and change.new and says_the_same(change.old, change.new):
            return
        for watcher in self._pod_watchers:
            watcher(change)
        for group in {pod.group for pod in change.sides} - {""}:
            self._statuses.enqueue_for_pods(group)
            if self._group_claims:
                self._group_claims.enqueue(group)
        for pod in change.sides:
            if pod.holder_uid:
                self._rebinder.change_pod(pod)
            if pod.ending and pod.wants_devices:
                self._endings.queue.add(change.key)

    def _on_other(self, change: ObjectChange[Pod]) -> None:
        if self._placer:
            self._placer.change_other(change)
        # Where nobody knows which devices a pod has from a device plugin, none of its node can be had.
        old, new = (_past_us(side) for side in (change.old, change.new))
        if old != new:
            self._statuses.enqueue_concerned()
        if old - new:
            self._enqueue_waiting()

    def _on_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        old, new = change.old, change.new
        if old and new and _without_news(old) == _without_news(new):
            return  # where programs take turns that changes every few seconds
        self._releaser.change_ledger(change)
        self._rebinder.change_ledger(change)
        if self._holds:
            self._holds.change_ledger(change)
        self._quotas.change_ledger(change)
        self._ledgers.change_ledger(change)
        uids = concerned(old, new)
        for ledger in change.sides:
            for uid, claim in ledger.claims.items():
                if claim.group and (uids is None or uid in uids):
                    self._statuses.enqueue(claim.group)
        self._enqueue_statuses_on(change.key, uids)
        if new and not (old and _offers_no_more(new, old)):
            self._enqueue_waiting()

    def _on_group(self, change: ObjectChange[Group]) -> None:
        self._releaser.change_group(change)
        old, new = change.old, change.new
        if old and new and not new.deleting and _but_for_finalizers(old) == _but_for_finalizers(new):
            return  # as the leader writes one into each group that is bound
        self._context.index.change_group(change)
        self._statuses.change(change)
        self._waker.enqueue(change.key)
        self._quotas.change_group(change)
        if self._group_claims:
            self._group_claims.enqueue(change.key)
        if self._placer:
            self._placer.enqueue()
        if change.new:
            self._ledgers.change_group(change.new)
            self._rebinder.change_group(change.new)

    def _on_node(self, change: ObjectChange[Node]) -> None:
        if self._placer:
            self._placer.change_node(change)
        if change.old and change.new and _facets(change.old) == _facets(change.new):
            return  # a heartbeat
        self._rebinder.change_node(change.key)
        self._releaser.change_node(change.key)
        self._ledgers.queue.add(change.key)
        self._enqueue_statuses_on(change.key)
        self._enqueue_waiting()

    def _on_namespace(self, change: ObjectChange[NamespaceObject]) -> None:
        if change.old is None or change.new is None or change.old.labels != change.new.labels:
            self._enqueue_waiting()
            self._statuses.enqueue_waiting()
            self._uninjected.enqueue_namespace(change.key)

    def _on_quota(self, change: ObjectChange[DeviceQuota]) -> None:
        self._quotas.queue.add(change.key)
        self._statuses.enqueue_concerned()
        if not (change.old and change.new and allows_no_more(change.new, change.old)):
            self._enqueue_waiting()

    def _enqueue_waiting(self) -> None:
        """Has whoever may place waiting pods look at them: devices came free, or a node changed."""
        self._waker.enqueue_waiting()
        if self._group_claims:
            for group in self._context.index.waiting_groups:
                self._group_claims.enqueue(group)
        if self._placer:
            self._placer.enqueue()

    def _on_dra(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._ledgers.queue.add(node)
            if self._holds:
                self._holds.queue.add(node)

    def _enqueue_statuses_on(self, node: str, uids: Collection[str] | None = None) -> None:
        """Enqueues the statuses of groups that are bound to the node, and of those that wait for what it has.

        Of the bound ones those with the `uids`, or with waiting pods: shares among these need room in the ledger.
        """
        for group in self._context.index.bound[node]:
            if uids is None or group.uid in uids or self._context.index.pending[group.name]:
                self._statuses.enqueue(group.name)
        self._statuses.enqueue_concerned()


@asynccontextmanager
async def gradual_subscription(mirror: Mirror[Any], watcher: Watcher) -> AsyncIterator[None]:
    """Reports each object first as an addition, and then every change, as `Mirror.subscribe` does, a few at a time.

    Entered when all existing objects have been reported. A mirror reports them all at once: ten thousand would keep the
    event loop, which answers webhooks, for half a second.
    """
    unreported = {obj.metadata.key: None for obj in mirror.values()}  # in their order

    def report(change: ObjectChange[Any]) -> None:
        if change.key not in unreported:
            watcher(change)
        elif change.new is None:
            del unreported[change.key]

    mirror.subscribe(report)
    try:
        while unreported:
            key = next(iter(unreported))
            del unreported[key]
            try:
                watcher(ObjectChange(key, None, mirror.get(key)))
            except Exception:
                # As a mirror does: one object must not keep the leader from all others.
                log.exception("Watcher failed on an existing object", key=key)
            if len(unreported) % AT_ONCE == 0:
                await asyncio.sleep(0)
        yield
    finally:
        mirror.unsubscribe(report)


def _but_for_finalizers(group: Group) -> Group:
    return replace(group, metadata=replace(group.metadata, resource_version="", finalizers=[]))


def _past_us(pod: Pod | None) -> set[tuple[str, str]]:
    """By node, the resources of which the pod has devices from a device plugin; "" where that can't be read."""
    if pod is None or not pod.lives:
        return set()
    hidden = {""} if pod.containers_hidden else set()
    return {(pod.node, resource) for resource in pod.plugin_resources() | hidden}


def _facets(node: Node) -> tuple[object, ...]:
    meta = node.metadata
    annotated = [meta.annotations.get(key) for key in contract.DEVICE_ANNOTATIONS]
    counted = shared_resources.count_devices(node), shared_resources.memory_mib(node), shared_resources.advertised(node)
    booted = node.status.node_info.boot_id  # until its agent has reported since, nothing of the node is free
    usable = node.ready, node.out_of_service, node.spec.unschedulable
    return meta.uid, meta.labels, meta.fault, usable, booted, annotated, counted


def _without_news(ledger: NodeDevices) -> tuple[object, ...]:
    """All but what the node's agent reports for people, by which nothing is decided."""
    hardware = replace(ledger.status.hardware, turns=None, overuses=[])
    return replace(ledger.metadata, resource_version=""), ledger.spec, replace(ledger.status, hardware=hardware)


def _offers_no_more(new: NodeDevices, old: NodeDevices) -> bool:
    """Whether claims were added or marked, if anything: the most frequent changes, by which nothing comes free."""
    if new.metadata.fault != old.metadata.fault or _told(new) != _told(old):
        return False
    for uid, before in old.claims.items():
        now = new.claims.get(uid)
        marked = now and now.releasing and replace(before, releasing=now.releasing, token=now.token)
        if now is None or now not in (before, marked):
            return False
    return True


def _told(ledger: NodeDevices) -> LedgerStatus:
    """What the ledger says of its devices, but for the lines that are for people."""
    return replace(ledger.status, reasons="", total="", free="", held="")
