"""Releases of bound groups that no pod uses, one at a time for each claim, for the reconcilers that decide why.

The steps are the claim protocol's (protocol/release.py). While they are under way, the Releaser leaves the claim's mark
alone.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import structlog

from deviceshare.domain.objects.groups import Group
from deviceshare.loops.leader.releaser import AGAIN_SECONDS, ClaimKey, new_mark
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.protocol.release import Keeps, Release, release

log = structlog.get_logger(__name__)

STAYED_SECONDS, MOST_STAYED_SECONDS = 5.0, 80.0
"""Before a group that stays is looked at again, the first time and at most: the mirror of pods is behind, or shows
something else than a list for good, as of a pod that can't be read."""


class _Stayed(NamedTuple):
    """A group that was found to be in use after all."""

    uid: str
    until: float
    seconds: float


class UnusedGroups:
    """What one reconciler is releasing, by the group's name."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._begun: dict[str, ClaimKey] = {}
        self._marked: UnchangedSince[ClaimKey] = UnchangedSince(term)
        self._stayed: dict[str, _Stayed] = {}
        """By name. That a group stays writes it, which enqueues it again."""

    def begun(self, name: str) -> bool:
        """Whether a release of this group is under way."""
        return name in self._begun

    async def release(
        self,
        group: Group,
        keeps: Keeps = lambda _group, _pods: False,
        status: Callable[[Group], Mapping[str, Any]] = lambda _: {},
    ) -> Release:
        """Takes the group from its node; raises `Later` while binds have to be waited out, and as `release` does."""
        stayed = self._stayed.get(group.name)
        if stayed and stayed.uid == group.uid:
            self._term.wait_until(stayed.until)
        key = ClaimKey(group.node, group.uid)
        if key != self._begun.get(group.name):
            self.end(group.name)
            if key in self._term.idle:  # another reconciler is releasing it, and might take the mark away under us
                self._term.wait_until(self._term.clock() + AGAIN_SECONDS)
            self._begun[group.name] = key
            self._term.idle.add(key)
        wait = partial(self._wait_out_binds, key)
        outcome = await release(
            self._term.cluster,
            *key,
            new_mark=new_mark,
            wait_out_binds=wait,
            on_unwritable=self._term.report_unwritable,
            compares=self._term.compares,
            keeps=keeps,
            status=status,
        )
        self.end(group.name)
        if outcome is Release.STAYS:
            self._stays(group, stayed)
        else:
            self._stayed.pop(group.name, None)
        return outcome

    def _stays(self, group: Group, before: _Stayed | None) -> None:
        now = self._term.clock()
        repeated = before and before.uid == group.uid and now < before.until + MOST_STAYED_SECONDS
        seconds = min(before.seconds * 2, MOST_STAYED_SECONDS) if before and repeated else STAYED_SECONDS
        self._stayed[group.name] = _Stayed(group.uid, now + seconds, seconds)

    def forget(self, name: str) -> None:
        """Forgets a group that is gone, or of which nothing can be said."""
        self.end(name)
        self._stayed.pop(name, None)

    def end(self, name: str) -> None:
        """Forgets the group; a mark that is left is the Releaser's to take away."""
        if key := self._begun.pop(name, None):
            self._term.idle.discard(key)
            self._marked.forget(key)

    async def _wait_out_binds(self, key: ClaimKey, mark: str) -> None:
        self._term.wait_until(self._marked(key, mark) + self._term.binds_over)
