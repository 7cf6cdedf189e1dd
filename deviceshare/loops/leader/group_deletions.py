"""The reconciler of deletion policies: keeps a finalizer on groups that are to end after their last pod.

When no pod uses a deleted group any more, it takes that away. The group is released first, by the claim protocol's
steps: binds under way may still read it as it was. Once it has no node none of them can commit, and once no pod uses it
nobody will. Whoever dies in between leaves a group that is being deleted, for the next leader to look at.
"""

from collections.abc import Collection

import structlog

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import Group, uses
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import GROUPS
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.unused_groups import UnusedGroups
from deviceshare.loops.ports import NotFound
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.release import Release
from deviceshare.loops.queue import Queue
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)


class GroupDeletions:
    """Keyed by name."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("group-deletions", self._reconcile, clock=term.clock)
        self._releases = UnusedGroups(term)

    def enqueue_for_pods(self, name: str) -> None:
        """Enqueues the group one of whose pods changed, if it is being deleted."""
        group = self._term.groups.get(name)
        if group is not None and group.deleting:
            self.queue.add(name)

    async def _reconcile(self, name: str) -> None:
        group = self._term.groups.get(name)
        if group is None or group.metadata.unreadable:
            self._releases.forget(name)
            return
        kept = contract.PODS_FINALIZER in group.metadata.finalizers
        if not group.deleting:
            await self._keep(group, kept)
        elif kept and not self._used(group, self._term.members.named(name)):
            await self._let_go(group)

    async def _keep(self, group: Group, kept: bool) -> None:
        """Has the finalizer there exactly where the policy wants it. It can't be added once a group is deleted."""
        wanted = self._term.life.outlives_deletion(group.spec.deletion_policy)
        if wanted == kept:
            return
        others = [each for each in group.metadata.finalizers if each != contract.PODS_FINALIZER]
        await self._write(group, [*others, contract.PODS_FINALIZER] if wanted else others)

    async def _let_go(self, group: Group) -> None:
        """Ends a deleted group that no pod uses, by what the mirror shows."""
        if group.node and await self._releases.release(group, self._used) is Release.STAYS:
            return  # A pod was bound meanwhile: when it ends, it changes.
        # Its claim may be missing, with its node or before somebody recreates the ledger: then nobody can join, either.
        fresh = await holders.read_group(self._term.cluster, group.holder)
        pods = await holders.pods(self._term.cluster, group.holder)
        if fresh is None or fresh.node not in ("", group.node) or self._used(fresh, pods):
            return
        others = [each for each in fresh.metadata.finalizers if each != contract.PODS_FINALIZER]
        await self._write(fresh, others)
        log.info("Let deleted group go", group=group.name, node=group.node)
        text = "no pod uses it any more: it is deleted, and its devices are free"
        self._term.recorder.note(subject_of(group), "Deleted", text)

    @staticmethod
    def _used(group: Group, pods: Collection[Pod]) -> bool:
        return any(uses(pod, group) for pod in pods)

    async def _write(self, group: Group, finalizers: list[str]) -> None:
        """Raises Conflict where somebody else wrote the group meanwhile."""
        meta = {"resourceVersion": group.metadata.resource_version, "finalizers": finalizers}
        try:
            written = await self._term.cluster.patch(GROUPS, group.name, {"metadata": meta})
        except NotFound:
            return
        if finalizers or not written.deleting:
            self._term.groups.put(written)
