"""The reconciler of bound groups without a claim: one that no pod uses leaves its node (protocol/unclaimed.py).

What the mirrors show is only a reason to look: they may be behind each other. Devices of a pod that lives are claimed
again, or reported, by Coverage.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import structlog

from deviceshare import timestamps
from deviceshare.domain.answers.group_status import unbound_for
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.loops.leader.releaser import UNSEEN_SECONDS, ClaimKey, new_mark
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.protocol.release import Release
from deviceshare.loops.protocol.unclaimed import leave
from deviceshare.loops.queue import Later, Queue
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.5
"""Between the change that shows a group without its claim and the look at it: the mirror of ledgers may be behind."""


class UnclaimedGroups:
    """Keyed by name. Groups that have their claim cost a look at the mirrors at each change of theirs."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("unclaimed-groups", self._reconcile, clock=term.clock)
        self._missing: dict[str, tuple[ClaimKey, str]] = {}
        """By the group's name, the claim that is missing, and the mark of that."""
        self._marked: UnchangedSince[ClaimKey] = UnchangedSince(term)

    def change(self, change: ObjectChange[Group]) -> None:
        """Enqueues a changed group if its claim is missing."""
        if change.new is None:
            self._forget(change.key)
        else:
            self.enqueue(change.new)

    def enqueue(self, group: Group | None) -> None:
        """Likewise, of a group whose ledger or one of whose pods changed. Each change of its ledger must come here."""
        if group is None:
            return
        if self._lacks_claim(group):
            self.queue.add(group.name, LOOK_SECONDS)
        else:
            self._forget(group.name)

    def _lacks_claim(self, group: Group) -> bool:
        """Whether the mirrors show it bound where an open ledger has no claim of it."""
        if not group.node or group.deleting or group.metadata.unreadable:
            return False
        ledger = self._term.fleet.ledger(group.node)
        if ledger is None or ledger.metadata.unreadable or not ledger.status.devices:
            return False
        return group.uid not in ledger.claims

    async def _reconcile(self, name: str) -> None:
        group = self._term.groups.get(name)
        if group is None or not self._lacks_claim(group):
            self._forget(name)
            return
        if group.node in self._term.fleet.pods(group.uid).values():
            return  # When it ends, it changes.
        outcome = await self._leave(group)
        if outcome is Release.STAYS:
            raise Later(UNSEEN_SECONDS)
        self._forget(name)
        if outcome is Release.LEFT:
            log.warning("Released group without a claim", group=name, node=group.node)
            self._term.recorder.note(subject_of(group), "LeftNode", _left(group).text)

    async def _leave(self, group: Group) -> Release:
        """Raises `Later` while binds have to be waited out, and as `leave` does."""
        key = ClaimKey(group.node, group.uid)
        if self._missing.get(group.name, (None, ""))[0] != key:
            self._forget(group.name)
            self._missing[group.name] = key, new_mark()
        return await leave(
            self._term.cluster,
            group.node,
            group.holder,
            mark=self._missing[group.name][1],
            new_mark=new_mark,
            wait_out_binds=partial(self._wait_out_binds, key),
            on_unwritable=self._term.report_unwritable,
            status=_said,
        )

    async def _wait_out_binds(self, key: ClaimKey, mark: str) -> None:
        self._term.wait_until(self._marked(key, mark) + self._term.binds_over)

    def _forget(self, name: str) -> None:
        if missing := self._missing.pop(name, None):
            self._marked.forget(missing[0])


def _left(group: Group) -> Reason:
    text = f"left node {group.node}, where its claim was missing and no pod of it ran; its next pod binds it again"
    return Reason(ReasonKind.RELEASED, text)


def _said(group: Group) -> Mapping[str, Any]:
    return unbound_for(group, _left(group), timestamps.now())
