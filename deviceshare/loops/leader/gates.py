"""Scheduling gates: the leader chooses the nodes of pods behind deviceshare's gate, claims, and lifts it (decision 16).

It stands in for a kube-scheduler of ours in clusters that allow none: pods are taken in the order of
kube-scheduler's queue, one decision after the other, while the writes of earlier ones are under way. Each decision
counts what those have taken in memory. The claim protocol decides, whatever is believed here. Where the cluster's
scheduler finds no place for what was placed, unschedulable_pods.py leads it back to a decision.
"""

import asyncio
from collections.abc import Collection
from typing import Any, Final

import structlog

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.join_obstacles import missing, pod_obstacle, request_of
from deviceshare.domain.placement.node_choice import Choice, alike, choose_node, in_turn
from deviceshare.domain.placement.occupancy import Occupancy
from deviceshare.domain.placement.share_capacity import capacity_patch, lacking
from deviceshare.loops.api_objects import subject_of
from deviceshare.loops.kinds import NODES
from deviceshare.loops.leader.context import ControllerContext, GatePlacement, PodBinder
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.leader.unschedulable_pods import UnschedulablePods
from deviceshare.loops.leader.waiting_events import WaitingEvents
from deviceshare.loops.ports import ApiError, NotFound, ObjectChange
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.queue import Backoff, Queue

log = structlog.get_logger(__name__)

ALL: Final = "all"
"""The one key: each decision depends on those before it."""
AT_ONCE: Final = 16
"""Pods being placed at a time; the next ones are decided when one of these is done."""
GATHER_SECONDS: Final = 0.02
"""Between a change and the decision: changes come in bursts."""
CROWD_SECONDS: Final = 0.5
"""After a change of other pods' requests, of which a large cluster has many a second."""
AGAIN_SECONDS: Final = 20.0
"""While pods wait: whatever was missed is noticed then."""
BACKOFF_SECONDS: Final = (0.2, 1.0, 2.0, 5.0, 10.0)
"""After placing a pod failed so many times in a row; the last for ever."""
ADVERTISED_SECONDS: Final = 20.0
"""Between two writes of one node's share capacities, whose kubelet may insist on another number."""


class Gates:
    """The reconcilers that work only where pods are placed behind scheduling gates."""

    def __init__(self, context: ControllerContext, placement: GatePlacement, releaser: Releaser) -> None:
        self._unschedulable = UnschedulablePods(context, releaser)
        self._placer = Placer(context, placement.binds, self._unschedulable, releaser)
        self._capacities = ShareCapacities(context, placement.share_resources)
        parts = self._placer, self._unschedulable, self._capacities
        self.queues: tuple[Queue[Any], ...] = tuple(part.queue for part in parts)
        self.change_other = self._placer.change_other
        """Takes in a change of a pod that wants nothing of deviceshare."""
        self.enqueue = self._placer.enqueue
        self.close = self._placer.close

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        self._placer.change(change)
        self._unschedulable.change(change)

    def change_node(self, change: ObjectChange[Node]) -> None:
        """Takes in a change of a node, heartbeats included."""
        self._placer.change_node(change)
        self._capacities.change(change)


