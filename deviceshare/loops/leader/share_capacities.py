"""The reconciler of share capacities: has shared nodes advertise the resources of shares (share_capacity.py).

A kubelet sets them to 0 when its node reboots; they are advertised again then.
"""

from collections.abc import Collection
from typing import Final

import structlog

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement.share_capacity import capacity_patch, lacking
from deviceshare.loops.kinds import NODES
from deviceshare.loops.leader.term import Term
from deviceshare.loops.ports import NotFound, ObjectChange
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

APART_SECONDS: Final = 20.0
"""Between two writes of one node, whose kubelet may insist on another number."""


class ShareCapacities:
    """Keyed by node."""

    def __init__(self, term: Term, resources: Collection[str]) -> None:
        """`resources` are those by which pods may ask for shares."""
        self._term = term
        self._resources = resources
        self.queue: Queue[str] = Queue("share-capacities", self._reconcile, clock=term.clock)
        self._written: dict[str, float] = {}

    def change(self, change: ObjectChange[Node]) -> None:
        """Takes in a change of a node."""
        if change.new is None or (change.new.shared and lacking(change.new, self._resources)):
            self.queue.add(change.key)

    async def _reconcile(self, name: str) -> None:
        node = self._term.nodes.get(name)
        if node is None:
            self._written.pop(name, None)  # here, since a write of it may have been under way when it went
            return
        if not node.shared or not (missing := lacking(node, self._resources)):
            return
        if name in self._written:
            self._term.wait_until(self._written[name] + APART_SECONDS)
        try:
            await self._term.cluster.patch(NODES, name, capacity_patch(node, missing), subresource="status")
        except NotFound:
            return
        self._written[name] = self._term.clock()
        log.info("Advertised resources of shares", node=name, resources=missing)
