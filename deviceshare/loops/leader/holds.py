"""The reconcilers of holds: kube-scheduler allocates each device of groups and shares to a claim of ours (holds.py).

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

A group's own hold has no pod of ours: its pods name it. Who releases the group clears it first (`end_hold`), as long as
no pod is entered; kube-scheduler enters one before it binds it, so that of the two writes one fails.
"""

from contextlib import suppress
from typing import Final

import structlog

from deviceshare import timestamps
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.placement import holds
from deviceshare.domain.placement.holds import Hold
from deviceshare.domain.placement.join_obstacles import pod_obstacle
from deviceshare.domain.placement.node_choice import Occupancy, choose_node, in_turn
from deviceshare.domain.placement.resource_pools import DraView
from deviceshare.loops.kinds import HOLDS, NODE_DEVICES, NODES, PODS, find
from deviceshare.loops.leader.context import ClaimKey, ControllerContext, in_pauses, own_key
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.ports import ApiError, Conflict, NotFound, ObjectChange
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.protocol.release import let_go, write_hold
from deviceshare.loops.queue import Backoff, Later
from deviceshare.loops.replica.binder import Binder

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
"""Between two looks at a hold that isn't allocated, whose pod somebody may have deleted, or whose pod remains."""
AGAIN_SECONDS: Final = 0.2
"""Before a hold is looked at again whose pod is ending, or for which the ledger has a claim after all."""
UNFIT_SECONDS: Final = 20.0
"""After so long a group leaves a node on which kube-scheduler puts none of its pods, as where CPU is missing."""
AVOID_SECONDS: Final = 60.0
"""For how long it avoids that node then."""

UnfitNodes = Backoff[tuple[str, str]]
"""The UIDs of groups by claim, each with a node on which kube-scheduler found no place for its pods."""


