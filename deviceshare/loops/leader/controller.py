"""The leader's subscriptions: which change enqueues what for which reconciler.

The reconcilers read state from the mirrors and never learn what the change was. All subscriptions are on this page: the
answer to "what happens when a pod ends?" is in one place.
"""

import asyncio
from typing import Any

import structlog
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import Group, NamespaceObject
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice
from deviceshare.domain.placement import allocation, counted_devices, device_memory, dialect_leftovers
from deviceshare.domain.placement.device_states import device_states, free_devices
from deviceshare.domain.placement.dra_view import DraView
from deviceshare.loops.gradual_subscription import GradualSubscription
from deviceshare.loops.leader.endings import Endings
from deviceshare.loops.leader.gate_reconcilers import GateReconcilers
from deviceshare.loops.leader.group_deletions import GroupDeletions
from deviceshare.loops.leader.group_statuses import GroupStatuses
from deviceshare.loops.leader.idle_groups import IdleGroups
from deviceshare.loops.leader.ledgers import Ledgers
from deviceshare.loops.leader.moving_groups import MovingGroups
from deviceshare.loops.leader.quota_counts import QuotaCounts, allows_no_more
from deviceshare.loops.leader.rebinder import Rebinder
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.leader.residents import Residents
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.uninjected_pods import UninjectedPods
from deviceshare.loops.leader.waker import Waker
from deviceshare.loops.ports import Mirror, ObjectChange, Watcher
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

STUCK_SECONDS = 30.0
"""A queue that has not looked for work for this long is stuck; it does so each second."""
COVER_SECONDS = 1.0
"""Between a change of a pod and the check that a claim covers its devices; nearly always one does."""


