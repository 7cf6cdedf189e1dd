"""The Events of waiting pods behind deviceshare's scheduling gate: why, in words like kube-scheduler's.

kube-scheduler records nothing about a gated pod. An Event is recorded when the reason changes, at most so often for a
pod, and again after a while: Events expire after an hour.
"""

from typing import Final

from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.leader.term import Term
from deviceshare.loops.subjects import subject_of

REASON: Final = "NotPlaced"
CHANGED_SECONDS: Final = 5.0
"""Between two Events of one pod, whose reasons may alternate with every pod that comes and goes."""
AGAIN_SECONDS: Final = 600.0
"""Before the same is said again."""


class WaitingEvents:
    """Remembers what was said of which pod."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._said: dict[str, tuple[str, float]] = {}

    def tell(self, pod: Pod, why: str) -> None:
        """Records why the pod waits, unless that was said lately."""
        now, uid = self._term.clock(), pod.metadata.uid
        if uid in self._said:
            text, at = self._said[uid]
            if now - at < (AGAIN_SECONDS if text == why else CHANGED_SECONDS):
                return
        self._said[uid] = why, now
        self._term.recorder.warn(subject_of(pod), REASON, why)

    def forget(self, pod: Pod) -> None:
        """Ends what is remembered of a pod that no longer waits."""
        self._said.pop(pod.metadata.uid, None)
