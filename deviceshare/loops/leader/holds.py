"""The reconciler of holds: has kube-scheduler allocate each device of groups and shares to a claim of ours (holds.py).

| A hold is              | and its device is claimed in the ledger | and it isn't                                     |
|------------------------|-----------------------------------------|--------------------------------------------------|
| missing                | create it                               |                                                  |
| not allocated          | see that its pod is there               | delete the pod, then the hold                    |
| allocated, not kept    | enter the ledger                        | mark it                                          |
| kept                   | delete the pod; take a mark away        | mark it                                          |
| marked                 | take the mark away                      | clear it, if a fresh ledger says so, too         |

Each step is one conditional write, and may be the last of this process. The last row is what keeps a device from two
holders: a bind writes the ledger's claim, and then reads that its holds aren't marked; the leader marks a hold, and
then reads that the ledger has no claim. One of the two sees the other. Who takes the mark away writes the hold, so that
the clearing fails of a leader that was held up behind its look. What the ledger says of holds is for those who wait.
"""

from contextlib import suppress
from typing import Any, Final

import structlog

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.placement import holds
from deviceshare.domain.placement.holds import HeldDevice
from deviceshare.domain.placement.resource_pools import DraView
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import HOLDS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.leader.context import ClaimKey, ControllerContext
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.ports import Conflict, NotFound, ObjectChange
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
"""Between two looks at a hold that isn't allocated, whose pod somebody may have deleted, or whose pod remains."""
AGAIN_SECONDS: Final = 0.2
"""Before a hold is looked at again whose pod is ending, or for which the ledger has a claim after all."""


class Holds:
    """Keyed by node, so that no two workers write one hold."""

    def __init__(self, context: ControllerContext, dra: DraView, releaser: Releaser) -> None:
        self._context = context
        self._dra = dra
        self._releaser = releaser
        self._done: dict[str, tuple[str, float]] = {}
        """By hold, what was done last for it, and when."""
        self.queue: Queue[str] = Queue("holds", self._reconcile, workers=8, clock=context.clock)

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues the node, where DRA publishes its devices or did."""
        if any(each.status.published.held is not None for each in change.sides) or self._dra.holds(change.key):
            self.queue.add(change.key)

    async def _reconcile(self, node: str) -> None:
        ledger = self._context.ledgers.get(node)
        if ledger and (ledger.metadata.unreadable or not ledger.filled):
            return  # Any device may be somebody's.
        there = self._dra.holds(node)
        for uuid, part in holds.to_hold(ledger).items() if ledger else ():
            if uuid not in there:
                held = HeldDevice(node, uuid)
                with suppress(Conflict):  # One that is ending has its name, or another leader created it.
                    await self._context.cluster.create(HOLDS, holds.hold_claim(held, part), self._namespace)
                self.queue.add(node, AGAIN_SECONDS)
        for uuid, claim in there.items():
            if claim.metadata.unreadable:
                continue
            held = HeldDevice(node, uuid)
            with suppress(NotFound, Conflict):  # It was written meanwhile, of which there is an event.
                if ledger and holds.may_claim(ledger, uuid):
                    await self._keep(held, claim, ledger)
                else:
                    await self._give_up(held, claim)
        if ledger:
            self._enqueue_taken(ledger)

    @property
    def _namespace(self) -> str:
        return self._context.holds_namespace

    def _was_lately(self, claim: ResourceClaim, what: str) -> bool:
        """Whether that was done for the claim a moment ago, of which not every event needs another request."""
        known, at = self._done.get(claim.metadata.key, ("", 0.0))
        return known == what and self._context.clock() < at + LOOK_SECONDS

    async def _keep(self, held: HeldDevice, claim: ResourceClaim, ledger: NodeDevices) -> None:
        if not holds.is_allocated(claim):
            if claim.metadata.deletion_timestamp:  # Somebody deleted it; another takes its place.
                await self._let_go(claim)
            elif not self._was_lately(claim, "allocate"):
                with suppress(Conflict):  # It is there.
                    await self._context.cluster.create(PODS, holds.hold_pod(held, claim), self._namespace)
                self._done[claim.metadata.key] = "allocate", self._context.clock()
            self.queue.add(held.node, LOOK_SECONDS)
        elif not holds.is_kept(claim):
            await self._write(claim, holds.keeping(claim, ledger), status=True)
            log.info("Held device", node=held.node, device=held.uuid)
        elif holds.is_given_up(claim):
            await self._write(claim, holds.giving_up(claim, None))
        elif holds.has_pod(claim) and not self._was_lately(claim, "end"):
            await self._delete_pod(held)
            self._done[claim.metadata.key] = "end", self._context.clock()

    async def _give_up(self, held: HeldDevice, claim: ResourceClaim) -> None:
        self._done.pop(claim.metadata.key, None)
        if not holds.is_allocated(claim):
            if await self._delete_pod(held):
                self.queue.add(held.node, AGAIN_SECONDS)  # kube-scheduler may be allocating it at this moment.
            else:
                await self._let_go(claim)
        elif not holds.is_given_up(claim):
            await self._write(claim, holds.giving_up(claim, timestamps.micro_now()))
            self.queue.add(held.node, AGAIN_SECONDS)
        elif await self._is_needed(held) or (holds.has_pod(claim) and await self._delete_pod(held)):
            self.queue.add(held.node, AGAIN_SECONDS)
        else:
            cleared = await self._write(claim, holds.clearing(claim), status=True)
            log.info("Gave up device", node=held.node, device=held.uuid)
            await self._let_go(cleared)

    async def _is_needed(self, held: HeldDevice) -> bool:
        """Whether somebody may have joined by the hold: by the ledger alone, fresh, which is read after the mark."""
        fresh = await find(self._context.cluster, NODE_DEVICES, held.node)
        if fresh is None:
            # Either it was empty and its node left, or somebody removed its finalizer: then another one is filled.
            node, index = await find(self._context.cluster, NODES, held.node), self._context.index
            return bool((node and node.shared) or index.holding[held.node] or index.bound[held.node])
        self._context.ledgers.put(fresh)
        return holds.may_claim(fresh, held.uuid)

    async def _let_go(self, claim: ResourceClaim) -> None:
        """Deletes a hold that isn't allocated."""
        if contract.HOLD_FINALIZER in claim.metadata.finalizers:
            claim = await self._write(claim, holds.letting_go(claim))
        meta = claim.metadata
        await self._context.cluster.delete(
            HOLDS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        )

    async def _delete_pod(self, held: HeldDevice) -> bool:
        """Whether it was there."""
        try:
            await self._context.cluster.delete(PODS, held.name, self._namespace)
        except NotFound:
            return False
        return True

    async def _write(self, claim: ResourceClaim, body: dict[str, Any], *, status: bool = False) -> ResourceClaim:
        meta, subresource = claim.metadata, "status" if status else ""
        cluster = self._context.cluster
        written = await cluster.patch(HOLDS, meta.name, body, namespace=meta.namespace, subresource=subresource)
        if self._context.resource_claims:
            self._context.resource_claims.put(written)
        return written

    def _enqueue_taken(self, ledger: NodeDevices) -> None:
        """Groups whose devices kube-scheduler gave to others first leave the node, if no pod is there."""
        for uid, claim in ledger.claims.items():
            if claim.group and holds.taken_by_others(ledger, uid):
                self._releaser.queue.add(ClaimKey(ledger.node, uid, claim.group))
