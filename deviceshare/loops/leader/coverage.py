"""Pods that run with devices which no claim covers: claimed if free, else reported loudly (claims.md, repair).

It happens when somebody edits a ledger by hand, or when evidence contradicted itself as a ledger was made again. A
device must never be given away while a pod uses it, so what is free is claimed; what isn't is for a person to decide.
"""

from collections.abc import Callable, Iterable

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.replacement import covers
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.leader.members import Members
from deviceshare.loops.ports import Cluster, Mirror, NotFound, Recorder
from deviceshare.loops.protocol import repair
from deviceshare.loops.protocol.repair import Holding

log = structlog.get_logger(__name__)


class Coverage:
    """Looks at one node at a time."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        ledgers: Mirror[NodeDevices],
        members: Members,
        recorder: Recorder,
        on_uncovered: Callable[[int], object],
    ) -> None:
        """`on_uncovered` is told how many pods run with devices that somebody else holds, each time that changes."""
        self._cluster = cluster
        self._ledgers = ledgers
        self._members = members
        self._recorder = recorder
        self._on_uncovered = on_uncovered
        self._reported: dict[str, set[str]] = {}
        """By node, the UIDs of pods already reported."""

    async def look(self, node: str) -> None:
        """Claims what live pods of the node hold without a claim, and reports what can't be claimed.

        Raises:
            Conflict: somebody else wrote the ledger; begin again.
            ApiError: a request failed; begin again.
        """
        ledger = self._ledgers.get(node)
        if ledger is None or not ledger.status.devices:
            return  # nothing can be claimed in it; it is being made, or its device plugin restarts
        if not _uncovered(self._members.holding(node), ledger):
            self._remember(node, [])
            return
        try:
            # The ledger first: a pod bound after it was read has a claim that makes our write fail.
            ledger = await self._cluster.get(NODE_DEVICES, node)
        except NotFound:
            return
        self._ledgers.put(ledger)
        pods = await self._cluster.list(PODS, label_selector=contract.GROUP)
        here = [pod for pod in pods if pod.lives and pod.node == node and pod.group_uid and not pod.impostor]
        uncovered = _uncovered(here, ledger)
        for uid in sorted({pod.group_uid for pod in uncovered} - ledger.claims.keys()):
            mine = [pod for pod in here if pod.group_uid == uid]
            if await repair.cover(self._cluster, ledger, mine):
                log.warning("Claimed the devices of pods without a claim", node=node, group=mine[0].group, uid=uid)
                return  # The ledger has changed: the change has this node looked at again.
        self._remember(node, uncovered)

    def report_disputed(self, node: str, disputed: Iterable[Holding]) -> None:
        """Reports what was left out when the node's ledger was made again. Its pods are found by `look` later."""
        for holding in disputed:
            devices = listed(map(str, holding.devices))
            log.error("Left out a disputed holding", node=node, group=holding.group, uid=holding.uid, devices=devices)

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
        self._on_uncovered(sum(map(len, self._reported.values())))

    def _report(self, pod: Pod) -> None:
        meta = pod.metadata
        devices = listed(map(str, pod.devices))
        log.error("Found a pod with devices that others hold", pod=meta.key, node=pod.node, devices=devices)
        message = (
            f"the pod uses {devices} of node {pod.node}, which its group does not hold there and others may be given:"
            f" delete the pod; kubectl get ndev {pod.node} shows who holds what"
        )
        self._recorder.event(
            PODS, meta.name, meta.namespace, meta.uid, type_="Warning", reason="DevicesNotHeld", message=message
        )


def _uncovered(pods: Iterable[Pod], ledger: NodeDevices) -> list[Pod]:
    claims = ledger.claims
    return [pod for pod in pods if not covers(ledger, claims.get(pod.group_uid, _NO_CLAIM), pod.received)]


_NO_CLAIM = Claim("")
