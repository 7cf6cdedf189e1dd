"""The reconciler of groups that leave their node, since the cluster's scheduler let none of their pods onto it.

While a group is leaving, none of its pods is placed. It leaves once none of them lives there (protocol/release.py); if
one is bound there after all, or they don't end in time, it stays.
"""

from functools import partial
from typing import Final

import structlog

from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.leader.releaser import ClaimKey, new_mark
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.ports import Conflict
from deviceshare.loops.protocol.release import Release, release
from deviceshare.loops.queue import Queue
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 0.5
"""Between two looks at the group's pods."""
GIVE_UP_SECONDS: Final = 90.0
"""After so long the group stays: some pod of it neither ends nor is bound. Longer than binds_over."""


class LeavingGroups:
    """Keyed by claim."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[ClaimKey] = Queue("leaving-groups", self._reconcile, clock=term.clock)
        self._names: dict[ClaimKey, str] = {}
        self._began: UnchangedSince[ClaimKey] = UnchangedSince(term)
        self._marked: UnchangedSince[ClaimKey] = UnchangedSince(term)

    def begin(self, pod: Pod) -> None:
        """Has the pod's group leave the node that the pod was placed on."""
        key = ClaimKey(pod.node, pod.holder_uid)
        if key not in self._term.leaving:
            self._term.leaving.add(key)
            self._names[key] = pod.group
            self._began.forget(key)
            self._marked.forget(key)
        self.queue.add(key, AGAIN_SECONDS)

    async def _reconcile(self, key: ClaimKey) -> None:
        if key not in self._term.leaving:
            return
        mine = [pod for pod in self._term.members.named(self._names[key]) if pod.holds(key.uid, key.node)]
        late = self._term.clock() > self._began(key) + GIVE_UP_SECONDS
        if late or any(pod.spec.node_name for pod in mine):
            self._end(key)
            return
        if mine:
            self._term.wait_until(self._term.clock() + AGAIN_SECONDS)
        wait, group = partial(self._wait_out_binds, key), self._term.groups.get(self._names[key])
        try:
            outcome = await release(
                self._term.cluster,
                *key,
                new_mark=new_mark,
                wait_out_binds=wait,
                on_unwritable=self._term.report_unwritable,
                compares=self._term.compares,
            )
        except Conflict:
            self.queue.add(key, AGAIN_SECONDS)
            return
        if outcome is Release.STAYS:
            self._term.wait_until(self._term.clock() + AGAIN_SECONDS)
        self._end(key)
        if outcome is Release.LEFT and group:
            log.info("Moved group off its node", group=group.name, node=key.node)
            text = f"left node {key.node}, where kube-scheduler found no place for its pods"
            self._term.recorder.note(subject_of(group), "LeftNode", text)

    async def _wait_out_binds(self, key: ClaimKey, mark: str) -> None:
        self._term.wait_until(self._marked(key, mark) + self._term.binds_over)

    def _end(self, key: ClaimKey) -> None:
        self._term.leaving.discard(key)
        self._names.pop(key, None)
        self._began.forget(key)
        self._marked.forget(key)
