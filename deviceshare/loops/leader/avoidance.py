"""Avoidance: the nodes where the cluster's scheduler found no place for a pod, by who is to be placed elsewhere.

It is remembered in memory for one term: another leader would learn it by one more try.
"""

from typing import Final, NamedTuple

from deviceshare.domain.objects.pods import Pod

AVOID_SECONDS: Final = 600.0
"""What kept the pod from the node may be gone then."""


class Unfit(NamedTuple):
    """Whose pods don't fit on which node."""

    who: str
    node: str


class Avoidance:
    """Times are seconds of the caller's clock."""

    def __init__(self) -> None:
        self._until: dict[Unfit, float] = {}

    def avoid(self, pod: Pod, node: str, now: float) -> None:
        """Keeps the pods of its group, or of its controller, from the node for a while."""
        self._until = {unfit: until for unfit, until in self._until.items() if until > now}
        self._until[Unfit(subject(pod), node)] = now + AVOID_SECONDS

    def nodes(self, pod: Pod, now: float) -> frozenset[str]:
        """The nodes that this pod is to be kept from now."""
        who = subject(pod)
        return frozenset(unfit.node for unfit, until in self._until.items() if unfit.who == who and until > now)


def subject(pod: Pod) -> str:
    """Whom a node's refusal concerns: the pod's group, the controller that recreates it, or the pod alone."""
    controller = pod.metadata.controller
    return f"group {pod.group}" if pod.group else controller.uid if controller else f"pod {pod.metadata.key}"
