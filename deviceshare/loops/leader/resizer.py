"""The reconciler of resizes: claims of the size that a pod's annotation asks for (claims.md, resize)."""

import asyncio
from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.ledger import NodeDevices, claims_patch
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import current
from deviceshare.domain.placement.replacement import pod_changes
from deviceshare.domain.placement.resizing import counts_shares, judge
from deviceshare.loops.api_objects import find, subject_of
from deviceshare.loops.kinds import NODE_DEVICES, PODS, RESOURCE_QUOTAS
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.ports import Forbidden, ObjectChange, Unavailable
from deviceshare.loops.protocol.bind import BIND_SECONDS
from deviceshare.loops.protocol.claiming import write_claims
from deviceshare.loops.protocol.rebind import update_pods
from deviceshare.loops.queue import Queue

QUOTA: Final = (
    "asks for more than its limits say, and a ResourceQuota of its namespace counts shares by these: recreate it with"
    " larger limits"
)

log = structlog.get_logger(__name__)


class Resizer:
    """Claims first, then the pod's annotation: the agent's limit follows what both say, and the lesser of the two."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue: Queue[str] = Queue("resizes", self._reconcile, workers=2, clock=context.clock)
        self._asking: dict[str, set[str]] = {}
        """By node, the pods whose annotation asks for a size."""
        self._said: dict[str, str] = {}

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Enqueues a pod that asks for a size."""
        old, new = change.old, change.new
        asks = new is not None and contract.RESIZE in new.metadata.annotations and new.lives
        if old and self._asking and old.node in self._asking and not asks:
            self._asking[old.node].discard(change.key)
            self._said.pop(change.key, None)
        if new and asks and new.node:
            self._asking.setdefault(new.node, set()).add(change.key)
            self.queue.add(change.key)

    def change_ledger(self, node: str) -> None:
        """Enqueues the node's pods that ask: room may have come, or a report."""
        for key in self._asking.get(node, ()):
            self.queue.add(key)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.pods.get(key)
        if pod is None or contract.RESIZE not in pod.metadata.annotations or not pod.lives or pod.impostor:
            return
        known = self._context.fleet.ledger(pod.node)
        claim = known.claims.get(pod.metadata.uid) if known else None
        if known is None or claim is None or known.metadata.unreadable:
            return
        if pod_changes(pod, known, claim):
            await self._update(pod)
            return
        found = judge(known, pod)
        if found.obstacle:
            self._say(pod, found.obstacle)
        elif found.claim:
            await self._claim(pod)

    async def _update(self, pod: Pod) -> None:
        try:
            # Within the time of a bind, as every update of a pod: who recreates a lost ledger waits that long.
            async with asyncio.timeout(BIND_SECONDS):
                cluster, holds_in = self._context.cluster, self._context.holds_namespace
                updated = await update_pods(cluster, pod.node, pod.metadata.uid, [pod], holds_in=holds_in)
        except TimeoutError:
            raise Unavailable(f"updating pod {pod.metadata.key} took longer than {BIND_SECONDS:g} s") from None
        for changed in updated:
            self._context.pods.put(changed)
            has = parts_text(current(changed.shares))
            log.info("Resized share", pod=pod.metadata.key, node=pod.node, devices=has)
            self._context.recorder.note(subject_of(changed), "Resized", f"its share is now {has}")

    async def _claim(self, pod: Pod) -> None:
        """Decides by the pod and the ledger as they are, and by that ledger's version alone."""
        fresh = await find(self._context.cluster, PODS, pod.metadata.name, pod.metadata.namespace)
        seen = await find(self._context.cluster, NODE_DEVICES, pod.node)
        if fresh is None or seen is None or fresh.metadata.uid != pod.metadata.uid:
            return
        found = judge(seen, fresh)
        if found.claim and found.uncounted and await self._is_counted(pod.metadata.namespace):
            self._say(pod, QUOTA)
        elif found.claim:
            written: NodeDevices = await write_claims(
                self._context.cluster, seen, claims_patch(seen, {pod.metadata.uid: found.claim})
            )
            self._context.ledgers.put(written)

    async def _is_counted(self, namespace: str) -> bool:
        """Whether a ResourceQuota counts shares of the namespace, by pods' limits, which can't be changed."""
        try:
            quotas = await self._context.cluster.list(RESOURCE_QUOTAS, namespace=namespace)
        except Forbidden:
            return True
        return any(counts_shares(each.spec.hard) for each in quotas)

    def _say(self, pod: Pod, text: str) -> None:
        said = f"{pod.metadata.uid} {pod.metadata.annotations[contract.RESIZE]} {text}"
        if self._said.get(pod.metadata.key) != said:
            self._said[pod.metadata.key] = said
            self._context.recorder.warn(subject_of(pod), "ResizeWaits", f"it {text}")