class Holds:
    """Keyed by node, so that no two workers write one hold."""

    def __init__(self, context: ControllerContext, dra: DraView, releaser: Releaser, unfit: UnfitNodes) -> None:
        self._context = context
        self._dra = dra
        self._releaser = releaser
        self._unfit = unfit
        self._done: dict[str, tuple[str, float]] = {}
        """By hold, what was done last for it, and when."""
        self.queue = context.queue("holds", self._reconcile, workers=8)

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues the node, where DRA publishes its devices or did."""
        if any(each.status.published.held is not None for each in change.sides) or self._dra.holds(change.key):
            self.queue.add(change.key)

    async def _reconcile(self, node: str) -> None:
        ledger = self._context.ledgers.get(node)
        if ledger and (ledger.metadata.unreadable or not ledger.filled):
            return  # Any device may be somebody's.
        there, by_claim = self._dra.holds(node), self._by_claim(ledger)
        kept = [hold for hold, claim in there.items() if holds.is_kept(claim)]
        wanted = holds.to_hold(ledger, self._context.holds_namespace, by_claim, kept) if ledger else {}
        for hold, resource in wanted.items():
            if hold not in there:
                with suppress(Conflict):  # One that is ending has its name, or another leader created it.
                    await self._context.cluster.create(HOLDS, holds.hold_claim(hold, resource), hold.namespace)
                self.queue.add(node, AGAIN_SECONDS)
        for hold, claim in there.items():
            if claim.metadata.unreadable:
                continue
            if ledger and by_claim.get(hold.group) == hold.namespace and not holds.has_pod(claim):
                self._releaser.retry(ClaimKey(node, hold.group, ledger.claims[hold.group].group))
            with suppress(NotFound, Conflict):  # It was written meanwhile, of which there is an event.
                if ledger and holds.may_claim(ledger, hold, by_claim):
                    await self._keep(hold, claim, ledger)
                else:
                    await self._give_up(hold, claim)
        for uid, claimed in ledger.claims.items() if ledger else ():
            # Groups whose devices kube-scheduler gave to others first leave the node, if no pod is there.
            if ledger and claimed.group and holds.taken_by_others(ledger, uid):
                self._releaser.queue.add(ClaimKey(node, uid, claimed.group))

    def _by_claim(self, ledger: NodeDevices | None) -> dict[str, str]:
        """The namespaces of the groups in the ledger that hand their devices over by a hold of their own, by UID."""
        names = (claim.group for claim in ledger.claims.values() if claim.group) if ledger else ()
        found = filter(None, map(self._context.groups.get, names))
        return {group.uid: group.spec.claim_namespace for group in found if group.spec.claim_namespace}

    def _was_lately(self, claim: ResourceClaim, what: str) -> bool:
        """Whether that was done for the claim a moment ago, of which not every event needs another request."""
        known, at = self._done.get(claim.metadata.key, ("", 0.0))
        return known == what and self._context.clock() < at + LOOK_SECONDS

    async def _keep(self, held: Hold, claim: ResourceClaim, ledger: NodeDevices) -> None:
        if not holds.is_allocated(claim):
            if claim.metadata.deletion_timestamp:  # Somebody deleted it; another takes its place.
                await let_go(self._context.cluster, claim)
            elif held.group:
                self._await_pods(held, claim)
            elif not self._was_lately(claim, "allocate"):
                with suppress(Conflict):  # It is there.
                    await self._context.cluster.create(PODS, holds.hold_pod(held, claim), held.namespace)
                self._done[claim.metadata.key] = "allocate", self._context.clock()
            self.queue.add(held.node, LOOK_SECONDS)
        elif not holds.is_kept(claim):
            await self._write(claim, holds.keeping(claim, ledger), status=True)
            log.info("Held devices", node=held.node, devices=held.uuids, claim=held.key)
        elif holds.is_given_up(claim):
            await self._write(claim, holds.giving_up(claim, None))
        elif holds.has_pod(claim) and not held.group and not self._was_lately(claim, "end"):
            await self._delete_pod(held)
            self._done[claim.metadata.key] = "end", self._context.clock()

    def _await_pods(self, held: Hold, claim: ResourceClaim) -> None:
        """Has the group leave the node if kube-scheduler doesn't put any of its pods there for a while."""
        now, what = self._context.clock(), f"await the pods of {claim.metadata.uid}"
        group = next((each for each in self._context.index.bound[held.node] if each.uid == held.group), None)
        known, since = self._done.get(claim.metadata.key, ("", now))
        if group is None or known != what or not self._context.index.pending[group.name]:
            self._done[claim.metadata.key] = what, now
        elif now >= since + UNFIT_SECONDS:
            self._unfit.fail((group.uid, held.node))
            self._releaser.displace(*own_key(group))

    async def _give_up(self, held: Hold, claim: ResourceClaim) -> None:
        self._done.pop(claim.metadata.key, None)
        if not holds.is_allocated(claim):
            if await self._delete_pod(held):
                self.queue.add(held.node, AGAIN_SECONDS)  # kube-scheduler may be allocating it at this moment.
            else:
                await let_go(self._context.cluster, claim)
        elif held.group and holds.has_pod(claim):
            pass  # They end first, of which there is an event.
        elif not holds.is_given_up(claim):
            await self._write(claim, holds.giving_up(claim, timestamps.micro_now()))
            self.queue.add(held.node, AGAIN_SECONDS)
        elif await self._is_needed(held) or (holds.has_pod(claim) and await self._delete_pod(held)):
            self.queue.add(held.node, AGAIN_SECONDS)
        else:
            cleared = await self._write(claim, holds.clearing(claim), status=True)
            log.info("Gave up devices", node=held.node, devices=held.uuids, claim=held.key)
            await let_go(self._context.cluster, cleared)

    async def _is_needed(self, held: Hold) -> bool:
        """Whether somebody may have joined by the hold: by the ledger alone, fresh, which is read after the mark."""
        fresh = await find(self._context.cluster, NODE_DEVICES, held.node)
        if fresh is None:
            # Either it was empty and its node left, or somebody removed its finalizer: then another one is filled.
            node, index = await find(self._context.cluster, NODES, held.node), self._context.index
            return bool((node and node.shared) or index.holding[held.node] or index.bound[held.node])
        self._context.ledgers.put(fresh)
        return holds.may_claim(fresh, held, self._by_claim(fresh))

    async def _delete_pod(self, held: Hold) -> bool:
        """Whether it was there."""
        if held.group:
            return False
        try:
            await self._context.cluster.delete(PODS, held.name, held.namespace)
        except NotFound:
            return False
        return True

    async def _write(self, claim: ResourceClaim, body: holds.Json, *, status: bool = False) -> ResourceClaim:
        written = await write_hold(self._context.cluster, claim, body, status=status)
        self._context.resource_claims.put(written)
        return written


class GroupClaims:
    """The reconciler of groups by claim without a node: claims devices for them, as a bind does for others.

    The node is chosen for the first of their pods, as behind our scheduling gate (node_choice.py). Whether that has CPU
    left is for kube-scheduler to say. Keyed by the group's name.
    """

    def __init__(self, context: ControllerContext, binder: Binder, unfit: UnfitNodes) -> None:
        self._context = context
        self._binder = binder
        self._unfit = unfit
        self.queue = context.queue("group-claims", self._reconcile, workers=4)

    def enqueue(self, name: str) -> None:
        """Enqueues a group by claim that pods may wait for."""
        group = self._context.groups.get(name)
        if group and group.claim and not group.node:
            self.queue.add(name)

    async def _reconcile(self, name: str) -> None:
        group = self._context.groups.get(name)
        if group is None or group.metadata.unreadable or group.deleting or group.node or not group.claim:
            return
        avoided = [node for uid, node in self._unfit.left_alone() if uid == group.uid]
        for pod in in_turn(self._context.index.pending[name]):
            if pod.metadata.deletion_timestamp or pod_obstacle(pod, group, self._context.fleet.namespaces):
                continue
            choice = await in_pauses(choose_node(self._context.fleet, Occupancy(), pod, group.request, avoided))
            if node := choice.node:
                try:
                    await self._binder.settle(group, node, pod.metadata.key)
                except (Refused, ApiError) as error:
                    log.warning("Claimed no devices for a group", group=name, node=node, reason=str(error))
                    raise Later(1.0) from None
            elif avoided:
                raise Later(AVOID_SECONDS / 4)
            return
