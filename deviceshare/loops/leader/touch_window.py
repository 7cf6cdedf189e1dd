"""The window of touches under way: a limit, for each namespace, on touched pods that kube-scheduler has yet to retry.

kube-scheduler tries one pod after the other, the longest waiting first. A thousand pods touched at once would stand in
front of all others for many seconds. So each namespace has a few places; a touched pod keeps its place until it
is bound or gone, or, since a second refusal in the same words is written nowhere, until it must have been tried.
Namespaces don't wait for each other; the groups of one take turns, pod by pod.
"""

import itertools
from collections import Counter
from collections.abc import Collection
from typing import Final

from deviceshare.domain.objects.pods import Pod

PLACES: Final = 16
"""For each namespace. kube-scheduler places about 80 pods a second, so these are always enough to keep it busy."""
TRIED_SECONDS: Final = 2.0
"""After a touch a pod has been tried, its backoff of a second included (the scheduler's configuration)."""

GATHER_SECONDS: Final = 0.05
"""Between two checks for a free place: pods that were touched together leave together."""


class TouchWindow:
    """Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[str, float]] = {}
        """By the UID of a pod that has a place: its namespace, and until when at most. The first ends first."""
        self._taken: Counter[str] = Counter()
        """By namespace."""
        self._line: dict[str, dict[str, None]] = {}
        """By namespace, the lines (`Pod.line`) of those who wait for a place, the first first."""

    def enter(self, pod: Pod, now: float) -> bool:
        """Takes a place for the pod. If there is none, or it is another group's turn, its group stands in line."""
        namespace = pod.metadata.namespace
        self.leave(pod)
        for uid in list(itertools.takewhile(lambda uid: self._until[uid][1] <= now, self._until)):
            self._free(uid)
        if self._taken[namespace] >= PLACES or self.turn(namespace) not in ("", pod.line):
            self._line.setdefault(namespace, {}).setdefault(pod.line)
            return False
        self._quit(namespace, pod.line)
        self._until[pod.metadata.uid] = namespace, now + TRIED_SECONDS
        self._taken[namespace] += 1
        return True

    def leave(self, pod: Pod) -> None:
        """Frees the pod's place, if it has one: it was bound, is gone, or could not be touched."""
        if pod.metadata.uid in self._until:
            self._free(pod.metadata.uid)

    def give_up(self, group: str, but: Collection[str] = ()) -> list[str]:
        """Takes the group out of every line `but` some, as nothing else of it is to be touched; returns which."""
        lines = [namespace for namespace, line in self._line.items() if group in line and namespace not in but]
        for namespace in lines:
            self._quit(namespace, group)
        return lines

    def turn(self, namespace: str) -> str:
        """The group whose turn it is in the namespace, or "" where none waits."""
        return next(iter(self._line.get(namespace, ())), "")

    def opens(self, namespace: str, now: float) -> float:
        """In how many seconds the namespace has a free place at the latest."""
        if self._taken[namespace] < PLACES:
            return 0.0
        return max(next(until for where, until in self._until.values() if where == namespace) - now, GATHER_SECONDS)

    def _free(self, uid: str) -> None:
        namespace, _ = self._until.pop(uid)
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]

    def _quit(self, namespace: str, group: str) -> None:
        line = self._line.get(namespace, {})
        line.pop(group, None)
        if not line:
            self._line.pop(namespace, None)
