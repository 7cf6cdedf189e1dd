"""The reconciler of rebinds: replaces devices of claims, updates pods, releases what they had (claims.md, rebind).

The protocol (protocol/rebind.py) is safe whoever begins it, and whenever. Here the mirrors only say when it is worth
the requests: a group, or a pod with a share, whose request has no answer; a pod whose annotations differ from its
claim; a former device that no pod has any more. Claims that were never to be rebound cost one comparison.
"""

import asyncio
from functools import partial

import structlog

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.nodes import rebooted
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import replacement
from deviceshare.domain.placement.share_replacement import awaits, pod_changes
from deviceshare.loops.leader import rebind_events
from deviceshare.loops.leader.releaser import ClaimKey
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.ports import ApiError, ObjectChange, Unavailable
from deviceshare.loops.protocol import rebind as protocol
from deviceshare.loops.protocol.bind import BIND_SECONDS
from deviceshare.loops.protocol.rebind import Answer
from deviceshare.loops.queue import Queue

log = structlog.get_logger(__name__)

WORKERS = 4
GATHER_SECONDS = 0.1
"""Between a change of a pod and the work on its group's claim: pods change in bursts."""
REFUSED_SECONDS = 20.0
"""Before the update of a pod that refused it is retried."""
AGAIN_SECONDS = 5.0
"""Between two answers for one pod. Who can change a pod of theirs could have the ledger written without an end."""


class Rebinder:
    """The reconciler of claims whose devices are, or were, to be replaced."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[ClaimKey] = Queue("rebinds", self._reconcile, workers=WORKERS, clock=term.clock)
        self._unchanged_since: UnchangedSince[ClaimKey] = UnchangedSince(term)

    def enqueue_holder(self, group: Group) -> None:
        """Enqueues the group's claim if a rebind of it was ever requested."""
        if group.node and group.rebind:
            self.queue.add(ClaimKey(group.node, group.uid))

    def change(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues those claims of a changed ledger that are or were to be rebound."""
        left = change.new.claims.keys() if change.new else set()
        for uid in change.old.claims.keys() - left if change.old else ():
            self._unchanged_since.forget(ClaimKey(change.key, uid))
        for ledger in change.sides:
            for uid, claim in ledger.claims.items():
                if self._concerns(claim, uid):
                    self.queue.add(ClaimKey(ledger.node, uid))

    def enqueue_node(self, name: str) -> None:
        """Enqueues the claims of a node that may just have become known to have rebooted before its agent reported."""
        ledger = self._term.fleet.ledger(name)
        for uid, claim in ledger.claims.items() if ledger else ():
            if self._concerns(claim, uid):
                self.queue.add(ClaimKey(name, uid))

    def enqueue_pod(self, pod: Pod) -> None:
        """Enqueues the claims that the pod has its devices from; the pod may have ended."""
        ledger = self._term.fleet.ledger(pod.node)
        for uid in {pod.holder_uid, pod.share_uid}:
            claim = ledger.claims.get(uid) if ledger else None
            if claim and self._concerns(claim, uid):
                self.queue.add(ClaimKey(pod.node, uid), GATHER_SECONDS)

    def _concerns(self, claim: Claim, uid: str) -> bool:
        if claim.replaced or claim.rebound:
            return True
        if claim.pod:
            pod = self._term.pods.get(claim.pod)
            return pod is not None and pod.metadata.uid == uid and bool(pod.rebind)
        group = self._term.groups.get(claim.group)
        return group is not None and group.uid == uid and bool(group.rebind)

    async def _reconcile(self, key: ClaimKey) -> None:
        ledger = self._term.fleet.ledger(key.node)
        claim = ledger.claims.get(key.uid) if ledger else None
        if ledger is None or claim is None or ledger.metadata.unreadable:
            self._unchanged_since.forget(key)
            return
        since = self._unchanged_since(key, claim)
        if group := self._asking(key, ledger, claim):
            self._report(await protocol.rebind(self._term.cluster, group.name, opaque=self._term.fleet.opaque))
        elif outdated := [pod for pod in self._mine(key) if pod_changes(pod, ledger, claim)]:
            await self._update(key, claim, outdated)
        elif self._share_asks(key, ledger, claim):
            if claim.rebound:
                self._term.wait_until(since + AGAIN_SECONDS)
            holder, opaque = claim.holder(key.uid), self._term.fleet.opaque
            self._report(await protocol.rebind_share(self._term.cluster, key.node, holder, opaque=opaque))
        elif len(replacement.still_held(claim, self._mine(key))) < len(claim.former):
            await self._release(key)
        # What any of these wrote is a change of the claim or of pods, which enqueues it again.

    def _asking(self, key: ClaimKey, ledger: NodeDevices, claim: Claim) -> Group | None:
        """The group of the claim, if it waits for other devices and they can be chosen now."""
        group = self._term.groups.get(claim.group)
        if group is None or (group.uid, group.node) != (key.uid, key.node) or self._rebooted(ledger):
            return None
        return group if replacement.awaits(group, ledger, claim) else None

    def _share_asks(self, key: ClaimKey, ledger: NodeDevices, claim: Claim) -> bool:
        """The same of the pod whose share the claim is."""
        mine = (pod for pod in self._mine(key) if claim.pod and pod.metadata.uid == key.uid)
        return any(awaits(pod, ledger, claim) for pod in mine) and not self._rebooted(ledger)

    def _rebooted(self, ledger: NodeDevices) -> bool:
        """Whether the indices may have changed; what the agent, or the node, says next enqueues each claim again."""
        node = self._term.fleet.node(ledger.node)
        return node is not None and rebooted(node, ledger.hardware)

    def _mine(self, key: ClaimKey) -> list[Pod]:
        return [pod for pod in self._term.members.holding(key.node) if key.uid in (pod.holder_uid, pod.share_uid)]

    def _report(self, answer: Answer | None) -> None:
        if answer:
            self._term.ledgers.put(answer.ledger)
            rebind_events.report_answer(self._term.recorder, answer)

    async def _update(self, key: ClaimKey, claim: Claim, pods: list[Pod]) -> None:
        def refused(pod: Pod, why: ApiError) -> None:
            self._term.report_unwritable(pod, why)
            self.queue.add(key, REFUSED_SECONDS)

        try:
            # Within the time of a bind: who recreates a lost ledger waits that long for both.
            async with asyncio.timeout(BIND_SECONDS):
                changed = await protocol.update_pods(self._term.cluster, key.node, key.uid, pods, refused)
        except TimeoutError:
            raise Unavailable(f"updating pods on node {key.node} took longer than {BIND_SECONDS:g} s") from None
        for pod in changed:
            self._term.pods.put(pod)
            rebind_events.report_update(self._term.recorder, pod, claim)

    async def _release(self, key: ClaimKey) -> None:
        wait = partial(self._wait_out_binds, key)
        written = await protocol.release_former(
            self._term.cluster, *key, wait_out_binds=wait, on_unwritable=self._term.report_unwritable
        )
        if written is None:
            return
        self._term.ledgers.put(written)
        log.info("Released former devices", node=key.node, holder=str(written.claims[key.uid].holder(key.uid)))

    async def _wait_out_binds(self, key: ClaimKey, claim: Claim) -> None:
        """Raises `Later` until every bind is over that read another state of the claim."""
        self._term.wait_until(self._unchanged_since(key, claim) + self._term.binds_over)
