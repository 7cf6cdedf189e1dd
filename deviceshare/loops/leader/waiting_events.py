"""The Events of waiting pods, behind deviceshare's scheduling gate or where they were placed: why they wait.

kube-scheduler records nothing about a gated pod. An Event is recorded when the reason changes, the more rarely the more
often it does, and again after a while: Events expire after an hour.
"""

from typing import Final, NamedTuple

from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.api_objects import subject_of
from deviceshare.loops.leader.context import ControllerContext

CHANGED_SECONDS: Final = 5.0
"""Between two Events of one pod, doubled with each change: its reasons may alternate with every pod that comes and
goes, each text is an object of its own in the API server, and thousands of pods may wait."""
AGAIN_SECONDS: Final = 600.0
"""Before the same is said again, and the longest time between two."""


class _Said(NamedTuple):
    text: str
    at: float
    apart: float
    """Seconds before another reason is said."""


class WaitingEvents:
    """Remembers what was said of which pod, in Events with one reason."""

    def __init__(self, context: ControllerContext, reason: str) -> None:
        self._context = context
        self._reason = reason
        self._said: dict[str, _Said] = {}

    def record(self, pod: Pod, why: str) -> None:
        """Records why the pod waits, unless that was said lately."""
        now, uid, apart = self._context.clock(), pod.metadata.uid, CHANGED_SECONDS
        if said := self._said.get(uid):
            if now - said.at < (AGAIN_SECONDS if said.text == why else said.apart):
                return
            apart = max(apart, said.apart / 2) if said.text == why else min(2 * said.apart, AGAIN_SECONDS)
        self._said[uid] = _Said(why, now, apart)
        self._context.recorder.warn(subject_of(pod), self._reason, why)

    def forget(self, pod: Pod) -> None:
        """Ends what is remembered of a pod that no longer waits."""
        self._said.pop(pod.metadata.uid, None)
