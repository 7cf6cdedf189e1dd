"""The leader's subscriptions: which change enqueues what for which reconciler.

The reconcilers read state from the mirrors and never learn what the change was. All subscriptions are on this page: the
answer to "what happens when a pod ends?" is in one place.
"""

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any, Final

import structlog
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import Group, NamespaceObject
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import shared_resources
from deviceshare.domain.placement.resource_pools import DraView
from deviceshare.loops.api_objects import says_the_same
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.leader.coverage import Coverage
from deviceshare.loops.leader.endings import Endings
from deviceshare.loops.leader.gates import Gates
from deviceshare.loops.leader.group_statuses import GroupStatuses
from deviceshare.loops.leader.ledgers import Ledgers
from deviceshare.loops.leader.quota_counts import QuotaCounts, allows_no_more
from deviceshare.loops.leader.rebinder import Rebinder
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.leader.uninjected_pods import UninjectedPods
from deviceshare.loops.leader.waker import Waker
from deviceshare.loops.ports import Mirror, ObjectChange, Watcher
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

STUCK_SECONDS: Final = 30.0
"""A queue that has not looked for work for this long is stuck; it does so each second."""
AT_ONCE: Final = 50
"""Existing objects reported between two turns of the event loop: a few milliseconds."""


class Controller:
    """Reconciles everything in one term as the leader; `run` runs once."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._dra = DraView()
        self._ledgers = Ledgers(context, self._dra)
        self._coverage = Coverage(context)
        self._statuses = GroupStatuses(context)
        self._releaser = Releaser(context)
        self._rebinder = Rebinder(context)
        self._endings = Endings(context)
        self._waker = Waker(context)
        self._quotas = QuotaCounts(context)
        self._uninjected = UninjectedPods(context)
        self._gates = Gates(context, context.placement, self._releaser) if context.placement else None
        self._queues: tuple[Queue[Any], ...] = (
            self._ledgers.queue,
            self._coverage.queue,
            self._releaser.queue,
            self._rebinder.queue,
            self._endings.queue,
            self._statuses.queue,
            *self._waker.queues,
            self._quotas.queue,
            self._uninjected.queue,
            *(self._gates.queues if self._gates else ()),
        )

    async def run(self) -> None:
        """Works until cancelled. The mirrors must have been listed: nothing may be concluded from half a cluster."""
        # Pods and ledgers first: what the others conclude from groups and nodes depends on them.
        context = self._context
        watched: tuple[tuple[Mirror[Any] | None, Watcher], ...] = (
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
        subscriptions = [GradualSubscription(mirror, watcher) for mirror, watcher in watched if mirror is not None]
        try:
            for subscription in subscriptions:
                await subscription.begin()
            log.info("Started reconciling")
            async with asyncio.TaskGroup() as tasks:
                for queue in self._queues:
                    tasks.create_task(queue.run(), name=queue.name)
        finally:
            for subscription in subscriptions:
                subscription.end()
            context.on_uncovered(0)  # From now on the next leader counts, however what follows ends.
            await self._ledgers.close()
            if self._gates:
                await self._gates.close()
            log.info("Stopped reconciling")

    def stuck(self) -> str:
        """Why no work is done although the queues run, or ""."""
        now = self._context.clock()
        stuck = [queue.name for queue in self._queues if now - queue.ticked > STUCK_SECONDS]
        return f"not looked for work for {STUCK_SECONDS:.0f} s: {', '.join(stuck)}" if stuck else ""

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        # Hundreds of pods may change in a second. Only what makes a difference is enqueued at once.
        if change.old and change.new and says_the_same(change.old, change.new):
            return
        self._context.index.change_pod(change)
        self._waker.change(change)
        self._uninjected.change_injected(change)
        if self._gates:
            self._gates.change_pod(change)
        self._ledgers.change_pod(change)
        self._coverage.change_pod(change)
        self._releaser.change_pod(change)
        for group in {pod.group for pod in change.sides} - {""}:
            self._statuses.enqueue_for_pods(group)
        for pod in change.sides:
            if pod.holder_uid:
                self._rebinder.change_pod(pod)
            if pod.ending and pod.wants_devices:
                self._endings.queue.add(change.key)

    def _on_other(self, change: ObjectChange[Pod]) -> None:
        if self._gates:
            self._gates.change_other(change)
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
        self._quotas.change_ledger(change)
        self._coverage.change_ledger(change)
        self._ledgers.queue.add(change.key)
        for ledger in change.sides:
            for claim in ledger.claims.values():
                if claim.group:
                    self._statuses.enqueue(claim.group)
        self._enqueue_statuses_on(change.key)
        if new and not (old and _offers_no_more(new, old)):
            self._enqueue_waiting()

    def _on_group(self, change: ObjectChange[Group]) -> None:
        self._context.index.change_group(change)
        self._statuses.change(change)
        self._releaser.change_group(change)
        self._waker.enqueue(change.key)
        self._quotas.change_group(change)
        if self._gates:
            self._gates.enqueue()
        if change.new:
            self._ledgers.change_group(change.new)
            self._coverage.change_group(change.new)
            self._rebinder.change_group(change.new)

    def _on_node(self, change: ObjectChange[Node]) -> None:
        if self._gates:
            self._gates.change_node(change)
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
        if self._gates:
            self._gates.enqueue()

    def _on_dra(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._ledgers.queue.add(node)

    def _enqueue_statuses_on(self, node: str) -> None:
        """Enqueues the statuses of groups that are bound to the node, and of those that wait for what it has."""
        for group in self._context.index.bound[node]:
            self._statuses.enqueue(group.name)
        self._statuses.enqueue_concerned()


class GradualSubscription:
    """Reports each object of a mirror first as an addition, and then every change of it, as `Mirror.subscribe` does.

    A mirror reports existing objects all at once. Ten thousand would keep the event loop, which answers webhooks, for
    half a second: here they are reported a few at a time.
    """

    def __init__(self, mirror: Mirror[Any], watcher: Watcher) -> None:
        self._mirror = mirror
        self._watcher = watcher
        self._unreported: dict[str, None] = {}
        """The keys of existing objects, in their order."""

    async def begin(self) -> None:
        """Returns when all existing objects have been reported."""
        self._unreported = {obj.metadata.key: None for obj in self._mirror.values()}
        self._mirror.subscribe(self._change)
        for number in itertools.count(1):
            if not self._unreported:
                return
            key = next(iter(self._unreported))
            del self._unreported[key]
            try:
                self._watcher(ObjectChange(key, None, self._mirror.get(key)))
            except Exception:
                # As a mirror does: one object must not keep the leader from all others.
                log.exception("Watcher failed on an existing object", key=key)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    def end(self) -> None:
        """Reports nothing more; may be called before `begin`."""
        self._mirror.unsubscribe(self._change)

    def _change(self, change: ObjectChange[Any]) -> None:
        if change.key not in self._unreported:
            self._watcher(change)
        elif change.new is None:
            del self._unreported[change.key]


def _past_us(pod: Pod | None) -> set[tuple[str, str]]:
    """By node, the resources of which the pod has devices from a device plugin; "" where that can't be read."""
    if pod is None or not pod.lives:
        return set()
    hidden = {""} if pod.containers_hidden else set()
    return {(pod.node, resource) for resource in pod.plugin_resources() | hidden}


