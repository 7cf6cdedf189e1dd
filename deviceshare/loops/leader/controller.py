"""The leader's work: which change makes which reconciler look.

The reconcilers read state from the mirrors and never learn what the event was. All subscriptions stand here, on one
page, so that whoever asks "what happens when a pod ends?" finds the answer in one place.
"""

import asyncio
import time
from collections.abc import Callable
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
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import DEFAULT, HandoverSetting
from deviceshare.loops.leader.coverage import Coverage
from deviceshare.loops.leader.endings import Endings
from deviceshare.loops.leader.group_statuses import GroupStatuses
from deviceshare.loops.leader.ledgers import Ledgers
from deviceshare.loops.leader.members import Members
from deviceshare.loops.leader.rebinder import Rebinder
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.leader.waker import Waker
from deviceshare.loops.ports import Cluster, Mirror, Recorder
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

STUCK_SECONDS = 30.0
"""A queue that has not looked for work for this long is stuck; it does so each second."""
COVER_SECONDS = 1.0
"""Between a change of a pod and the look whether a claim covers its devices; nearly always one does."""


class Controller:
    """Reconciles everything in one term of the leader: it is made for it, and `run` runs once.

    The next term gets another, which takes nothing over: what is known is read from the mirrors.
    """

    def __init__(
        self,
        cluster: Cluster,
        fleet: Fleet,
        *,
        groups: Mirror[Group],
        ledgers: Mirror[NodeDevices],
        nodes: Mirror[Node],
        pods: Mirror[Pod],
        recorder: Recorder,
        binds_over: float = BINDS_OVER_SECONDS,
        handover: HandoverSetting = DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        on_uncovered: Callable[[int], object] = lambda _: None,
    ) -> None:
        """`fleet` is fed from the same mirrors, before they call us; `binds_over` as claiming.py says of the server.

        `on_uncovered` as in Covering.
        """
        self._fleet = fleet
        self._groups = groups
        self._ledgers = ledgers
        self._nodes = nodes
        self._pods = pods
        self._clock = clock
        self._on_uncovered = on_uncovered
        self._members = members = Members()
        covering = Coverage(cluster, ledgers=ledgers, members=members, recorder=recorder, on_uncovered=on_uncovered)
        self._statuses = GroupStatuses(
            cluster, fleet, groups=groups, ledgers=ledgers, members=members, recorder=recorder, clock=clock
        )
        self._keeper = Ledgers(
            cluster,
            nodes=nodes,
            ledgers=ledgers,
            groups=groups,
            members=members,
            recorder=recorder,
            covering=covering,
            binds_over=binds_over,
            handover_setting=handover,
            clock=clock,
        )
        self._releaser = Releaser(
            cluster,
            fleet,
            groups=groups,
            members=members,
            recorder=recorder,
            binds_over=binds_over,
            clock=clock,
        )
        self._rebinder = Rebinder(
            cluster,
            fleet,
            groups=groups,
            ledgers=ledgers,
            pods=pods,
            members=members,
            recorder=recorder,
            binds_over=binds_over,
            clock=clock,
        )
        self._endings = Endings(cluster, pods=pods, clock=clock)
        self._waker = Waker(cluster, fleet, groups=groups, pods=pods, members=members, clock=clock)
        self._queues: tuple[Queue[Any], ...] = (
            self._keeper.queue,
            self._releaser.queue,
            self._rebinder.queue,
            self._endings.queue,
            self._statuses.queue,
            self._waker.queue,
        )

    async def run(self) -> None:
        """Works until cancelled. The mirrors must have been listed: nothing may be concluded from half a cluster."""
        # Pods and ledgers first: what the others conclude from groups and nodes depends on them.
        subscriptions: tuple[tuple[Mirror[Any], Callable[[Any, Any], None]], ...] = (
            (self._pods, self._on_pod),
            (self._ledgers, self._on_ledger),
            (self._groups, self._on_group),
            (self._nodes, self._on_node),
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
            self._on_uncovered(0)  # From now on the next leader counts.
            log.info("Stopped reconciling")

    def stuck(self) -> str:
        """Why the work doesn't go on although it runs, or ""."""
        now = self._clock()
        stuck = [queue.name for queue in self._queues if now - queue.ticked > STUCK_SECONDS]
        return f"not looked for work for {STUCK_SECONDS:.0f} s: {', '.join(stuck)}" if stuck else ""

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        # Hundreds of pods may come in a second. Only those that make a difference have somebody look at once.
        self._members.change(old, new)
        self._waker.change(old, new)
        for pod in (pod for pod in (old, new) if pod and pod.group):
            self._statuses.look_at_pods(pod.group)
            if pod.group_uid:
                self._keeper.queue.add(pod.node, COVER_SECONDS)
                self._rebinder.look_at_pod(pod)
            if pod.ending:
                self._endings.queue.add(pod.metadata.key)
        if old and (old.metadata.unreadable or not (new and new.lives)):
            self._releaser.look(old.group)

    def _on_ledger(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        self._releaser.change(old, new)
        self._rebinder.change(old, new)
        for ledger in filter(None, (old, new)):
            self._keeper.queue.add(ledger.node)
            for claim in ledger.claims.values():
                self._statuses.queue.add(claim.group)
        for group in self._groups_on((new or old or _NO_LEDGER).node):
            self._statuses.queue.add(group)
        self._statuses.look_at_waiting()
        if new and not (old and _free(new) <= _free(old)):
            self._waker.look_at_waiting()

    def _on_group(self, old: Group | None, new: Group | None) -> None:
        name = (new or old or _NO_GROUP).name
        self._statuses.queue.add(name)
        self._releaser.look(name)
        self._waker.queue.add(name)
        if new:
            self._rebinder.look_at_group(new)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if old and new and _facets(old) == _facets(new):
            return  # a heartbeat
        name = (new or old or _NO_NODE).metadata.name
        self._keeper.queue.add(name)
        for group in self._groups_on(name):
            self._statuses.queue.add(group)
        self._statuses.look_at_waiting()
        self._waker.look_at_waiting()

    def _groups_on(self, node: str) -> list[str]:
        return [group.name for group in self._groups.values() if group.node == node]


def _free(ledger: NodeDevices) -> set[Device]:
    return set(free_devices(device_states(ledger)))


_NO_LEDGER, _NO_GROUP, _NO_NODE = NodeDevices(), Group(), Node()


def _facets(node: Node) -> tuple[object, ...]:
    """What of a node concerns us."""
    meta = node.metadata
    listed = meta.annotations.get(contract.INVENTORY_ANNOTATION)
    return meta.uid, meta.labels, meta.fault, node.ready, listed, counted_devices.count(node)
