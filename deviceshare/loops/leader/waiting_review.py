"""The review of waiting groups after a change of nodes: which of them it concerns.

A change of one node is answered once for all groups that want the same, and only those that are told something else
are reconciled.
"""

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.loops.leader.term import Term


class WaitingReview:
    """What was last found of each waiting group, by name."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self._found: dict[str, Reason] = {}
        self._choosy: set[str] = set()
        """Groups with waiting pods that choose among nodes themselves: of those any node may matter."""

    def note(self, group: Group, pending: list[Pod]) -> None:
        """Takes in that the group is looked at now, with these waiting pods."""
        self.forget(group.name)
        if not group.node:
            self._found[group.name] = self._term.waits.of(group)
        if any(pod.spec.node_selector or pod.spec.affinity for pod in pending):
            self._choosy.add(group.name)

    def forget(self, name: str) -> None:
        """Takes in that the group is gone."""
        self._found.pop(name, None)
        self._choosy.discard(name)

    def concerns(self, name: str) -> bool:
        """Whether nodes changed in a way that matters to the group since it was looked at."""
        group = self._term.groups.get(name)
        if group is None or name in self._choosy:
            return group is not None
        return not group.node and self._found.get(name) != self._term.waits.of(group)