class Controller:
    """Reconciles everything in one term as the leader; `run` runs once."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._dra = DraView()
        self._residents = Residents()
        self._keeper = Ledgers(term, self._residents, self._dra)
        self._statuses = GroupStatuses(term)
        self._releaser = Releaser(term)
        self._rebinder = Rebinder(term)
        self._endings = Endings(term)
        self._waker = Waker(term)
        self._quotas = QuotaCounts(term)
        self._idle = IdleGroups(term)
        self._deletions = GroupDeletions(term)
        self._moving = MovingGroups(term)
        self._uninjected = UninjectedPods(term)
        self._gates = GateReconcilers(term, term.placement) if term.placement else None
        reconcilers = (self._keeper, self._releaser, self._rebinder, self._endings, self._statuses, self._waker)
        self._queues: tuple[Queue[Any], ...] = tuple(reconciler.queue for reconciler in reconcilers)
        self._queues += (self._quotas.queue, self._idle.queue, self._deletions.queue, self._moving.queue)
        self._queues += (self._uninjected.queue,)
        self._queues += self._gates.queues if self._gates else ()

    async def run(self) -> None:
        """Works until cancelled. The mirrors must have been listed: nothing may be concluded from half a cluster."""
        # Pods and ledgers first: what the others conclude from groups and nodes depends on them.
        term = self._term
        optional = (
            (term.slices, self._on_slice),
            (term.resource_claims, self._on_resource_claim),
            (term.namespaces, self._on_namespace),
            (term.quotas, self._on_quota),
            (term.uninjected, self._uninjected.change),
            (term.others, self._on_other),
        )
        watched: tuple[tuple[Mirror[Any], Watcher], ...] = (
            *((mirror, watcher) for mirror, watcher in optional if mirror is not None),
            (term.pods, self._on_pod),
            (term.ledgers, self._on_ledger),
            (term.groups, self._on_group),
            (term.nodes, self._on_node),
            *(((term.placement.others, self._gates.placer.change_other),) if term.placement and self._gates else ()),
        )
        subscriptions = [GradualSubscription(mirror, watcher) for mirror, watcher in watched]
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
            term.on_uncovered(0)  # From now on the next leader counts, however what follows ends.
            await self._keeper.close()
            if self._gates:
                await self._gates.close()
            log.info("Stopped reconciling")

    def stuck(self) -> str:
        """Why no work is done although the queues run, or ""."""
        now = self._term.clock()
        stuck = [queue.name for queue in self._queues if now - queue.ticked > STUCK_SECONDS]
        return f"not looked for work for {STUCK_SECONDS:.0f} s: {', '.join(stuck)}" if stuck else ""

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        # Hundreds of pods may change in a second. Only what makes a difference is enqueued at once.
        self._term.members.change(change)
        self._waker.change(change)
        self._uninjected.change_injected(change)
        if self._gates:
            self._gates.change_pod(change)
        for pod in change.sides:
            if not pod.wants_devices:
                continue
            if pod.group:
                self._statuses.enqueue_for_pods(pod.group)
                self._idle.enqueue_for_pods(pod.group)
                self._deletions.enqueue_for_pods(pod.group)
                self._moving.enqueue(self._term.groups.get(pod.group))
            if pod.share:
                self._releaser.enqueue_holder(change.key)
            if pod.holder_uid:
                self._keeper.queue.add(pod.node, COVER_SECONDS)
                self._rebinder.enqueue_pod(pod)
            if pod.ending:
                self._endings.queue.add(change.key)
        old, new = change.old, change.new
        if old and (old.metadata.unreadable or not (new and new.lives)):
            self._releaser.enqueue_holder(old.holder_name)

    def _on_other(self, change: ObjectChange[Pod]) -> None:
        # Where nobody knows which devices a pod has from a device plugin, none of its node can be had.
        old, new = (_past_us(side) for side in (change.old, change.new))
        if old != new:
            self._statuses.enqueue_concerned()
        if old - new:
            self._enqueue_waiting()

    def _on_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        if change.old and change.new and _for_people(change.old, change.new):
            return  # nothing is decided by it, and where programs take turns it changes every few seconds
        self._releaser.change(change)
        self._rebinder.change(change)
        self._quotas.change_ledger(change)
        self._keeper.queue.add(change.key)
        for ledger in change.sides:
            for claim in ledger.claims.values():
                if claim.group:
                    self._statuses.queue.add(claim.group)
        self._enqueue_statuses_on(change.key)
        old, new = change.old, change.new
        if new and not (old and _offers_no_more(new, old)):
            self._enqueue_waiting()

    def _on_group(self, change: ObjectChange[Group]) -> None:
        self._residents.change(change)
        self._statuses.queue.add(change.key)
        self._releaser.enqueue_holder(change.key)
        self._idle.queue.add(change.key)
        self._deletions.queue.add(change.key)
        self._moving.queue.add(change.key)
        self._waker.queue.add(change.key)
        self._quotas.change_group(change)
        if self._gates:
            self._gates.placer.enqueue()
        if change.new:
            self._keeper.enqueue_home(change.new)
            self._rebinder.enqueue_holder(change.new)

    def _on_node(self, change: ObjectChange[Node]) -> None:
        if self._gates:
            self._gates.change_node(change)
        if change.old and change.new and _facets(change.old) == _facets(change.new):
            return  # a heartbeat
        self._rebinder.enqueue_node(change.key)
        self._keeper.queue.add(change.key)
        self._enqueue_statuses_on(change.key)
        self._enqueue_waiting()

    def _on_namespace(self, change: ObjectChange[NamespaceObject]) -> None:
        if change.old is None or change.new is None or change.old.labels != change.new.labels:
            self._enqueue_waiting()
            self._statuses.enqueue_waiting()
            self._uninjected.enqueue_namespace(change.key)

    def _on_quota(self, change: ObjectChange[DeviceQuota]) -> None:
        self._quotas.queue.add(change.key)
        self._statuses.enqueue_waiting()
        if not (change.old and change.new and allows_no_more(change.new, change.old)):
            self._enqueue_waiting()

    def _enqueue_waiting(self) -> None:
        """Has whoever may place waiting pods look at them: devices came free, or a node changed."""
        self._waker.enqueue_waiting()
        if self._gates:
            self._gates.placer.enqueue()

    def _on_slice(self, change: ObjectChange[ResourceSlice]) -> None:
        for node in self._dra.change_slice(change.old, change.new):
            self._keeper.queue.add(node)

    def _on_resource_claim(self, change: ObjectChange[ResourceClaim]) -> None:
        for node in self._dra.change_claim(change.old, change.new):
            self._keeper.queue.add(node)

    def _enqueue_statuses_on(self, node: str) -> None:
        """Enqueues the statuses of groups that are bound to the node, and of those that wait for what it has."""
        for group in self._residents[node]:
            self._statuses.queue.add(group.name)
            self._moving.enqueue(group)
        self._statuses.enqueue_concerned()


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
    counted = counted_devices.count(node), device_memory.memory_mib(node), dialect_leftovers.advertised(node)
    booted = node.status.node_info.boot_id  # until its agent has reported since, nothing of the node is free
    return meta.uid, meta.labels, meta.fault, node.ready, node.out_of_service, booted, annotated, counted


def _offers_no_more(new: NodeDevices, old: NodeDevices) -> bool:
    """Whether nothing came free: no device, and no room for shares on any."""
    if _hiding(new) != _hiding(old) or (_joinable(new) - _joinable(old)) & old.claims.keys():
        return False
    if _told(new) == _told(old) and all(new.claims.get(uid) == claim for uid, claim in old.claims.items()):
        return True  # claims were added, if anything: the most frequent change, and nothing has to be counted
    now, before = _free(new), _free(old)
    return all(left <= before.get(what, 0) for what, left in now.items())


def _joinable(ledger: NodeDevices) -> set[str]:
    """The UIDs of the holders whose pods may join by the ledger, though nothing of it is free: open, and unmarked."""
    return {uid for uid, claim in ledger.claims.items() if ledger.devices and claim.group and not claim.releasing}


def _hiding(ledger: NodeDevices) -> tuple[object, ...]:
    """What keeps free devices of the node from everybody, though nothing of it is counted here."""
    return ledger.metadata.fault, ledger.status.hardware.boot_id, ledger.status.hardware.allocations


def _for_people(old: NodeDevices, new: NodeDevices) -> bool:
    """Whether only that has changed which the node's agent reports for people."""
    return _without_news(old) == _without_news(new)


def _without_news(ledger: NodeDevices) -> NodeDevices:
    hardware = replace(ledger.status.hardware, turns=None, overuses=[])
    metadata = replace(ledger.metadata, resource_version="")
    return replace(ledger, metadata=metadata, status=replace(ledger.status, hardware=hardware))


def _told(ledger: NodeDevices) -> LedgerStatus:
    """What the ledger says of its devices, but for the lines that are for people."""
    return replace(ledger.status, reasons="", total="", free="", held="")


def _free(ledger: NodeDevices) -> dict[tuple[Device, str], int]:
    """What is left, by device and by whose it is: the group's UID, or ""."""
    states = device_states(ledger)
    within = {claim.within for claim in ledger.claims.values() if claim.within}
    left = {(device, ""): 1 for device in free_devices(states)}
    for uid in ("", *within):
        left |= {(device, f"room {uid}"): room.free for device, room in allocation.rooms(states, uid)}
    return left