class Placer:
    """Decides for all pods at once; its tasks are its own: `close` ends them."""

    def __init__(
        self, context: ControllerContext, binds: PodBinder, unschedulable: UnschedulablePods, releaser: Releaser
    ) -> None:
        self._context = context
        self._binds = binds
        self._avoided = unschedulable.avoided
        self._displaced = releaser.displaced
        self._occupancy = Occupancy()
        self._events = WaitingEvents(context, "NotPlaced")
        self._placing: dict[str, asyncio.Task[None]] = {}
        self._done: set[str] = set()
        """The UIDs of pods that were placed, which the mirror has yet to show: until then they stay assumed."""
        self._failed: Backoff[str] = Backoff(context.clock, *BACKOFF_SECONDS)
        """Pods that could not be placed, by UID."""
        self._took = 0.0
        """Seconds of the last pass over all waiting pods: half of the time is left to everything else."""
        self.queue: Queue[str] = Queue("placement", self._decide, workers=1, clock=context.clock)

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        freed = self._occupancy.change(change.old, change.new)
        old, new = change.old, change.new
        if old and not (new and new.awaits_placement):
            self._done.discard(old.metadata.uid)
            self._occupancy.forget(old)
            self._failed.forget(old.metadata.uid)
            self._events.forget(old)
        if freed or (new and new.awaits_placement):
            self.enqueue()

    def change_other(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of any other pod."""
        if self._occupancy.change(change.old, change.new) and self._context.index.gated():
            self.queue.add(ALL, CROWD_SECONDS)

    def change_node(self, change: ObjectChange[Node]) -> None:
        """Takes in a change of a node."""
        old, new = change.old, change.new
        if self._context.index.gated() and not (old and new and _facets(old) == _facets(new)):
            self.enqueue()

    def enqueue(self) -> None:
        """Has every waiting pod looked at: devices came free, or a pod came."""
        self.queue.add(ALL, max(GATHER_SECONDS, self._took))

    async def close(self) -> None:
        """Ends what is being placed. What was claimed for it is found by the next leader."""
        tasks = list(self._placing.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _decide(self, _: str) -> None:
        now, waits, soonest = self._context.clock(), False, AGAIN_SECONDS
        refused: dict[bytes, Choice] = {}
        for key in [pod.metadata.key for pod in in_turn(self._context.index.gated())]:
            await asyncio.sleep(0)  # the mirrors, the webhooks and the probes go on meanwhile
            pod = self._context.pods.get(key)
            if pod is None or not pod.awaits_placement or pod.metadata.deletion_timestamp:
                continue
            if pod.metadata.uid in self._placing or pod.metadata.uid in self._done:
                continue
            waits = True
            if (after := self._failed.until(pod.metadata.uid)) > now:
                soonest = min(soonest, after - now)
                continue
            if len(self._placing) >= AT_ONCE:
                break
            try:
                # What one was refused for holds for all that are alike: what is left only gets less in one pass.
                avoided = self._avoided(pod)
                same = alike(self._context.fleet, pod, avoided)
                choice = refused.get(same) or await self._choose(pod, avoided)
            except Exception:
                # A bug that one pod triggers must not stop those behind it.
                log.exception("Choosing a node for a pod raised an exception", pod=key)
                self._fail(pod, "choosing a node for it failed: see deviceshare's logs")
                continue
            if self._context.pods.get(key) is not pod:
                continue  # It changed meanwhile, and is looked at again for that.
            if choice.node:
                await self._begin(pod, choice.node)
            else:
                refused[same] = choice
                self._events.record(pod, choice.reason)
        self._took = self._context.clock() - now
        if waits:
            self.queue.add(ALL, soonest)

    async def _choose(self, pod: Pod, avoided: Collection[str]) -> Choice:
        group = self._context.groups.get(pod.group) if pod.group else None
        request, obstacle = request_of(pod, group), pod_obstacle(pod, group, self._context.fleet.namespaces)
        if obstacle or request is None:
            return Choice("", str(obstacle or missing(pod)))
        if group and self._displaced(group.node, group.uid, group.name):
            return Choice("", f"group {group.name} is being moved off node {group.node}, where its pods did not fit")
        search = choose_node(self._context.fleet, self._occupancy, pod, request, avoided)
        while True:
            try:
                next(search)
            except StopIteration as end:
                choice: Choice = end.value
                return choice
            await asyncio.sleep(0)

    async def _begin(self, pod: Pod, node: str) -> None:
        uid = pod.metadata.uid
        self._occupancy.assume(pod, node)
        self._placing[uid] = task = asyncio.create_task(self._place(pod, node), name=f"place {pod.metadata.key}")
        task.add_done_callback(lambda _: self._placing.pop(uid, None))
        # It assumes the devices before its first request, so that the next decision counts them.
        await asyncio.sleep(0)

    async def _place(self, pod: Pod, node: str) -> None:
        meta, binds = pod.metadata, self._binds
        try:
            binds.remember(pod)
            await binds.bind(meta.namespace, meta.name, meta.uid, node)
        except (Refused, ApiError) as error:
            log.warning("Refused to place pod", pod=meta.key, node=node, reason=str(error))
            self._fail(pod, f"placing it on node {node} failed: {error}")
        except Exception:
            # A bug that one pod triggers must not stop the others.
            log.exception("Placing a pod raised an exception", pod=meta.key, node=node)
            self._fail(pod, f"placing it on node {node} failed: see deviceshare's logs")
        else:
            seen = self._context.pods.get(meta.key)
            if seen and seen.metadata.uid == meta.uid and seen.awaits_placement:
                self._done.add(meta.uid)  # else the watch was faster than the answer, and nothing would take it away
            log.info("Placed pod", pod=meta.key, node=node)
            self._context.recorder.note(subject_of(pod), "Placed", _placed(pod, node))
            self.enqueue()

    def _fail(self, pod: Pod, why: str) -> None:
        uid, seen = pod.metadata.uid, self._context.pods.get(pod.metadata.key)
        self._occupancy.forget(pod)
        if seen is None or seen.metadata.uid != uid:
            return  # It is gone, and with it what was remembered of it.
        self._failed.fail(uid)
        self._events.record(pod, why)
        self.enqueue()


class ShareCapacities:
    """The reconciler of what shared nodes advertise, keyed by node: the resources of shares (share_capacity.py).

    A kubelet sets them to 0 when its node reboots; they are advertised again then.
    """

    def __init__(self, context: ControllerContext, resources: Collection[str]) -> None:
        """`resources` are those by which pods may ask for shares."""
        self._context = context
        self._resources = resources
        self.queue: Queue[str] = Queue("share-capacities", self._reconcile, clock=context.clock)
        self._written: dict[str, float] = {}

    def change(self, change: ObjectChange[Node]) -> None:
        """Takes in a change of a node."""
        if change.new is None or (change.new.shared and lacking(change.new, self._resources)):
            self.queue.add(change.key)

    async def _reconcile(self, name: str) -> None:
        node = self._context.nodes.get(name)
        if node is None:
            self._written.pop(name, None)  # here, since a write of it may have been under way when it went
            return
        if not node.shared or not (missing := lacking(node, self._resources)):
            return
        if name in self._written:
            self._context.wait_until(self._written[name] + ADVERTISED_SECONDS)
        try:
            await self._context.cluster.patch(NODES, name, capacity_patch(node, missing), subresource="status")
        except NotFound:
            return
        self._written[name] = self._context.clock()
        log.info("Advertised resources of shares", node=name, resources=missing)


def _placed(pod: Pod, node: str) -> str:
    what = f"with the devices of group {pod.group}" if pod.group else "with a share of its devices"
    return f"placed on node {node} {what}; kube-scheduler binds it there"


def _facets(node: Node) -> tuple[object, ...]:
    """What of a node the fit check asks for."""
    spec, status = node.spec, node.status
    return spec.unschedulable, spec.taints, status.allocatable, node.ready, node.metadata.labels
