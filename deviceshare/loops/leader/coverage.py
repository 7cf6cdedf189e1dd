"""The reconciler of nodes whose claims don't cover what runs there: claims that, or reports it (claims.md, repair).

It happens when a ledger is edited by hand, or when evidence contradicted itself as a ledger was filled. A device must
never be allocated while a pod uses it, so what is free is claimed; the rest is for a person to decide.
"""

from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.replacement import covers
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import NODE_DEVICES, PODS, find, subject_of
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.protocol import holders, repair

log = structlog.get_logger(__name__)

COVER_SECONDS: Final = 1.0
"""Between the change that shows a pod without a claim and the look at its node: the mirror of ledgers may be behind."""
LOOK_SECONDS: Final = 1.5
"""The same for a bound group without one."""


class Coverage:
    """Keyed by node. Only what a change may have uncovered is looked at."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("coverage", self._check, workers=8)
        self._reported: dict[str, set[str]] = {}
        """By node, the UIDs of pods already reported."""

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Enqueues the node of a pod that no claim covers, or that was reported."""
        for pod in change.sides if self._reported else ():
            if pod.metadata.uid in self._reported.get(pod.node, ()):
                self.queue.add(pod.node)
        new = change.new
        ledger = self._context.ledgers.get(new.node) if new else None
        if new and ledger and _by_right(new) and not _covered(new, ledger):
            self.queue.add(new.node, COVER_SECONDS)

    def change_group(self, group: Group) -> None:
        """Enqueues the node of a bound group whose claim seems to be missing."""
        ledger = self._context.ledgers.get(group.node)
        if ledger and group.uid not in ledger.claims:
            self.queue.add(group.node, LOOK_SECONDS)

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues a node some of whose claims changed or went, or whose devices have other names."""
        old, new = change.old, change.new
        if not (old and new) or change.key in self._reported or _told(old) != _told(new):
            self.queue.add(change.key)
        elif any(new.claims.get(uid) != claim for uid, claim in old.claims.items()):
            self.queue.add(change.key)  # Mostly claims were added, if anything.

    async def _check(self, node: str) -> None:
        """Claims what live pods and bound groups of the node hold without a claim, and reports what can't be."""
        ledger, holding = self._context.ledgers.get(node), self._context.index.holding[node]
        if ledger is None:
            self._remember(node, [pod for pod in holding if pod.metadata.uid in self._reported.get(node, ())])
            return
        meta = ledger.metadata
        if not ledger.filled or meta.unreadable or (meta.deletion_timestamp and not ledger.claims):
            return
        if all(_covered(pod, ledger) for pod in holding) and not self._unclaimed(ledger):
            self._remember(node, [])
            return
        # The ledger first: a pod bound after it was read has a claim that makes our write fail.
        ledger = await find(self._context.cluster, NODE_DEVICES, node)
        if ledger is None:
            return
        self._context.ledgers.put(ledger)
        groups = [await holders.read_group(self._context.cluster, group.holder) for group in self._unclaimed(ledger)]
        pods = await self._context.cluster.list(PODS, label_selector=contract.GROUP)
        here = [pod for pod in pods if pod.node == node and _by_right(pod)]
        uncovered = [pod for pod in here if not _covered(pod, ledger)]
        using = {pod.holder_uid for pod in uncovered if pod.group} | {pod.share_uid for pod in uncovered if pod.shares}
        bound = {group.uid: group for group in groups if group and group.node == node}
        for uid in sorted((using | bound.keys()) - ledger.claims.keys()):
            mine = [pod for pod in here if uid in (pod.holder_uid, pod.share_uid)]
            if await repair.cover(self._context.cluster, ledger, mine, uid, bound.get(uid)):
                log.warning("Claimed devices that had no claim", node=node, uid=uid)
                self.queue.add(node, COVER_SECONDS)
                return
        self._remember(node, uncovered)

    def _unclaimed(self, ledger: NodeDevices) -> list[Group]:
        """The groups that the mirror shows bound there, and whose claim is missing."""
        bound = self._context.index.bound[ledger.node]
        return [group for group in bound if group.uid not in ledger.claims and not group.metadata.unreadable]

    def _remember(self, node: str, uncovered: list[Pod]) -> None:
        before = self._reported.get(node, set())
        now = {pod.metadata.uid for pod in uncovered}
        if before == now:
            return
        for pod in uncovered:
            if pod.metadata.uid not in before:
                self._report(pod)
        self._reported[node] = now
        if not now:
            del self._reported[node]
        self._context.on_uncovered(sum(map(len, self._reported.values())))

    def _report(self, pod: Pod) -> None:
        devices = listed(map(str, pod.devices))
        log.error("Found a pod with devices that others hold", pod=pod.metadata.key, node=pod.node, devices=devices)
        cure = f"delete the pod; kubectl get ndev {pod.node} shows who holds what"
        message = f"the pod uses {devices} of node {pod.node}, for which it has no claim there, and others may get them"
        self._context.recorder.warn(subject_of(pod), "DevicesNotHeld", f"{message}: {cure}")


def _told(ledger: NodeDevices) -> tuple[object, ...]:
    return ledger.filled, ledger.status, ledger.metadata.unreadable


def _by_right(pod: Pod) -> bool:
    return pod.lives and bool(pod.holder_uid) and not pod.impostor


def _covered(pod: Pod, ledger: NodeDevices) -> bool:
    """Whether the claims of its group and of its share reserve what it received."""
    if pod.group and (received := pod.received):
        claim = ledger.claims.get(pod.holder_uid)
        if claim is None or not covers(ledger, claim, received):
            return False
    if shares := pod.shares:
        claim = ledger.claims.get(pod.share_uid)
        return claim is not None and covers(ledger, claim, (share.device for share in shares))
    return True
