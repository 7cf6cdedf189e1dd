"""Coverage of running pods by claims: claims the devices of a pod that has no claim, or reports it (claims.md, repair).

It happens when a ledger is edited by hand, or when evidence contradicted itself as a ledger was recreated. A device
must never be allocated while a pod uses it, so what is free is claimed; the rest is for a person to decide.
"""

from collections.abc import Iterable

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.holdings import Holding
from deviceshare.domain.placement.replacement import covers
from deviceshare.domain.wording import listed
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.leader.releaser import new_mark
from deviceshare.loops.leader.term import Term
from deviceshare.loops.protocol import repair
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)


class Coverage:
    """Checks one node at a time."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._reported: dict[str, set[str]] = {}
        """By node, the UIDs of pods already reported."""

    async def check(self, node: str) -> None:
        """Claims what live pods of the node hold without a claim, and reports what can't be claimed.

        Raises:
            Conflict: another writer changed the ledger; retry.
            ApiError: a request failed; retry.
        """
        ledger = self._term.ledgers.get(node)
        if ledger is None or not ledger.status.devices:
            return  # Nothing can be claimed in it: it is being created, or its device plugin restarts.
        if not _uncovered(self._term.members.holding(node), ledger):
            self._remember(node, [])
            return
        # The ledger first: a pod bound after it was read has a claim that makes our write fail.
        ledger = await find(self._term.cluster, NODE_DEVICES, node)
        if ledger is None:
            return
        self._term.ledgers.put(ledger)
        pods = await self._term.cluster.list(PODS, label_selector=contract.GROUP)
        here = [pod for pod in pods if pod.lives and pod.node == node and pod.holder_uid and not pod.impostor]
        uncovered = _uncovered(here, ledger)
        holders = {pod.holder_uid: pod for pod in uncovered if pod.group}
        holders |= {pod.share_uid: pod for pod in uncovered if pod.shares}
        for uid in sorted(holders.keys() - ledger.claims.keys()):
            mine = [pod for pod in here if uid in (pod.holder_uid, pod.share_uid)]
            group = self._term.groups.get(holders[uid].group)
            bound = group is not None and (group.uid, group.node) == (uid, node)
            token = group.status.claim_token if group and bound else new_mark()
            if await repair.cover(self._term.cluster, ledger, mine, uid, token=token):
                log.warning("Claimed devices of pods without a claim", node=node, holder=str(holders[uid].holder))
                return  # The change of the ledger enqueues this node again.
        self._remember(node, uncovered)

    def forget(self, node: str) -> None:
        """Ends what was reported of a node that is gone, and its ledger with it: nothing is checked there any more."""
        if self._reported.pop(node, None):
            self._count()

    def report_disputed(self, node: str, disputed: Iterable[Holding]) -> None:
        """Logs what was left out when the node's ledger was recreated. `check` finds its pods later."""
        for holding in disputed:
            devices = listed(map(str, holding.devices))
            log.error("Left out a disputed holding", node=node, holder=str(holding.holder), devices=devices)

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
        self._count()

    def _count(self) -> None:
        self._term.on_uncovered(sum(map(len, self._reported.values())))

    def _report(self, pod: Pod) -> None:
        devices = listed(map(str, pod.devices))
        log.error("Found a pod with devices that others hold", pod=pod.metadata.key, node=pod.node, devices=devices)
        message = (
            f"the pod uses {devices} of node {pod.node}, for which it has no claim there, and others may get them:"
            f" delete the pod; kubectl get ndev {pod.node} shows who holds what"
        )
        self._term.recorder.warn(subject_of(pod), "DevicesNotHeld", message)


def _uncovered(pods: Iterable[Pod], ledger: NodeDevices) -> list[Pod]:
    return [pod for pod in pods if not (_group_covers(pod, ledger) and _shares_covered(pod, ledger))]


def _group_covers(pod: Pod, ledger: NodeDevices) -> bool:
    claim = ledger.claims.get(pod.holder_uid)
    return not pod.group or not pod.received or (claim is not None and covers(ledger, claim, pod.received))


def _shares_covered(pod: Pod, ledger: NodeDevices) -> bool:
    claim = ledger.claims.get(pod.share_uid)
    return not pod.shares or (claim is not None and covers(ledger, claim, (share.device for share in pod.shares)))
