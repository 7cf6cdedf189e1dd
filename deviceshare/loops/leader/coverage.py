"""Coverage of running pods by claims: claims the devices of a pod that has no claim, or reports it (claims.md, repair).

It happens when a ledger is edited by hand, or when evidence contradicted itself as a ledger was filled. A device
must never be allocated while a pod uses it, so what is free is claimed; the rest is for a person to decide.
"""

from collections.abc import Iterable

import structlog

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.answers.group_status import unbound_for
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.holdings import Holding
from deviceshare.domain.placement.replacement import covers
from deviceshare.domain.wording import listed
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES, PODS
from deviceshare.loops.leader.releaser import new_mark
from deviceshare.loops.leader.residents import Residents
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.unused_groups import UnusedGroups
from deviceshare.loops.protocol import holders, repair
from deviceshare.loops.protocol.release import Release
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)


class Coverage:
    """Checks one node at a time."""

    def __init__(self, term: Term, residents: Residents) -> None:
        self._term = term
        self._residents = residents
        self._releases = UnusedGroups(term)
        self._reported: dict[str, set[str]] = {}
        """By node, the UIDs of pods already reported."""

    async def check(self, node: str) -> None:
        """Claims what live pods and bound groups of the node hold without a claim, and reports what can't be claimed.

        A group that is bound there, but whose devices others hold, leaves the node.

        Raises:
            Conflict: another writer changed the ledger; retry.
            ApiError: a request failed; retry.
        """
        ledger = self._term.ledgers.get(node)
        if ledger is None or not ledger.filled:
            return
        for group in list(self._residents[node]):
            claim = ledger.claims.get(group.uid)
            if claim and not claim.devices:
                await self._leave(group)
        if not (_uncovered(self._term.members.holding(node), ledger) or self._unclaimed(ledger)):
            self._remember(node, [])
            return
        # The ledger first: a pod bound after it was read has a claim that makes our write fail.
        ledger = await find(self._term.cluster, NODE_DEVICES, node)
        if ledger is None:
            return
        self._term.ledgers.put(ledger)
        groups = [await holders.read_group(self._term.cluster, group.holder) for group in self._unclaimed(ledger)]
        pods = await self._term.cluster.list(PODS, label_selector=contract.GROUP)
        here = [pod for pod in pods if pod.lives and pod.node == node and pod.holder_uid and not pod.impostor]
        uncovered = _uncovered(here, ledger)
        using = {pod.holder_uid: pod.holder for pod in uncovered if pod.group}
        using |= {pod.share_uid: pod.sharer for pod in uncovered if pod.shares}
        bound = {group.uid: group for group in groups if group and group.node == node}
        for uid in sorted((using.keys() | bound.keys()) - ledger.claims.keys()):
            mine = [pod for pod in here if uid in (pod.holder_uid, pod.share_uid)]
            mark, home = new_mark(), bound.get(uid)
            token = (home.status.claim_token if home else "") or mark
            if await repair.cover(self._term.cluster, ledger, mine, uid, token=token, mark=mark, group=home):
                log.warning("Claimed devices that had no claim", node=node, uid=uid)
                return  # The change of the ledger enqueues this node again.
        self._remember(node, uncovered)

    def _unclaimed(self, ledger: NodeDevices) -> list[Group]:
        """The groups that the mirror shows bound there, and whose claim is missing."""
        return [
            group
            for group in self._residents[ledger.node]
            if group.uid not in ledger.claims and not group.metadata.unreadable
        ]

    async def _leave(self, group: Group) -> None:
        """Releases a group that holds nothing there. Raises `Later` while binds have to be waited out."""
        said = Reason(ReasonKind.RELEASED, f"left node {group.node}, where others have the devices that it had")
        outcome = await self._releases.release(group, status=lambda group: unbound_for(group, said, timestamps.now()))
        if outcome is Release.LEFT:
            log.warning("Released group without devices", group=group.name, node=group.node)
            self._term.recorder.note(subject_of(group), "LeftNode", said.text)

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
