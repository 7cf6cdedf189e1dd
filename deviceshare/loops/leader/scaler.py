"""The reconciler of scaling pods, by which autoscalers add nodes for waiting pods (domain/placement/scaling.py).

Off by default. A scaling pod stays as it was created: were today's nodes ruled out anew at each look, a node that has
come, but whose devices aren't known yet, would not count, and the autoscaler would add another. After a while it is
replaced, since the node may have been filled by others.
"""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import UNSCHEDULABLE, Pod
from deviceshare.domain.placement.join_obstacles import pod_obstacle, request_of
from deviceshare.domain.placement.node_choice import in_turn
from deviceshare.domain.placement.preemption import fits_somewhere
from deviceshare.domain.placement.scaling import UnplacedPod, scaling_pods
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.context import ALL, ControllerContext
from deviceshare.loops.ports import Conflict, NotFound, ObjectChange

log = structlog.get_logger(__name__)

WAITS_SECONDS: Final = 10.0
"""Before a pod counts: others may be ending."""
LOOK_SECONDS: Final = 30.0
"""Between two looks while pods wait."""
GATHER_SECONDS: Final = 2.0
"""Between a change and a look: many pods may be bound in a row."""
MOST_PODS: Final = 500
"""Waiting pods that are looked at, in turn: more than so few scaling pods stand for."""
AT_ONCE: Final = 20
"""Of them between two turns of the event loop."""
REPLACED_SECONDS: Final = 1200.0
"""More than a node takes from its creation until its devices are known."""
MESSAGE: Final = "stands for pending pods; deviceshare deletes it when they have their devices"


class Scaler:
    """One key: what one node will serve depends on all that wait."""

    def __init__(self, context: ControllerContext, namespace: str) -> None:
        self._context = context
        self._namespace = namespace
        self.queue = context.queue("scaling", self._reconcile, workers=1)
        self._waiting: dict[str, float] = {}
        """Since when each pod waits, by its key."""
        self._created: dict[str, float] = {}
        """When each scaling pod was created or found."""
        self.queue.add(ALL)  # An earlier leader may have left some.

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        key, _, new = change
        if new and new.pending and not new.metadata.deletion_timestamp and (new.refusal or new.awaits_placement):
            if key not in self._waiting:
                self._waiting[key] = self._context.clock()
                self.queue.add(ALL, WAITS_SECONDS)
        elif self._waiting.pop(key, None) is not None:
            self.queue.add(ALL, GATHER_SECONDS)

    async def _reconcile(self, _: str) -> None:
        now, fleet = self._context.clock(), self._context.fleet
        nodes = fleet.shared_nodes()
        wanted = scaling_pods(await self._unplaced(now), nodes, fleet.largest)
        there = await self._context.cluster.list(PODS, namespace=self._namespace, label_selector=contract.SCALING)
        names = {pod.metadata.name for pod in there}
        self._created = {name: self._created.get(name, now) for name in names}
        for pod in there:
            name = pod.metadata.name
            if name not in wanted or now > self._created[name] + REPLACED_SECONDS:
                log.info("Deleted scaling pod", pod=name)
                await self._context.delete_unchanged(pod)
            elif pod.refusal is None:
                await self._show(pod)
        for name in wanted.keys() - names:
            with suppress(Conflict):  # The one before is still ending.
                created = await self._context.cluster.create(PODS, wanted[name], self._namespace)
                log.info("Created scaling pod", pod=name, stands_for=created.metadata.annotations[contract.SCALING])
                self._created[name] = now
                await self._show(created)
        if wanted or there:
            self.queue.add(ALL, LOOK_SECONDS)

    async def _unplaced(self, now: float) -> list[UnplacedPod]:
        """The pods that fit nowhere for want of devices, in turn."""
        found, fleet = list[UnplacedPod](), self._context.fleet
        old = (key for key, since in self._waiting.items() if now >= since + WAITS_SECONDS)
        waiting = in_turn(pod for key in old if (pod := self._context.pods.get(key)))
        for number, pod in enumerate(waiting[:MOST_PODS]):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
            group = self._context.groups.get(pod.group) if pod.group else None
            request = request_of(pod, group)
            if request is None or fleet.home(request) or pod_obstacle(pod, group, fleet.namespaces):
                continue
            if not (fleet.quotas.obstacle(request) or fits_somewhere(fleet, pod, request)):
                found.append(UnplacedPod(pod, request))
        return found

    async def _show(self, pod: Pod) -> None:
        """Writes what a scheduler would: autoscalers look for this condition."""
        condition = {"type": "PodScheduled", "status": "False", "reason": UNSCHEDULABLE, "message": MESSAGE}
        meta, status = pod.metadata, {"conditions": [condition]}
        body = {"metadata": {"resourceVersion": meta.resource_version}, "status": status}
        with suppress(NotFound, Conflict):  # One that was changed is seen so at the next look.
            await self._context.cluster.patch(PODS, meta.name, body, namespace=self._namespace, subresource="status")
