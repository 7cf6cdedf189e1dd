"""The leader's work: which change makes which reconciler look.

The reconcilers read state from the mirrors and never learn what the event was. All subscriptions stand here, on one
page, so that whoever asks "what happens when a pod ends?" finds the answer in one place.
"""

import asyncio
from typing import Any

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import counted_devices
from deviceshare.domain.placement.device_states import device_states, free_devices
from deviceshare.loops.leader.coverage import Coverage
from deviceshare.loops.leader.endings import Endings
from deviceshare.loops.leader.group_statuses import GroupStatuses
from deviceshare.loops.leader.ledgers import Ledgers
from deviceshare.loops.leader.rebinder import Rebinder
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.waker import Waker
from deviceshare.loops.ports import Mirror, ObjectChange, Watcher
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

STUCK_SECONDS = 30.0
"""A queue that has not looked for work for this long is stuck; it does so each second."""
COVER_SECONDS = 1.0
"""Between a change of a pod and the look whether a claim covers its devices; nearly always one does."""


class Controller:
    """Reconciles everything in one term as the leader; `run` runs once."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._keeper = Ledgers(term, Coverage(term))
        self._statuses = GroupStatuses(term)
        self._releaser = Releaser(term)
        self._rebinder = Rebinder(term)
        self._endings = Endings(term)
        self._waker = Waker(term)
        reconcilers = (self._keeper, self._releaser, self._rebinder, self._endings, self._statuses, self._waker)
        self._queues: tuple[Queue[Any], ...] = tuple(reconciler.queue for reconciler in reconcilers)

    async def run(self) -> None:
        """Works until cancelled. The mirrors must have been listed: nothing may be concluded from half a cluster."""
        # Pods and ledgers first: what the others conclude from groups and nodes depends on them.
        term = self._term
        subscriptions: tuple[tuple[Mirror[Any], Watcher], ...] = (
            (term.pods, self._on_pod),
            (term.ledgers, self._on_ledger),
            (term.groups, self._on_group),
            (term.nodes, self._on_node),
        )
        try:
            for mirror, watcher in subscriptions:
                mirror.subscribe(watcher)
            log.info("Started to reconcile")
            async with asyncio.TaskGroup() as tasks:
                for queue in self._queues:
                    tasks.create_task(queue.run(), name=queue.name)
        finally:
            for mirror, watcher in subscriptions:
                mirror.unsubscribe(watcher)
            await self._keeper.close()
            term.on_uncovered(0)  # From now on the next leader counts.
            log.info("Stopped reconciling")

    def stuck(self) -> str:
        """Why the work doesn't go on although it runs, or ""."""
        now = self._term.clock()
        stuck = [queue.name for queue in self._queues if now - queue.ticked > STUCK_SECONDS]
        return f"not looked for work for {STUCK_SECONDS:.0f} s: {', '.join(stuck)}" if stuck else ""

    def _on_pod(self, change: ObjectChange[Pod]) -> None:
        # Hundreds of pods may come in a second. Only those that make a difference are looked at at once.
        self._term.members.change(change)
        self._waker.change(change)
        for pod in change.sides:
            if not pod.group:
                continue
            self._statuses.look_at_pods(pod.group)
            if pod.holder_uid:
                self._keeper.queue.add(pod.node, COVER_SECONDS)
                self._rebinder.look_at_pod(pod)
            if pod.ending:
                self._endings.queue.add(change.key)
        old, new = change.old, change.new
        if old and (old.metadata.unreadable or not (new and new.lives)):
            self._releaser.look(old.group)

    def _on_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        self._releaser.change(change)
        self._rebinder.change(change)
        self._keeper.queue.add(change.key)
        for ledger in change.sides:
            for claim in ledger.claims.values():
                self._statuses.queue.add(claim.group)
        self._look_at_groups_on(change.key)
        old, new = change.old, change.new
        if new and not (old and _free(new) <= _free(old)):
            self._waker.look_at_waiting()

    def _on_group(self, change: ObjectChange[Group]) -> None:
        self._statuses.queue.add(change.key)
        self._releaser.look(change.key)
        self._waker.queue.add(change.key)
        if change.new:
            self._rebinder.look_at_group(change.new)

    def _on_node(self, change: ObjectChange[Node]) -> None:
        if change.old and change.new and _facets(change.old) == _facets(change.new):
            return  # a heartbeat
        self._keeper.queue.add(change.key)
        self._look_at_groups_on(change.key)
        self._waker.look_at_waiting()

    def _look_at_groups_on(self, node: str) -> None:
        """Has the statuses looked at of groups that are bound to the node, and of those that pods wait for."""
        for group in self._term.groups.values():
            if group.node == node:
                self._statuses.queue.add(group.name)
        self._statuses.look_at_waiting()


def _facets(node: Node) -> tuple[object, ...]:
    """What of a node concerns us."""
    meta = node.metadata
    listed = meta.annotations.get(contract.INVENTORY_ANNOTATION)
    return meta.uid, meta.labels, meta.fault, node.ready, listed, counted_devices.count(node)


def _free(ledger: NodeDevices) -> set[Device]:
    return set(free_devices(device_states(ledger)))
