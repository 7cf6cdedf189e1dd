"""The reconciler of groups on lost nodes: a group whose policy is Move leaves its node once its pods are gone.

Whether the node is lost is read from the API server each time: the mirror holds shared nodes only, and may be behind. A
node that comes back meanwhile is safe, since nobody can join by a marked claim (protocol/release.py).
"""

from collections.abc import Collection
from typing import Any, Final

import structlog

from deviceshare import timestamps
from deviceshare.domain.answers.group_status import moved, unbound_for
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.lost_nodes import is_lost, left_behind, moves
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODES
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.unused_groups import UnusedGroups
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

        outcome = await self._releases.release(group, stays, said)
        if outcome is Release.LEFT:
            text = moved(group.node, node).text
            log.warning("Moved group off lost node", group=group.name, node=group.node, gone=node is None)
            self._term.recorder.note(subject_of(group), "LeftNode", text)

    def _end(self, name: str) -> None:
        self._releases.end(name)


def stays(group: Group, pods: Collection[Pod]) -> bool:
    """Whether the group stays on its lost node: its policy was changed, or the API server still has a pod of it.

    A pending pod doesn't keep it: it waits for a node that runs nothing.
    """
    return not moves(group) or bool(left_behind(group, pods))
