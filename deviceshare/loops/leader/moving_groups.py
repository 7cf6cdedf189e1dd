"""The reconciler of groups on lost nodes: a group whose policy is Move leaves its node once its pods are gone.

Whether the node is lost is read from the API server each time: the mirror holds shared nodes only, and may be behind. A
node that comes back meanwhile is safe, since nobody can join by a marked claim (protocol/move.py).
"""

from typing import Any, Final

import structlog

from deviceshare import timestamps
from deviceshare.domain.answers.group_status import unbound_for
from deviceshare.domain.answers.node_loss import moved
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.placement.lost_nodes import is_lost, left_behind, moves
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODES
from deviceshare.loops.leader.releaser import new_mark
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.leader.unused_groups import UnusedGroups
from deviceshare.loops.protocol import move
from deviceshare.loops.protocol.release import Release
from deviceshare.loops.queue import Queue
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

WORKERS: Final = 4
LOOK_SECONDS: Final = 30.0
"""Between two looks at the node of a group whose policy is Move, where the mirror doesn't show the node."""


class MovingGroups:
    """Keyed by name."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("moving-groups", self._reconcile, workers=WORKERS, clock=term.clock)
        self._releases = UnusedGroups(term)
        self._missing_since: UnchangedSince[str] = UnchangedSince(term)

    def enqueue(self, group: Group | None) -> None:
        """Enqueues a group that may have to move: it, one of its pods or its node changed."""
        if group is not None and (self._releases.begun(group.name) or (group.node and moves(group))):
            self.queue.add(group.name)

    async def _reconcile(self, name: str) -> None:
        group = self._term.groups.get(name)
        if group is None:
            self._releases.forget(name)
        if group is None or not group.node or not moves(group):
            self._end(name)
            return
        seen = self._term.fleet.node(group.node)
        if seen is not None and not is_lost(seen):
            self._end(name)
            return
        node = await find(self._term.cluster, NODES, group.node)
        if not is_lost(node) or left_behind(group, self._term.members.named(name)):
            self._end(name)
            if seen is None:
                self.queue.add(name, LOOK_SECONDS)
            return
        await self._move(group, node)

    async def _move(self, group: Group, node: Node | None) -> None:
        def said(group: Group) -> dict[str, Any]:
            return unbound_for(group, moved(group.node, node), timestamps.now())

        await self._ensure_ledger(group, node)
        outcome = await self._releases.release(group, move.stays, said)
        self._missing_since.forget(group.name)
        if outcome is Release.LEFT:
            text = moved(group.node, node).text
            log.warning("Moved group off lost node", group=group.name, node=group.node, gone=node is None)
            self._term.recorder.note(subject_of(group), "LeftNode", text)

    async def _ensure_ledger(self, group: Group, node: Node | None) -> None:
        if self._term.fleet.ledger(group.node):
            return  # If the mirror is behind, a step of the release fails.
        since = self._missing_since(group.name)

        async def wait_out_binds() -> None:
            # Binds that began after the ledger was seen missing can't have claimed in it.
            self._term.wait_until(since + self._term.binds_over)

        await move.ensure_ledger(self._term.cluster, group.node, node, mark=new_mark(), wait_out_binds=wait_out_binds)

    def _end(self, name: str) -> None:
        self._releases.end(name)
        self._missing_since.forget(name)
