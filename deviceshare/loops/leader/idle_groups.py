"""The reconciler of idle groups: releases one that has had no pods for as long as its spec or the settings say.

How long is read from `status.idleSince`, so that it doesn't start again with each leader. Whether a pod uses the group,
or could join it, is asked of the API server before anything is decided (protocol/release.py).
"""

from collections.abc import Collection
from typing import Any, Final

import structlog

from deviceshare import timestamps
from deviceshare.domain.answers.group_status import idle_seconds, release_reason, unbound_for
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.barred_pods import barred
from deviceshare.domain.placement.join_obstacles import pod_obstacle
from deviceshare.loops.leader.term import Term
from deviceshare.loops.leader.unused_groups import UnusedGroups
from deviceshare.loops.protocol.release import Release
from deviceshare.loops.queue import Later, Queue
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 30.0
"""Between two looks at a group that is due, but wanted: nothing tells when a bind under way has failed."""


class IdleGroups:
    """Keyed by name. Groups without a duration, and those with pods, cost a look at each change of theirs."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[str] = Queue("idle-groups", self._reconcile, clock=term.clock)
        self._releases = UnusedGroups(term)

    def enqueue_for_pods(self, name: str) -> None:
        """Enqueues the group one of whose pods changed, if it is known to be idle."""
        group = self._term.groups.get(name)
        if group is not None and group.status.idle_since:
            self.queue.add(name)

    async def _reconcile(self, name: str) -> None:
        group = self._term.groups.get(name)
        if group is None or not group.node or group.metadata.unreadable:
            self._releases.forget(name)
            return
        after = self._release_seconds(group)
        if not self._releases.begun(name):
            if after is None or self._term.fleet.pods(group.uid):
                return
            self._wait_until_due(group, after)
            if self._wanted(group, self._term.members.pending(name)):
                raise Later(LOOK_SECONDS)
        # One that was begun takes its mark away where the group is to stay after all.
        if await self._releases.release(group, self._keeps, self._said) is Release.LEFT:
            self._report(group, after or 0)

    def _release_seconds(self, group: Group) -> int | None:
        """After how long without pods the group is to be released; None for never."""
        return self._term.life.release_seconds(group.spec.release_after)

    def _wait_until_due(self, group: Group, after: int) -> None:
        """Raises `Later` until the group has been idle for so long. Clocks move, so it is asked again then."""
        rest = _rest(group, after)
        self._term.wait_until(self._term.clock() + min(rest, after))

    def _keeps(self, group: Group, pods: Collection[Pod]) -> bool:
        """What is so now counts: somebody may have changed the group's spec, and a pod of it may wait."""
        after = self._release_seconds(group)
        return after is None or _rest(group, after) > 0 or self._wanted(group, pods)

    def _wanted(self, group: Group, pods: Collection[Pod]) -> bool:
        """Whether a pod waits that could join the group where it is.

        One that can't, for whatever reason of its own or because others gate it, binds the group again when it can.
        """
        if self._term.fleet.assumed(group.uid):
            return True
        waiting = [pod for pod in pods if pod.pending and not pod.metadata.deletion_timestamp]
        able = [pod for pod in waiting if pod_obstacle(pod, group, self._term.fleet.namespaces) is None]
        return len(able) > len(barred(self._term.fleet, group, able))

    def _said(self, group: Group) -> dict[str, Any]:
        return unbound_for(group, release_reason(self._release_seconds(group) or 0), timestamps.now())

    def _report(self, group: Group, after: int) -> None:
        held = described(group.status.selected_devices) or "its devices"
        log.info("Released idle group", group=group.name, node=group.node, devices=held, seconds=after)
        text = f"{held} on node {group.node} {release_reason(after)}"
        self._term.recorder.note(subject_of(group), "Released", text)
        self._term.on_released()


def _rest(group: Group, after: int) -> float:
    """The seconds until the group has been idle for so long; all of them where its status doesn't say since when."""
    idle = idle_seconds(group.status.idle_since, timestamps.now())
    return after - idle if idle is not None and idle >= 0 else after