def _facets(node: Node) -> tuple[object, ...]:
    """What of a node concerns us."""
    meta = node.metadata
    annotated = [meta.annotations.get(key) for key in contract.DEVICE_ANNOTATIONS]
    counted = shared_resources.count_devices(node), shared_resources.memory_mib(node), shared_resources.advertised(node)
    booted = node.status.node_info.boot_id  # until its agent has reported since, nothing of the node is free
    return meta.uid, meta.labels, meta.fault, node.ready, node.out_of_service, booted, annotated, counted


def _without_news(ledger: NodeDevices) -> tuple[object, ...]:
    """All but what the node's agent reports for people, by which nothing is decided."""
    hardware = replace(ledger.status.hardware, turns=None, overuses=[])
    return replace(ledger.metadata, resource_version=""), ledger.spec, replace(ledger.status, hardware=hardware)


def _offers_no_more(new: NodeDevices, old: NodeDevices) -> bool:
    """Whether claims were added or marked, if anything: the most frequent changes, by which nothing comes free."""
    if new.metadata.fault != old.metadata.fault or _told(new) != _told(old):
        return False
    return all(_holds_on(new.claims.get(uid), claim) for uid, claim in old.claims.items())


def _told(ledger: NodeDevices) -> LedgerStatus:
    """What the ledger says of its devices, but for the lines that are for people."""
    return replace(ledger.status, reasons="", total="", free="", held="")


def _holds_on(now: Claim | None, before: Claim) -> bool:
    if now is None or now == before:
        return now is not None
    return bool(now.releasing) and now == replace(before, releasing=now.releasing, token=now.token)
